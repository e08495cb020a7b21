package queue

import (
	"errors"
	"fmt"
	"io"
	"os"
	"syscall"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/uring"
)

// uringDriver submits a turn's send and receive in one enter. Both carry MSG_DONTWAIT, so they have
// completed when the enter returns: between turns the kernel holds no buffer of anybody, and only
// polls are armed. It sleeps on those.
type uringDriver struct {
	ring  *uring.Ring
	fd    int
	waker waker
	calls uint64

	pollIn, pollOut, pollWake bool // armed

	siov, riov [maxVec]unix.Iovec
	smsg, rmsg uring.Msghdr
}

// user_data of the ring's operations.
const (
	udSend = iota + 1
	udRecv
	udPollIn
	udPollOut
	udPollWake
)

// Indices of the registered files.
const (
	fileSocket = iota
	fileWaker
)

func newURingDriver(fd int) (*uringDriver, []string, error) {
	d := &uringDriver{fd: fd}
	ring, err := uring.New(uring.Config{Entries: 16})
	if err != nil {
		return nil, nil, err
	}
	if err := d.waker.open(); err != nil {
		ring.Close()
		return nil, nil, os.NewSyscallError("eventfd", err)
	}
	if err := ring.RegisterFiles([]int{fd, d.waker.fd}); err != nil {
		ring.Close()
		d.waker.close()
		return nil, nil, fmt.Errorf("registering files: %w", err)
	}
	d.ring = ring
	return d, ring.Notes(), nil
}

func (d *uringDriver) exchange(send, recv [][]byte) (sent, received int, err error) {
	const flags = unix.MSG_DONTWAIT | unix.MSG_NOSIGNAL
	pending := 0
	if len(send) > 0 {
		d.smsg = uring.Msghdr{Iov: &d.siov[0]}
		d.smsg.SetIovlen(iovecs(&d.siov, send))
		if !d.ring.PrepSendmsg(fileSocket, true, &d.smsg, flags, udSend) {
			return 0, 0, errRingFull
		}
		pending++
	}
	switch len(recv) {
	case 0:
	case 1:
		if !d.ring.PrepRecv(fileSocket, true, unsafe.Pointer(unsafe.SliceData(recv[0])), len(recv[0]), unix.MSG_DONTWAIT, udRecv) {
			return 0, 0, errRingFull
		}
		pending++
	default:
		d.rmsg = uring.Msghdr{Iov: &d.riov[0]}
		d.rmsg.SetIovlen(iovecs(&d.riov, recv))
		if !d.ring.PrepRecvmsg(fileSocket, true, &d.rmsg, unix.MSG_DONTWAIT, udRecv) {
			return 0, 0, errRingFull
		}
		pending++
	}
	var sendErr, recvErr error
	for want := 0; pending > 0; want = pending {
		d.calls++
		// With DONTWAIT the first enter finds both done; should it ever not, wait: the buffers are the kernel's until then.
		limit := time.Duration(0)
		if want > 0 {
			limit = -1
		}
		if err := d.ring.Enter(want, limit); err != nil {
			return sent, received, err
		}
		for {
			c, ok := d.ring.Next()
			if !ok {
				break
			}
			switch c.UserData {
			case udSend:
				pending--
				sent, sendErr = result32("sendmsg", c.Res)
			case udRecv:
				pending--
				received, recvErr = result32("recv", c.Res)
				if c.Res == 0 {
					recvErr = io.EOF
				}
			default:
				d.event(c)
			}
		}
	}
	if sendErr != nil && (recvErr == nil || !errors.Is(sendErr, unix.EPIPE)) { // EPIPE only says that there is a reason
		return sent, received, sendErr
	}
	return sent, received, recvErr
}

var errRingFull = fmt.Errorf("io_uring submission queue is full")

// result32 turns a CQE's result into a count or an error; "not now" is a count of 0.
func result32(call string, res int32) (int, error) {
	if res >= 0 {
		return int(res), nil
	}
	switch e := syscall.Errno(-res); e {
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	default:
		return 0, os.NewSyscallError(call, e)
	}
}

// event notes that a poll has fired.
func (d *uringDriver) event(c uring.CQE) {
	switch c.UserData {
	case udPollIn:
		d.pollIn = false
	case udPollOut:
		d.pollOut = false
	case udPollWake:
		d.pollWake = false
		d.calls++
		d.waker.drain()
	}
}

func (d *uringDriver) inflight() int { return 0 }

func (d *uringDriver) wait(write bool, limit time.Duration) error {
	arm := func(armed *bool, file int, events uint32, ud uint64) {
		if !*armed {
			*armed = d.ring.PrepPoll(file, true, events, false, ud)
		}
	}
	arm(&d.pollIn, fileSocket, unix.POLLIN, udPollIn)
	arm(&d.pollWake, fileWaker, unix.POLLIN, udPollWake)
	if write {
		arm(&d.pollOut, fileSocket, unix.POLLOUT, udPollOut)
	}
	d.calls++
	if err := d.ring.Enter(1, limit); err != nil {
		return err
	}
	for {
		c, ok := d.ring.Next()
		if !ok {
			return nil
		}
		d.event(c)
	}
}

func (d *uringDriver) wake() { d.waker.wake() }

func (d *uringDriver) close() error {
	unix.Shutdown(d.fd, unix.SHUT_RDWR) // whatever is in flight ends by itself
	err := d.ring.Close()
	d.waker.close()
	unix.Close(d.fd)
	return err
}

func (d *uringDriver) syscalls() uint64 { return d.calls }
