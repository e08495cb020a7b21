package raw

import (
	"errors"
	"io"
	"net"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// socket is a connected stream socket without Go's poller in between. It belongs to one goroutine.
type socket struct {
	fd    int
	spin  time.Duration // how long to poll before sleeping; 0: sleep in the call itself, less: never sleep
	calls int64         // system calls made
	// stop is asked while nothing can be sent or received by polling; true ends that with errStopped.
	stop func() bool
}

var errStopped = errors.New("stopped")

// take makes a socket of conn, which is closed.
func take(conn net.Conn, spin time.Duration, stop func() bool) (*socket, error) {
	defer conn.Close()
	rc, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return nil, err
	}
	s := &socket{fd: -1, spin: spin, stop: stop}
	var dupErr error
	if err := rc.Control(func(fd uintptr) { s.fd, dupErr = unix.FcntlInt(fd, unix.F_DUPFD_CLOEXEC, 0) }); err != nil {
		return nil, err
	}
	if dupErr != nil {
		return nil, dupErr
	}
	if err := unix.SetNonblock(s.fd, spin != 0); err != nil {
		unix.Close(s.fd)
		return nil, err
	}
	return s, nil
}

func (s *socket) close() { unix.Close(s.fd) }

// read receives some bytes.
func (s *socket) read(b []byte) (int, error) { return s.move(unix.SYS_READ, b) }

// readFull fills b.
func (s *socket) readFull(b []byte) error {
	for len(b) > 0 {
		n, err := s.read(b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// writeFull sends all of b.
func (s *socket) writeFull(b []byte) error {
	for len(b) > 0 {
		n, err := s.move(unix.SYS_WRITE, b)
		if err != nil {
			return err
		}
		b = b[n:]
	}
	return nil
}

// stopEvery is how often a socket that sleeps after polling asks whether it is to stop.
const stopEvery = 100 * time.Millisecond

// move makes the system call until it moves something. A call that may sleep goes through Go's
// scheduler, one that never does need not.
func (s *socket) move(trap uintptr, b []byte) (int, error) {
	var idle time.Time // since when there was nothing
	for {
		var (
			n uintptr
			e syscall.Errno
		)
		s.calls++
		if s.spin == 0 {
			n, _, e = unix.Syscall(trap, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		} else {
			n, _, e = unix.RawSyscall(trap, uintptr(s.fd), uintptr(unsafe.Pointer(&b[0])), uintptr(len(b)))
		}
		switch {
		case e == 0 && n == 0 && trap == unix.SYS_READ:
			return 0, io.EOF
		case e == 0:
			return int(n), nil
		case e != unix.EAGAIN && e != unix.EINTR:
			return 0, e
		}
		if s.stop() {
			return 0, errStopped
		}
		if s.spin <= 0 {
			continue
		}
		if idle.IsZero() {
			idle = time.Now()
		} else if time.Since(idle) > s.spin {
			if err := s.sleep(trap); err != nil {
				return 0, err
			}
			idle = time.Time{}
		}
	}
}

// sleep waits until the call may move something, though not for long.
func (s *socket) sleep(trap uintptr) error {
	p := []unix.PollFd{{Fd: int32(s.fd), Events: unix.POLLIN}}
	if trap == unix.SYS_WRITE {
		p[0].Events = unix.POLLOUT
	}
	s.calls++
	if _, err := unix.Poll(p, int(stopEvery/time.Millisecond)); err != nil && err != unix.EINTR {
		return err
	}
	return nil
}
