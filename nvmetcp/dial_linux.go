package nvmetcp

import (
	"fmt"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// option is an integer socket option.
type option struct {
	name              string
	level, opt, value int
}

func (o option) set(fd uintptr) error {
	return os.NewSyscallError(o.name+" "+strconv.Itoa(o.value), unix.SetsockoptInt(int(fd), o.level, o.opt, o.value))
}

// prepare returns the part of a net.Dialer that sets up a socket before it connects: buffers, because
// the handshake tells the target how large a window there may be, and what the first packet needs.
func (s *SocketOptions) prepare(iface string) (func(network, addr string, c syscall.RawConn) error, error) {
	return func(network, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) {
			if iface != "" {
				if err = os.NewSyscallError("SO_BINDTODEVICE "+iface, unix.BindToDevice(int(fd), iface)); err != nil {
					return
				}
			}
			for _, o := range s.early(network) {
				if err = o.set(fd); err != nil {
					return
				}
			}
		}); e != nil {
			return e
		}
		return err
	}, nil
}

func (s *SocketOptions) early(network string) []option {
	tos := option{"IP_TOS", unix.IPPROTO_IP, unix.IP_TOS, s.TOS}
	if network == "tcp6" {
		tos = option{"IPV6_TCLASS", unix.IPPROTO_IPV6, unix.IPV6_TCLASS, s.TOS}
	}
	var asked []option
	for _, o := range []option{
		tos, // before the priority, which it changes
		{"SO_PRIORITY", unix.SOL_SOCKET, unix.SO_PRIORITY, s.Priority},
		{"SO_RCVBUF", unix.SOL_SOCKET, unix.SO_RCVBUF, s.ReceiveBuffer},
		{"SO_SNDBUF", unix.SOL_SOCKET, unix.SO_SNDBUF, s.SendBuffer},
		{"SO_BUSY_POLL", unix.SOL_SOCKET, unix.SO_BUSY_POLL, int((s.BusyPoll + time.Microsecond - 1) / time.Microsecond)},
	} {
		if o.value != 0 {
			asked = append(asked, o)
		}
	}
	return asked
}

// finish sets what would disturb connecting, and says what is not as it was asked for or should be.
func (s *SocketOptions) finish(conn net.Conn) (notes []string, err error) {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errNotTCP
	}
	rc, err := tc.SyscallConn()
	if err != nil {
		return nil, err
	}
	err = rc.Control(func(fd uintptr) {
		if s.UserTimeout > 0 { // set earlier it would bound connecting too, which is DialTimeout's affair
			o := option{"TCP_USER_TIMEOUT", unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT, int(min(max(s.UserTimeout.Milliseconds(), 1), math.MaxInt32))}
			if err := o.set(fd); err != nil {
				notes = append(notes, err.Error()+": what is sent into a path that swallows it is noticed late")
			}
		}
		for _, b := range []struct {
			name, sysctl string
			opt, want    int
		}{
			{"SO_RCVBUF", "net.core.rmem_max", unix.SO_RCVBUF, s.ReceiveBuffer},
			{"SO_SNDBUF", "net.core.wmem_max", unix.SO_SNDBUF, s.SendBuffer},
		} {
			if got, err := unix.GetsockoptInt(int(fd), unix.SOL_SOCKET, b.opt); err == nil && b.want > got/2 { // the kernel doubles it
				notes = append(notes, fmt.Sprintf("%s: %d bytes instead of %d; %s is the limit", b.name, got/2, b.want, b.sysctl))
			}
		}
		if cc, err := congestion(fd); err == nil && strings.HasPrefix(cc, "bbr") && loopbackPath(conn) {
			notes = append(notes, "congestion control "+cc+" paces loopback to less than half of what cubic or reno do, at the target's end for reads (sysctl net.ipv4.tcp_congestion_control)")
		}
	})
	return notes, err
}

// congestion is the name of a socket's congestion control.
func congestion(fd uintptr) (string, error) {
	name, err := unix.GetsockoptString(int(fd), unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	return name, os.NewSyscallError("TCP_CONGESTION", err)
}
