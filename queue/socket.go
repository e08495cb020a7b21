package queue

import (
	"errors"
	"fmt"
	"syscall"
)

// Control runs f with the descriptor of the queue's socket, on the queue's goroutine, for options and
// figures of the kernel: f must not block, and must neither read, write nor keep the descriptor. It returns
// an error that wraps errors.ErrUnsupported for a connection without a socket of its own, and what ended the
// queue when it has ended. It waits for the queue, so it must not be called from a completion or a Feed.
func (q *Queue) Control(f func(fd uintptr)) error {
	done := make(chan error, 1)
	posted := q.post(func(e *engine) {
		if e.fatal != nil { // the socket may be closed by now
			done <- e.fatal
			return
		}
		s, ok := e.drv.driver.(socket)
		if !ok {
			done <- errors.ErrUnsupported
			return
		}
		done <- s.control(f)
	})
	if !posted {
		return q.Err()
	}
	return <-done
}

// socket is a driver that has one.
type socket interface {
	control(f func(fd uintptr)) error
}

func (d *connDriver) control(f func(fd uintptr)) error {
	sc, ok := d.conn.(syscall.Conn)
	if !ok {
		return fmt.Errorf("a %T has no socket of its own: %w", d.conn, errors.ErrUnsupported)
	}
	rc, err := sc.SyscallConn()
	if err != nil {
		return err
	}
	return rc.Control(f)
}
