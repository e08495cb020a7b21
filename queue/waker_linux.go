package queue

import (
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// waker is an eventfd that other goroutines may ring, even while its owner closes it: a number that
// has been closed may already be somebody else's file.
type waker struct {
	fd     int
	users  atomic.Int32
	closed atomic.Bool
}

func (w *waker) open() (err error) {
	w.fd, err = unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	return err
}

var one = [8]byte{1} // a counter of 1; the byte order does not matter to whom only waits

func (w *waker) wake() {
	w.users.Add(1)
	if !w.closed.Load() {
		unix.Write(w.fd, one[:])
	}
	w.users.Add(-1)
}

// drain makes the next wait sleep again.
func (w *waker) drain() {
	var b [8]byte
	unix.Read(w.fd, b[:])
}

func (w *waker) close() error {
	w.closed.Store(true)
	for w.users.Load() != 0 {
		runtime.Gosched()
	}
	return unix.Close(w.fd)
}
