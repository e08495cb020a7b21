//go:build !race

package nvmetest

import (
	"io"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tryPath reads from a socket and writes to it without waiting where that can be avoided. Its calls
// do not block, so they need not tell the scheduler. One goroutine reads and one writes at a time.
type tryPath struct {
	raw syscall.RawConn

	in      []byte
	spin    time.Duration
	inN     int
	inErrno syscall.Errno
	recv    func(fd uintptr) bool

	iov      []unix.Iovec
	outN     int
	outErrno syscall.Errno
	send     func(fd uintptr) bool
}

// maxIov is how many elements one vectored write takes.
const maxIov = 1024

func newTryPath(nc *net.TCPConn) *tryPath {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil
	}
	t := &tryPath{raw: raw}
	t.recv = t.recvNow
	t.send = t.sendNow
	return t
}

// recvNow takes what has come, and looks again until the time to spin is over. false makes the caller
// wait in the poller and come back.
func (t *tryPath) recvNow(fd uintptr) bool {
	var since time.Time
	for {
		n, _, errno := syscall.RawSyscall6(unix.SYS_RECVFROM, fd, uintptr(unsafe.Pointer(&t.in[0])), uintptr(len(t.in)), unix.MSG_DONTWAIT, 0, 0)
		switch errno {
		case unix.EINTR:
			continue
		case unix.EAGAIN:
			if t.spin == 0 {
				return false
			}
			if since.IsZero() {
				since = time.Now()
			} else if time.Since(since) > t.spin {
				return false
			}
			continue
		}
		t.inN, t.inErrno = int(n), errno
		return true
	}
}

// read is [net.Conn.Read] that looks for so long before it sleeps.
func (t *tryPath) read(p []byte, spin time.Duration) (int, error) {
	t.in, t.spin = p, spin
	err := t.raw.Read(t.recv)
	t.in = nil
	switch {
	case err != nil:
		return 0, err
	case t.inErrno != 0:
		return 0, os.NewSyscallError("recvfrom", t.inErrno)
	case t.inN == 0:
		return 0, io.EOF
	}
	return t.inN, nil
}

func (t *tryPath) sendNow(fd uintptr) bool {
	for {
		n, _, errno := syscall.RawSyscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&t.iov[0])), uintptr(len(t.iov)))
		if errno == unix.EINTR {
			continue
		}
		t.outN, t.outErrno = int(n), errno
		return true // never wait
	}
}

// write sends as much of a batch as the socket takes, and reports whether that was all. Errors are
// for the blocking write to find.
func (t *tryPath) write(b *batch) bool {
	for len(b.rest) > 0 {
		t.iov = t.iov[:0]
		total := 0
		for _, p := range b.rest[:min(len(b.rest), maxIov)] {
			v := unix.Iovec{Base: &p[0]}
			v.SetLen(len(p))
			t.iov = append(t.iov, v)
			total += len(p)
		}
		if err := t.raw.Write(t.send); err != nil || t.outErrno != 0 {
			return false
		}
		b.consume(t.outN)
		if t.outN < total {
			return false
		}
	}
	return true
}
