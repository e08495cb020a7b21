package nvmetcp

import (
	"os"
	"time"

	"golang.org/x/sys/unix"
)

func (t *TCPInfo) ask(fd uintptr) error {
	i, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
	if err != nil {
		return os.NewSyscallError("TCP_INFO", err)
	}
	us := func(n uint32) time.Duration { return time.Duration(n) * time.Microsecond }
	t.RTT, t.RTTVar, t.RTO = us(i.Rtt), us(i.Rttvar), us(i.Rto)
	if i.Min_rtt != ^uint32(0) { // not measured
		t.MinRTT = us(i.Min_rtt)
	}
	t.PMTU, t.SendMSS, t.ReceiveMSS, t.Window = int(i.Pmtu), int(i.Snd_mss), int(i.Rcv_mss), int(i.Snd_cwnd)
	t.Retransmits, t.OutOfOrder = uint64(i.Total_retrans), uint64(i.Rcv_ooopack)
	t.Congestion, err = congestion(fd)
	return err
}
