package nvmetcp

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// resolve has every name stand for the addresses in turn, one at each look-up, until the test ends.
func resolve(t *testing.T, ips ...string) {
	var lookups atomicCounter
	old := net.DefaultResolver
	t.Cleanup(func() { net.DefaultResolver = old })
	net.DefaultResolver = &net.Resolver{PreferGo: true, Dial: func(context.Context, string, string) (net.Conn, error) {
		host, server := net.Pipe()
		go answerDNS(server, func() [4]byte { return netip.MustParseAddr(ips[(lookups.next()-1)%len(ips)]).As4() })
		return host, nil
	}}
}

// answerDNS answers one query, as over TCP: with next for an A record, with nothing for others.
func answerDNS(c net.Conn, next func() [4]byte) {
	defer c.Close()
	var size [2]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return
	}
	q := make([]byte, binary.BigEndian.Uint16(size[:]))
	if _, err := io.ReadFull(c, q); err != nil {
		return
	}
	end := 12
	for q[end] != 0 { // the labels of the name
		end += 1 + int(q[end])
	}
	end += 5 // the root label, type and class
	a := append([]byte(nil), q[:end]...)
	copy(a[2:], []byte{0x81, 0x80, 0, 1, 0, 0, 0, 0, 0, 0})
	if binary.BigEndian.Uint16(q[end-4:]) == 1 {
		a[7] = 1
		a = append(a, 0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4)
		ip := next()
		a = append(a, ip[:]...)
	}
	c.Write(append(binary.BigEndian.AppendUint16(nil, uint16(len(a))), a...))
}

func TestF22NamesAreResolvedForEachAssociation(t *testing.T) {
	c := disk(nvmetest.ModeNVMET, 512, content(1<<20))
	first := start(t, c)
	_, port, err := net.SplitHostPort(first.Addr())
	require.NoError(t, err)
	c.Addr = "127.0.0.2:" + port
	second := start(t, c)
	resolve(t, "127.0.0.1", "127.0.0.2")
	to := Target{Addr: "storage.example.:" + port, NQN: first.NQN()}
	connected := func() [2]int { return [2]int{first.Stats().Connections, second.Stats().Connections} }

	sub, err := testHost.Connect(within(t, 10*time.Second), to, &Options{NumIOQueues: 2})
	require.NoError(t, err)
	defer sub.Close()
	require.Equal(t, first.Addr(), sub.Controller().Addr, "what it resolved to")
	require.Equal(t, [2]int{3, 0}, connected(), "all queues go to the same controller")

	again, err := testHost.Connect(within(t, 10*time.Second), to, &Options{NumIOQueues: 2})
	require.NoError(t, err)
	defer again.Close()
	require.Equal(t, second.Addr(), again.Controller().Addr, "the name has moved")
	require.Equal(t, [2]int{3, 3}, connected())

	// Also when one call tries several controllers.
	first.SetFaults(onConnect(0, func(int) nvme.Status { return fabrics.StatusConnectControllerBusy.Status() }))
	elsewhere, err := testHost.Connect(within(t, 10*time.Second), to, &Options{NumIOQueues: 2})
	require.NoError(t, err)
	defer elsewhere.Close()
	require.Equal(t, second.Addr(), elsewhere.Controller().Addr)
	require.Equal(t, [2]int{4, 6}, connected())
}

func TestF22SourceAddressOfDiscovery(t *testing.T) {
	from := make(chan string, 10)
	note := nvmetest.Faults{OnConn: func(c *nvmetest.Conn) { from <- c.RemoteAddr().(*net.TCPAddr).IP.String() }}
	behind := start(t, subsystems(nvmetest.ModeNVMET, "b", 2))
	behind.SetFaults(note)
	c := subsystems(nvmetest.ModeNVMET, "a", 2)
	c.Referrals = []nvmetest.Referral{{Addr: behind.Addr()}}
	tgt := start(t, c)
	tgt.SetFaults(note)
	_, err := testHost.DiscoverAll(within(t, 10*time.Second), Target{Addr: tgt.Addr(), HostTraddr: "127.0.0.7"}, nil)
	require.NoError(t, err)
	require.Len(t, from, 2)
	require.Equal(t, "127.0.0.7", <-from)
	require.Equal(t, "127.0.0.7", <-from, "of a referral too")
}
