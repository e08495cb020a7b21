package queue

import (
	"errors"
	"io"
	"os"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// epollDriver makes one sendmsg and one receive per turn, and sleeps in epoll.
// The calls that cannot block go through RawSyscall, which does not tell the Go scheduler.
type epollDriver struct {
	fd    int
	ep    int
	waker waker
	write bool // EPOLLOUT is asked for
	calls uint64

	events [2]unix.EpollEvent
	siov   [maxVec]unix.Iovec
	riov   [maxVec]unix.Iovec
	msg    unix.Msghdr
}

func newEpollDriver(fd int) (*epollDriver, error) {
	d := &epollDriver{fd: fd}
	if err := unix.SetNonblock(fd, true); err != nil {
		return nil, os.NewSyscallError("fcntl", err)
	}
	var err error
	if d.ep, err = unix.EpollCreate1(unix.EPOLL_CLOEXEC); err != nil {
		return nil, os.NewSyscallError("epoll_create1", err)
	}
	if err := d.waker.open(); err != nil {
		unix.Close(d.ep)
		return nil, os.NewSyscallError("eventfd", err)
	}
	for _, f := range []int{fd, d.waker.fd} {
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(f)}
		if err := unix.EpollCtl(d.ep, unix.EPOLL_CTL_ADD, f, &ev); err != nil {
			unix.Close(d.ep)
			d.waker.close()
			return nil, os.NewSyscallError("epoll_ctl", err)
		}
	}
	return d, nil
}

// iovecs fills v with the slices of b, and returns how many they are.
func iovecs(v *[maxVec]unix.Iovec, b [][]byte) int {
	for i, s := range b {
		v[i].Base = unsafe.SliceData(s)
		v[i].SetLen(len(s))
	}
	return len(b)
}

func (d *epollDriver) exchange(send, recv [][]byte) (sent, received int, err error) {
	var sendErr error
	if len(send) > 0 {
		d.msg = unix.Msghdr{Iov: &d.siov[0]}
		d.msg.SetIovlen(iovecs(&d.siov, send))
		sent, sendErr = d.retry(unix.SYS_SENDMSG, unsafe.Pointer(&d.msg), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0)
		sent = max(sent, 0)
	}
	switch len(recv) {
	case 0:
		if sendErr != nil {
			err = os.NewSyscallError("sendmsg", sendErr)
		}
		return sent, 0, err
	case 1:
		received, err = d.retry(unix.SYS_RECVFROM, unsafe.Pointer(unsafe.SliceData(recv[0])), uintptr(len(recv[0])), unix.MSG_DONTWAIT)
	default:
		d.msg = unix.Msghdr{Iov: &d.riov[0]}
		d.msg.SetIovlen(iovecs(&d.riov, recv))
		received, err = d.retry(unix.SYS_RECVMSG, unsafe.Pointer(&d.msg), unix.MSG_DONTWAIT, 0)
	}
	switch {
	case err != nil:
		err = os.NewSyscallError("recv", err)
	case received == 0:
		err = io.EOF
	}
	if sendErr != nil && (err == nil || sendErr != unix.EPIPE) { // EPIPE only says that there is a reason
		err = os.NewSyscallError("sendmsg", sendErr)
	}
	return sent, max(received, 0), err
}

// retry makes one call that does not block: n is -1 with a nil error when there is nothing to do now.
func (d *epollDriver) retry(trap uintptr, p unsafe.Pointer, a, b uintptr) (n int, err error) {
	for {
		d.calls++
		r, _, e := unix.RawSyscall6(trap, uintptr(d.fd), uintptr(p), a, b, 0, 0)
		switch e {
		case 0:
			return int(r), nil
		case unix.EINTR:
		case unix.EAGAIN:
			return -1, nil
		default:
			return 0, e
		}
	}
}

func (d *epollDriver) inflight() int { return 0 }

func (d *epollDriver) wait(write bool, limit time.Duration) error {
	if write != d.write {
		ev := unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(d.fd)}
		if write {
			ev.Events |= unix.EPOLLOUT
		}
		d.calls++
		if err := unix.EpollCtl(d.ep, unix.EPOLL_CTL_MOD, d.fd, &ev); err != nil {
			return os.NewSyscallError("epoll_ctl", err)
		}
		d.write = write
	}
	ms := -1
	if limit >= 0 {
		ms = int((limit + time.Millisecond - 1) / time.Millisecond)
	}
	d.calls++
	n, err := unix.EpollWait(d.ep, d.events[:], ms)
	if errors.Is(err, unix.EINTR) {
		return nil // the caller looks around and comes back
	}
	if err != nil {
		return os.NewSyscallError("epoll_wait", err)
	}
	for _, ev := range d.events[:n] {
		if int(ev.Fd) == d.waker.fd {
			d.calls++
			d.waker.drain()
		}
	}
	return nil
}

func (d *epollDriver) wake() { d.waker.wake() }

func (d *epollDriver) close() error {
	d.waker.close()
	unix.Close(d.ep)
	return unix.Close(d.fd)
}

func (d *epollDriver) syscalls() uint64 { return d.calls }
