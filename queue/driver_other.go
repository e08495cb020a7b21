//go:build !linux

package queue

import (
	"fmt"
	"net"
	"runtime"
)

// open makes the driver that cfg asks for.
func open(conn net.Conn, cfg *Config) (opened, error) {
	switch cfg.Driver {
	case DriverAuto:
		return openConn(conn, "net.Conn: io_uring and epoll exist only on Linux"), nil
	case DriverConn:
		return openConn(conn, "net.Conn: asked for"), nil
	}
	return opened{}, fmt.Errorf("driver %q cannot be had on %s: only %q works there", cfg.Driver, runtime.GOOS, DriverConn)
}

func pin(int) error { return fmt.Errorf("threads cannot be pinned to a CPU on %s", runtime.GOOS) }
