package uring

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

var errClosed = errors.New("uring: the ring is closed")

// Enter submits everything prepared and waits until at least want completions can be taken or timeout has passed:
// below 0 there is no limit, at 0 it does not wait but still lets the kernel finish what is ready. Completions left
// from earlier calls count. It returns nil when the time ran out, too; when the kernel would not take a part of the
// submissions before completions have been taken, it returns nil early, and the next call submits the rest.
//
// A call that may wait tells the Go scheduler, one that may not doesn't (which is 0.3 µs cheaper).
func (r *Ring) Enter(want int, timeout time.Duration) error {
	if r.closed {
		return errClosed
	}
	r.sqTail.Store(r.sqPos)
	r.cqHead.Store(r.cqPos)
	var (
		blocking = want > 0 && timeout != 0
		enough   = uint32(min(max(want, 0), len(r.cqes)))
		left     = timeout
		start    time.Time
	)
	if blocking && timeout > 0 {
		start = time.Now()
	}
	for first := true; ; first = false {
		submit := r.sqPos - r.sqHead.Load()
		wait := blocking && r.cqTail.Load()-r.cqPos < enough
		if wait && timeout > 0 && !first {
			left = timeout - time.Since(start)
			wait = left > 0
		}
		if submit == 0 && !wait && (!first || blocking) {
			return nil
		}
		var n int
		var errno unix.Errno
		if wait {
			n, errno = r.enterWait(submit, enough, left)
		} else {
			n, errno = r.enterNow(submit)
		}
		switch errno {
		case 0:
			if n == 0 && submit > 0 {
				return fmt.Errorf("uring: io_uring_enter took none of %d submissions", submit)
			}
		case unix.ETIME: // only after submit == 0
			return nil
		case unix.EINTR:
		case unix.EAGAIN, unix.EBUSY: // short of memory, or too many completions waiting for us
			if r.cqTail.Load() != r.cqPos {
				return nil
			}
			return enterError(errno)
		default:
			return enterError(errno)
		}
	}
}

// enterNow submits and runs the deferred work, without waiting.
func (r *Ring) enterNow(submit uint32) (int, unix.Errno) {
	n, _, errno := unix.RawSyscall6(unix.SYS_IO_URING_ENTER, r.enterFd, uintptr(submit), 0,
		r.enterFlags|_IORING_ENTER_GETEVENTS, 0, 0)
	return int(n), errno
}

// enterWait submits and waits for enough completions, or until left has passed if that is not negative. After a
// submission the kernel hides why it stopped waiting.
func (r *Ring) enterWait(submit, enough uint32, left time.Duration) (int, unix.Errno) {
	r.arg.ts = 0
	if left >= 0 {
		r.ts = kernelTimespec{sec: int64(left / time.Second), nsec: int64(left % time.Second)}
		r.arg.ts = uint64(uintptr(unsafe.Pointer(&r.ts)))
	}
	n, _, errno := unix.Syscall6(unix.SYS_IO_URING_ENTER, r.enterFd, uintptr(submit), uintptr(enough),
		r.enterFlags|_IORING_ENTER_GETEVENTS|_IORING_ENTER_EXT_ARG,
		uintptr(unsafe.Pointer(&r.arg)), unsafe.Sizeof(r.arg))
	return int(n), errno
}

// Next takes the oldest completion, or returns false when there is none: then, Enter looks for more. It makes no
// system call.
func (r *Ring) Next() (CQE, bool) {
	if r.closed {
		return CQE{}, false
	}
	if r.cqPos == r.cqTail.Load() {
		return CQE{}, false
	}
	c := r.cqes[r.cqPos&uint32(len(r.cqes)-1)]
	r.cqPos++
	if c.Flags&CQEMore == 0 {
		r.done++
	}
	return c, true
}
