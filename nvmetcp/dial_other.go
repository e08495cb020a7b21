//go:build !linux

package nvmetcp

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"syscall"
)

// prepare refuses what has no equal here.
func (s *SocketOptions) prepare(iface string) (func(network, addr string, c syscall.RawConn) error, error) {
	if iface != "" {
		return nil, errors.New("HostIface is not supported on " + runtime.GOOS + "; use HostTraddr")
	}
	for name, asked := range map[string]bool{"TOS": s.TOS != 0, "Priority": s.Priority != 0, "BusyPoll": s.BusyPoll != 0} {
		if asked {
			return nil, fmt.Errorf("Options.Socket.%s is not supported on %s", name, runtime.GOOS)
		}
	}
	return nil, nil
}

// finish sets the buffers, which is what there is everywhere.
func (s *SocketOptions) finish(conn net.Conn) (notes []string, err error) {
	tc, ok := conn.(*net.TCPConn)
	if !ok {
		return nil, errNotTCP
	}
	if s.ReceiveBuffer > 0 {
		err = tc.SetReadBuffer(s.ReceiveBuffer)
	}
	if s.SendBuffer > 0 && err == nil {
		err = tc.SetWriteBuffer(s.SendBuffer)
	}
	return nil, err
}
