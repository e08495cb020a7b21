//go:build !race

package nvmetest

import (
	"net"
	"syscall"
	"unsafe"

	"golang.org/x/sys/unix"
)

// tryPath writes to a socket without waiting for it.
type tryPath struct {
	raw   syscall.RawConn
	iov   []unix.Iovec
	n     int
	errno syscall.Errno
	once  func(fd uintptr) bool
}

// maxIov is how many elements one vectored write takes.
const maxIov = 1024

func newTryPath(nc *net.TCPConn) *tryPath {
	raw, err := nc.SyscallConn()
	if err != nil {
		return nil
	}
	t := &tryPath{raw: raw}
	t.once = func(fd uintptr) bool {
		n, _, errno := syscall.Syscall(unix.SYS_WRITEV, fd, uintptr(unsafe.Pointer(&t.iov[0])), uintptr(len(t.iov)))
		t.n, t.errno = int(n), errno
		return true // never wait
	}
	return t
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
		if err := t.raw.Write(t.once); err != nil || t.errno != 0 {
			return false
		}
		b.consume(t.n)
		if t.n < total {
			return false
		}
	}
	return true
}
