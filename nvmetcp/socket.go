package nvmetcp

import (
	"errors"
	"fmt"
	"math"
	"net"
	"time"
)

// SocketOptions are options of the queues' TCP sockets. The zero value is right for most networks; this is
// where it is said of each option why it is set, or is not.
//
//   - TCP_NODELAY is on, as Go has it by default: a capsule must not wait for the acknowledgement of the one
//     before it.
//   - TCP keepalive is on. NVMe's Keep Alive watches the admin queue only, and each connection may take
//     another way through the network (ECMP, bonds) or through a firewall that forgets idle ones. An idle
//     connection is probed after KATO, and given up after about as long again. It costs a segment per KATO
//     and idle queue. Without KATO it is as Go has it: 15 s, every 15 s, nine times.
//   - TCP_QUICKACK is left out: in measurements it made no difference or a bad one. The answer to a command
//     carries the acknowledgement, and a long read has many segments, which are acknowledged at once.
//   - SO_RCVLOWAT is left out for the same reason.
//   - The congestion control is the system's (net.ipv4.tcp_congestion_control). Bbr on loopback is noted in
//     ControllerInfo, since it paces that to less than half.
type SocketOptions struct {
	// TOS is the IP type of service of what is sent, or the traffic class of IPv6: four times the DSCP.
	// nvme connect calls it --tos. Default 0, the network's best effort. Linux only.
	TOS int
	// Priority is SO_PRIORITY, which chooses a class of the interface's queueing discipline. Above 6 it
	// needs CAP_NET_ADMIN. Default 0: what the kernel derives from TOS. Linux only.
	Priority int
	// UserTimeout is TCP_USER_TIMEOUT: how long what is sent may stay unacknowledged, or find no room at the
	// target, before the connection is given up. Without it that is a quarter of an hour. It matters where
	// Keep Alive gets through and data does not: a path of several that swallows packets, or only large ones
	// (MTU). Default: twice Options.KeepAlive, when the target has certainly given up too, at least 1 s;
	// without Keep Alive Options.CommandTimeout; without that none. Negative: none. Linux only.
	UserTimeout time.Duration
	// ReceiveBuffer and SendBuffer are SO_RCVBUF and SO_SNDBUF in bytes, at most 64 MiB. Default 0: the kernel
	// adjusts them by itself, to net.ipv4.tcp_rmem and tcp_wmem at most, which was never worse in
	// measurements; a fixed 512 KiB cost up to 12 % with large commands. Fixed ones may pay where the
	// bandwidth-delay product is larger than those limits. What the system grants less is noted in
	// ControllerInfo.
	ReceiveBuffer, SendBuffer int
	// BusyPoll is SO_BUSY_POLL: how long the kernel polls the network interface's receive queue before a
	// receive finds nothing. A queue never blocks in a receive, so any value means one look each time. It
	// saves the wait for an interrupt on interfaces whose drivers can, costs CPU time, and does nothing for
	// loopback and virtual interfaces. More than net.core.busy_read needs CAP_NET_ADMIN. Default 0: off.
	// Linux only.
	BusyPoll time.Duration
}

const (
	maxSocketBuffer = 64 << 20 // 200 Gbit/s for 2.5 ms
	minUserTimeout  = time.Second
	maxPriority     = math.MaxInt32
)

// resolve puts the defaults in place, or says what is wrong.
func (s *SocketOptions) resolve(keepAlive, command time.Duration) error {
	if s.UserTimeout == 0 {
		switch {
		case keepAlive > 0:
			s.UserTimeout = max(2*keepAlive, minUserTimeout)
		case command > 0:
			s.UserTimeout = max(command, minUserTimeout)
		}
	}
	switch {
	case s.TOS < 0 || s.TOS > 255 || s.TOS&3 != 0:
		return fmt.Errorf("nvmetcp: Options.Socket.TOS is %d, want four times a DSCP: 0 to 252; the two low bits are not for applications (ECN)", s.TOS)
	case s.Priority < 0 || s.Priority > maxPriority:
		return fmt.Errorf("nvmetcp: Options.Socket.Priority is %d, want 0 to %d", s.Priority, maxPriority)
	case s.BusyPoll < 0 || s.BusyPoll > time.Second:
		return fmt.Errorf("nvmetcp: Options.Socket.BusyPoll is %v, want 0 to 1 s", s.BusyPoll)
	}
	for name, n := range map[string]int{"ReceiveBuffer": s.ReceiveBuffer, "SendBuffer": s.SendBuffer} {
		if n < 0 || n > maxSocketBuffer {
			return fmt.Errorf("nvmetcp: Options.Socket.%s is %d, want 0 to %d bytes", name, n, maxSocketBuffer)
		}
	}
	return nil
}

// keepAliveConfig makes an idle connection known to be lost after about twice kato.
func keepAliveConfig(kato time.Duration) net.KeepAliveConfig {
	const probes = 4
	if kato <= 0 {
		return net.KeepAliveConfig{Enable: true}
	}
	return net.KeepAliveConfig{ // which knows whole seconds only, on most systems
		Enable: true, Idle: max(kato, time.Second), Interval: max(kato/probes, time.Second), Count: probes,
	}
}

// loopbackPath reports whether a connection does not leave this machine.
func loopbackPath(conn net.Conn) bool {
	local, ok1 := conn.LocalAddr().(*net.TCPAddr)
	remote, ok2 := conn.RemoteAddr().(*net.TCPAddr)
	return ok1 && ok2 && (remote.IP.IsLoopback() || remote.IP.Equal(local.IP))
}

var errNotTCP = errors.New("not a TCP connection")
