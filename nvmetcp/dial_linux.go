package nvmetcp

import (
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// bindToDevice returns the part of a net.Dialer that keeps a connection on an interface.
func bindToDevice(iface string) (func(network, addr string, c syscall.RawConn) error, error) {
	return func(_, _ string, c syscall.RawConn) error {
		var err error
		if e := c.Control(func(fd uintptr) { err = unix.BindToDevice(int(fd), iface) }); e != nil {
			return e
		}
		return os.NewSyscallError("SO_BINDTODEVICE "+iface, err)
	}, nil
}
