package nvmetcp

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
)

func TestF22SourceInterface(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	to := at(tgt)
	to.HostIface = "lo"
	sub, err := testHost.Connect(t.Context(), to, &Options{NumIOQueues: 1})
	if errors.Is(err, syscall.EPERM) {
		require.ErrorContains(t, err, "CAP_NET_RAW")
		t.Skip("binding to an interface is not permitted here")
	}
	require.NoError(t, err)
	require.NoError(t, sub.Close())

	to.HostIface = "nosuchif0"
	_, err = testHost.Connect(t.Context(), to, nil)
	require.ErrorContains(t, err, "nosuchif0 is not an interface of this machine")
}

// socketOption reads an option of the socket of a queue.
func socketOption(t *testing.T, q *queue.Queue, level, opt int) (value int) {
	t.Helper()
	var err error
	require.NoError(t, q.Control(func(fd uintptr) { value, err = unix.GetsockoptInt(int(fd), level, opt) }))
	require.NoError(t, err)
	return value
}

// The kernel has what the options say, on the socket of each queue and with each driver.
func TestSocketOptionsAreSet(t *testing.T) {
	const buffer = 64 << 10 // less than any system's limit
	type socketopt struct{ level, opt int }
	names := map[string]socketopt{
		"TCP_NODELAY":      {unix.IPPROTO_TCP, unix.TCP_NODELAY},
		"TCP_USER_TIMEOUT": {unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT},
		"SO_KEEPALIVE":     {unix.SOL_SOCKET, unix.SO_KEEPALIVE},
		"TCP_KEEPIDLE":     {unix.IPPROTO_TCP, unix.TCP_KEEPIDLE},
		"TCP_KEEPINTVL":    {unix.IPPROTO_TCP, unix.TCP_KEEPINTVL},
		"TCP_KEEPCNT":      {unix.IPPROTO_TCP, unix.TCP_KEEPCNT},
		"IP_TOS":           {unix.IPPROTO_IP, unix.IP_TOS},
		"SO_PRIORITY":      {unix.SOL_SOCKET, unix.SO_PRIORITY},
		"SO_RCVBUF":        {unix.SOL_SOCKET, unix.SO_RCVBUF},
		"SO_SNDBUF":        {unix.SOL_SOCKET, unix.SO_SNDBUF},
	}
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	for name, c := range map[string]struct {
		o    Options
		want map[string]int
	}{
		"default": {Options{}, map[string]int{
			"TCP_NODELAY": 1, "SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 5, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 4,
			"TCP_USER_TIMEOUT": 10000, "IP_TOS": 0, "SO_PRIORITY": 0,
		}},
		"without keep alive": {Options{KeepAlive: -1, CommandTimeout: 12 * time.Second}, map[string]int{
			"SO_KEEPALIVE": 1, "TCP_KEEPIDLE": 15, "TCP_KEEPINTVL": 15, "TCP_KEEPCNT": 9, "TCP_USER_TIMEOUT": 12000,
		}},
		"all": {
			Options{Socket: SocketOptions{TOS: 104, Priority: 5, UserTimeout: 1234 * time.Millisecond, ReceiveBuffer: buffer, SendBuffer: buffer}},
			map[string]int{"TCP_USER_TIMEOUT": 1234, "IP_TOS": 104, "SO_PRIORITY": 5, "SO_RCVBUF": 2 * buffer, "SO_SNDBUF": 2 * buffer},
		},
		"no user timeout": {Options{Socket: SocketOptions{UserTimeout: -1}}, map[string]int{"TCP_USER_TIMEOUT": 0}},
	} {
		for _, d := range drivers() {
			c.o.Driver, c.o.NumIOQueues = d, 1
			sub := dial(t, tgt, &c.o)
			for _, q := range sub.ctrl.queues() {
				for opt, want := range c.want {
					require.Equal(t, want, socketOption(t, q, names[opt].level, names[opt].opt), "%s: %s of queue %d, %s", name, opt, q.Info().QID, d)
				}
			}
			require.NoError(t, sub.Close())
		}
	}
}

func TestSocketOptionsIPv6(t *testing.T) {
	c := disk(nvmetest.ModeNVMET, 512, content(1<<20))
	c.Addr = "[::1]:0"
	if l, err := net.Listen("tcp", c.Addr); err != nil {
		t.Skipf("no IPv6 here: %v", err)
	} else {
		l.Close()
	}
	sub := dial(t, start(t, c), &Options{NumIOQueues: 1, Socket: SocketOptions{TOS: 0x48}})
	require.Equal(t, 0x48, socketOption(t, sub.ctrl.admin, unix.IPPROTO_IPV6, unix.IPV6_TCLASS))
}

// The system's limits of buffers are not silent.
func TestSocketBufferLimit(t *testing.T) {
	limit, err := os.ReadFile("/proc/sys/net/core/rmem_max")
	if err != nil {
		t.Skipf("the limit is not known: %v", err)
	}
	most, err := strconv.Atoi(strings.TrimSpace(string(limit)))
	require.NoError(t, err)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	for _, want := range []int{most, most + 1, most + most/2, maxSocketBuffer} {
		if want > maxSocketBuffer {
			continue
		}
		c := dial(t, tgt, &Options{NumIOQueues: 1, Socket: SocketOptions{ReceiveBuffer: want}}).Controller()
		for _, i := range []queue.Info{c.Admin, c.Queues[0]} {
			if notes := strings.Join(i.Notes, "\n"); want > most {
				require.Contains(t, notes, fmt.Sprintf("SO_RCVBUF: %d bytes instead of %d; net.core.rmem_max is the limit", most, want))
			} else {
				require.NotContains(t, notes, "SO_RCVBUF")
			}
		}
	}
}

// What needs a privilege says which.
func TestSocketPrivileges(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	for _, c := range []struct {
		s    SocketOptions
		name string
		opt  int
		want int
	}{
		{SocketOptions{Priority: 7}, "Socket.Priority of more than 6", unix.SO_PRIORITY, 7},
		{SocketOptions{BusyPoll: 49500 * time.Nanosecond}, "more Socket.BusyPoll", unix.SO_BUSY_POLL, 50},
	} {
		sub, err := testHost.Connect(t.Context(), at(tgt), &Options{NumIOQueues: 1, Socket: c.s})
		if errors.Is(err, syscall.EPERM) {
			require.ErrorContains(t, err, c.name)
			require.ErrorContains(t, err, "needs CAP_NET_ADMIN")
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, socketOption(t, sub.ctrl.io[0].Queue, unix.SOL_SOCKET, c.opt))
		require.NoError(t, sub.Close())
	}
	// Whoever may do all that never sees the hint.
	err := os.NewSyscallError("SO_PRIORITY 7", syscall.EPERM)
	require.Equal(t, "a Socket.Priority of more than 6 needs CAP_NET_ADMIN", hint(err, "", Target{}))
	require.Empty(t, hint(os.NewSyscallError("connect", syscall.EPERM), "", Target{HostIface: "lo"}))
}

// A path that swallows what is sent is noticed although no command ever times out and nothing is kept alive.
func TestUserTimeout(t *testing.T) {
	if child() == "" {
		t.Log(string(inChild(t, "TestUserTimeout", &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, "netns")))
		return
	}
	setLoopback(t, true)
	for _, d := range drivers() {
		ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20))), &Options{
			NumIOQueues: 1, Driver: d, KeepAlive: -1, CommandTimeout: -1, Socket: SocketOptions{UserTimeout: 500 * time.Millisecond},
		})
		setLoopback(t, false)
		begun := time.Now()
		ended := make(chan error, 1)
		go func() {
			_, err := ns.ReadAt(make([]byte, 4096), 0)
			ended <- err
		}()
		select {
		case err := <-ended:
			require.ErrorIs(t, err, ErrPathLost)
			require.Greater(t, time.Since(begun), 400*time.Millisecond)
		case <-time.After(10 * time.Second):
			t.Error("not noticed")
		}
		setLoopback(t, true)
	}
}

func TestTCPInfo(t *testing.T) {
	data := content(1 << 20)
	for _, d := range drivers() {
		sub := dial(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), &Options{NumIOQueues: 2, Driver: d})
		ns, err := sub.Namespace(t.Context(), 1)
		require.NoError(t, err)
		_, err = ns.ReadAt(make([]byte, len(data)), 0)
		require.NoError(t, err)
		infos, err := sub.TCPInfo()
		require.NoError(t, err)
		require.Len(t, infos, 3)
		system, err := os.ReadFile("/proc/sys/net/ipv4/tcp_congestion_control")
		require.NoError(t, err)
		for i, info := range infos {
			require.EqualValues(t, i, info.QID)
			require.Equal(t, sub.Controller().Addr, info.RemoteAddr)
			require.Positive(t, info.RTT)
			require.Less(t, info.RTT, time.Second)
			require.Positive(t, info.RTO)
			require.Positive(t, info.Window)
			require.Zero(t, info.Retransmits)
			require.GreaterOrEqual(t, info.PMTU, info.SendMSS)
			require.GreaterOrEqual(t, info.SendMSS, 500)
			require.Equal(t, strings.TrimSpace(string(system)), info.Congestion)
		}
		require.NoError(t, sub.Close())
		_, err = sub.TCPInfo()
		require.ErrorIs(t, err, ErrClosed)
	}
}

// Bbr is noted where it does harm: on loopback.
func TestCongestionNote(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	for _, cc := range []string{"reno", "bbr"} {
		d := net.Dialer{Control: func(_, _ string, c syscall.RawConn) error {
			var err error
			c.Control(func(fd uintptr) { err = unix.SetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION, cc) })
			return err
		}}
		conn, err := d.DialContext(t.Context(), "tcp", l.Addr().String())
		if err != nil {
			t.Logf("NOT TESTED with %s: %v", cc, err)
			continue
		}
		notes, err := (&SocketOptions{}).finish(conn)
		require.NoError(t, err)
		if cc == "bbr" {
			require.Len(t, notes, 1)
			require.Contains(t, notes[0], "congestion control bbr paces loopback")
		} else {
			require.Empty(t, notes)
		}
		require.NoError(t, conn.Close())
	}
	local := &net.TCPAddr{IP: net.IPv4(192, 0, 2, 1)}
	require.True(t, loopbackPath(ends{local: local, remote: local}))
	require.True(t, loopbackPath(ends{local: local, remote: &net.TCPAddr{IP: net.IPv6loopback}}))
	require.False(t, loopbackPath(ends{local: local, remote: &net.TCPAddr{IP: net.IPv4(192, 0, 2, 2)}}))
}

// ends is a connection of which only the addresses are known.
type ends struct {
	net.Conn
	local, remote net.Addr
}

func (e ends) LocalAddr() net.Addr  { return e.local }
func (e ends) RemoteAddr() net.Addr { return e.remote }
