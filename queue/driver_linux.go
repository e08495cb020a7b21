package queue

import (
	"fmt"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// open makes the driver that cfg asks for. It runs on the queue's own thread, since an io_uring
// belongs to the thread that made it. On success the driver owns the connection.
func open(conn net.Conn, cfg *Config) (opened, error) {
	if cfg.Driver == DriverConn {
		return openConn(conn, "net.Conn: asked for"), nil
	}
	switch cfg.Driver {
	case DriverAuto, DriverEpoll, DriverURing:
	default:
		return opened{}, fmt.Errorf("there is no driver %q: use %q, %q, %q, or none to choose", cfg.Driver, DriverURing, DriverEpoll, DriverConn)
	}
	fd, err := dupSocket(conn)
	if err != nil {
		if cfg.Driver == DriverAuto {
			return openConn(conn, fmt.Sprintf("net.Conn: %v", err)), nil
		}
		return opened{}, fmt.Errorf("driver %q needs a TCP socket: %w", cfg.Driver, err)
	}
	o, err := openSocket(fd, cfg)
	if err != nil {
		unix.Close(fd)
		if cfg.Driver == DriverAuto {
			return openConn(conn, fmt.Sprintf("net.Conn: epoll cannot be had: %v", err)), nil
		}
		return opened{}, err
	}
	conn.Close() // fd is the same socket, no longer in the hands of Go's poller
	return o, nil
}

func openSocket(fd int, cfg *Config) (opened, error) {
	if cfg.Driver == DriverURing {
		d, notes, err := newURingDriver(fd)
		if err != nil {
			return opened{}, fmt.Errorf("driver %q cannot be had: %w", DriverURing, err)
		}
		return opened{driver: d, kind: DriverURing, notes: append([]string{"io_uring: asked for"}, notes...), spins: true}, nil
	}
	d, err := newEpollDriver(fd)
	if err != nil {
		return opened{}, err
	}
	notes := []string{"epoll: asked for"}
	if cfg.Driver == DriverAuto {
		notes[0] = "epoll: plain system calls were the faster choice in measurements"
	}
	return opened{driver: d, kind: DriverEpoll, notes: notes, spins: true}, nil
}

// dupSocket returns a descriptor of conn's stream socket that Go's poller does not know.
func dupSocket(conn net.Conn) (int, error) {
	sc, ok := conn.(syscall.Conn)
	if !ok {
		return -1, fmt.Errorf("a %T has no socket of its own", conn)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return -1, err
	}
	fd := -1
	var dupErr error
	if err := rc.Control(func(s uintptr) {
		t, err := unix.GetsockoptInt(int(s), unix.SOL_SOCKET, unix.SO_TYPE)
		if err != nil || t != unix.SOCK_STREAM {
			dupErr = fmt.Errorf("a %T is not a stream socket", conn)
			return
		}
		fd, dupErr = unix.FcntlInt(s, unix.F_DUPFD_CLOEXEC, 0)
	}); err != nil {
		return -1, err
	}
	return fd, dupErr
}

// pin moves the calling thread to a CPU. The thread ends with the queue, so nothing is restored.
func pin(cpu int) error {
	var set unix.CPUSet
	if cpu < 0 {
		return unix.EINVAL
	}
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}
