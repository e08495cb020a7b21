package capture

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"
	"unsafe"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// TestLive captures what our host and our target say to each other on the loopback interface, and
// has it decoded by this package and by tshark.
func TestLive(t *testing.T) {
	needTshark(t)
	for _, mode := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		for _, dgst := range []pdu.Digests{{}, {Header: true, Data: true}} {
			t.Run(fmt.Sprintf("%s/%s", mode, dgst), func(t *testing.T) {
				target, err := nvmetest.Start(nvmetest.Config{Mode: mode})
				require.NoError(t, err)
				defer target.Close()
				port := netip.MustParseAddrPort(target.Addr()).Port()
				file := captureLoopback(t, port, func() { useTarget(t, target, dgst) })
				require.Empty(t, target.Violations())
				compareLive(t, file, port, dgst)
			})
		}
	}
}

const liveBytes = 1 << 20

// useTarget connects, writes, reads the same back and leaves.
func useTarget(t *testing.T, target *nvmetest.Target, dgst pdu.Digests) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	host := nvmetcp.UniqueHost()
	sub, err := host.Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, &nvmetcp.Options{
		NumIOQueues: 2, HeaderDigest: dgst.Header, DataDigest: dgst.Data,
	})
	require.NoError(t, err)
	defer sub.Close()
	ns, err := sub.Namespace(ctx, 1)
	require.NoError(t, err)
	sent, got := make([]byte, liveBytes), make([]byte, liveBytes)
	_, err = io.ReadFull(rand.NewChaCha8([32]byte{1}), sent)
	require.NoError(t, err)
	for _, part := range [][2]int{{0, 512}, {512, 65536}, {65536, liveBytes}} { // in the capsule, and by R2T
		_, err = ns.WriteAt(sent[part[0]:part[1]], int64(part[0]))
		require.NoError(t, err)
	}
	_, err = ns.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(sent, got))
}

// compareLive compares the two decoders, and looks whether the data in the capture is what was moved.
func compareLive(t *testing.T, file []byte, port uint16, dgst pdu.Digests) {
	c := Config{Ports: []uint16{port}}
	ours, theirs := byDirection(byUs(t, c, file)), byDirection(byTshark(t, file, int(port)))
	same(t, lenient(theirs, ours), ours)

	type key struct {
		n   int
		cid uint16
	}
	sqes := map[key]*nvme.SQE{}
	var wrote, read []byte // by place on the namespace
	place := func(to *[]byte, s *nvme.SQE, off uint32, data []byte) {
		at := int(s.CDW10)*512 + int(off)
		*to = append(*to, make([]byte, max(0, at+len(data)-len(*to)))...)
		copy((*to)[at:], data)
	}
	conns := map[int]bool{}
	for p, err := range c.Read(bytes.NewReader(file)) {
		require.NoError(t, err)
		require.False(t, p.BadHeader || p.BadData)
		if p.Type != pdu.TypeICReq && p.Type != pdu.TypeICResp {
			require.Equal(t, dgst.Header, p.Flags.Has(pdu.FlagHDGST))
			require.Equal(t, dgst.Data && len(p.Data) > 0, p.Flags.Has(pdu.FlagDDGST))
		}
		conns[p.Conn.N] = true
		switch p.Type {
		case pdu.TypeCapsuleCmd:
			sqes[key{p.Conn.N, p.SQE.CID}] = p.SQE
			if p.Conn.N > 1 && p.SQE.Opcode == nvme.OpWrite {
				place(&wrote, p.SQE, 0, p.Data)
			}
		case pdu.TypeH2CData, pdu.TypeC2HData:
			var d pdu.Data
			require.NoError(t, d.Decode(p.Header))
			s := sqes[key{p.Conn.N, d.CCCID}]
			require.NotNil(t, s)
			if p.Conn.N > 1 && s.Opcode == nvme.OpWrite {
				place(&wrote, s, d.DATAO, p.Data)
			} else if p.Conn.N > 1 && s.Opcode == nvme.OpRead {
				place(&read, s, d.DATAO, p.Data)
			}
		}
	}
	require.Len(t, conns, 3, "one admin and two I/O queues")
	require.Len(t, wrote, liveBytes)
	require.True(t, bytes.Equal(wrote, read))
}

// captureLoopback returns a pcap of what f caused on a TCP port of the loopback interface.
func captureLoopback(t *testing.T, port uint16, f func()) []byte {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if errors.Is(err, unix.EPERM) || errors.Is(err, unix.EAFNOSUPPORT) {
		t.Skipf("no packet socket (it takes root or CAP_NET_RAW): %v", err)
	}
	require.NoError(t, err)
	defer unix.Close(fd)
	lo, err := net.InterfaceByName("lo")
	require.NoError(t, err)

	// Ethernet, IPv4, TCP, and the port on either side.
	p := uint32(port)
	filter := []unix.SockFilter{
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_ABS, K: 12},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.ETH_P_IP, Jf: 8},
		{Code: unix.BPF_LD | unix.BPF_B | unix.BPF_ABS, K: 23},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: unix.IPPROTO_TCP, Jf: 6},
		{Code: unix.BPF_LDX | unix.BPF_B | unix.BPF_MSH, K: 14},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 14},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: p, Jt: 2},
		{Code: unix.BPF_LD | unix.BPF_H | unix.BPF_IND, K: 16},
		{Code: unix.BPF_JMP | unix.BPF_JEQ | unix.BPF_K, K: p, Jf: 1},
		{Code: unix.BPF_RET | unix.BPF_K, K: 1 << 18},
		{Code: unix.BPF_RET | unix.BPF_K},
	}
	prog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	require.NoError(t, unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &prog))
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)) // lo shows each packet twice
	require.NoError(t, unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 256<<20))
	require.NoError(t, unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 300_000}))
	all := uint16(unix.ETH_P_ALL)
	require.NoError(t, unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all<<8 | all>>8, Ifindex: lo.Index}))

	f()

	var file bytes.Buffer
	w := pcapgo.NewWriter(&file)
	require.NoError(t, w.WriteFileHeader(1<<18, layers.LinkTypeEthernet))
	buf := make([]byte, 1<<18)
	for {
		n, _, err := unix.Recvfrom(fd, buf, unix.MSG_TRUNC)
		if errors.Is(err, unix.EAGAIN) { // quiet
			break
		}
		if errors.Is(err, unix.EINTR) {
			continue
		}
		require.NoError(t, err)
		require.LessOrEqual(t, n, len(buf))
		ci := gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: n, Length: n}
		require.NoError(t, w.WritePacket(ci, slices.Clone(buf[:n])))
	}
	var stats unix.TpacketStats
	size := uint32(unsafe.Sizeof(stats))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_PACKET, unix.PACKET_STATISTICS,
		uintptr(unsafe.Pointer(&stats)), uintptr(unsafe.Pointer(&size)), 0)
	require.Zero(t, errno)
	require.Zero(t, stats.Drops, "the kernel dropped packets of the capture")
	return file.Bytes()
}
