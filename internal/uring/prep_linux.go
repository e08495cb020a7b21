package uring

import (
	"encoding/binary"
	"math"
	"unsafe"
)

// Every Prep function puts one operation in the submission ring, for the next Enter to submit, and returns false when
// the ring is full. fd is a descriptor, or with fixed an index into the table of RegisterFiles.

// put adds an SQE to the ring.
func (r *Ring) put(e sqe) bool {
	if r.closed || r.sqPos-r.sqHead.Load() == uint32(len(r.sqes)) {
		return false
	}
	r.sqes[r.sqPos&uint32(len(r.sqes)-1)] = e
	r.sqPos++
	return true
}

// prep puts an operation on the n bytes at p. p escapes here, so that what it points to is not on a stack.
func (r *Ring) prep(op uint8, fd int, fixed bool, p unsafe.Pointer, n int, opFlags uint32, ud uint64) bool {
	if n < 0 {
		panic("uring: negative length")
	}
	r.escaped = p
	return r.put(sqe{
		opcode:   op,
		flags:    fileFlag(fixed),
		fd:       int32(fd),
		addr:     uint64(uintptr(p)),
		len:      uint32(min(n, math.MaxInt32)), // the kernel moves no more than this in one call either
		opFlags:  opFlags,
		userData: ud,
	})
}

func fileFlag(fixed bool) uint8 {
	if fixed {
		return _IOSQE_FIXED_FILE
	}
	return 0
}

// PrepSendmsg prepares sendmsg(2) with MSG_* flags. The kernel is done with msg and its iovecs, but not with the data,
// when Enter has submitted the operation.
func (r *Ring) PrepSendmsg(fd int, fixed bool, msg *Msghdr, flags uint32, ud uint64) bool {
	return r.prep(_IORING_OP_SENDMSG, fd, fixed, unsafe.Pointer(msg), 1, flags, ud)
}

// PrepRecvmsg prepares recvmsg(2) with MSG_* flags. The kernel writes into msg when the operation completes.
func (r *Ring) PrepRecvmsg(fd int, fixed bool, msg *Msghdr, flags uint32, ud uint64) bool {
	return r.prep(_IORING_OP_RECVMSG, fd, fixed, unsafe.Pointer(msg), 1, flags, ud)
}

// PrepSend prepares send(2) of n bytes at p with MSG_* flags.
func (r *Ring) PrepSend(fd int, fixed bool, p unsafe.Pointer, n int, flags uint32, ud uint64) bool {
	return r.prep(_IORING_OP_SEND, fd, fixed, p, n, flags, ud)
}

// PrepRecv prepares recv(2) of up to n bytes to p with MSG_* flags.
func (r *Ring) PrepRecv(fd int, fixed bool, p unsafe.Pointer, n int, flags uint32, ud uint64) bool {
	return r.prep(_IORING_OP_RECV, fd, fixed, p, n, flags, ud)
}

// PrepRead prepares read(2) of up to n bytes to p, from something without a file position: armed on an
// eventfd, it is a wake-up that also resets the counter.
func (r *Ring) PrepRead(fd int, fixed bool, p unsafe.Pointer, n int, ud uint64) bool {
	return r.prep(_IORING_OP_READ, fd, fixed, p, n, 0, ud)
}

// PrepPoll prepares a wait for the POLL* events. With multishot it completes at each event, with CQEMore as long as it
// stays armed: when that is missing it must be prepared again.
func (r *Ring) PrepPoll(fd int, fixed bool, events uint32, multishot bool, ud uint64) bool {
	var flags uint32
	if multishot {
		flags = _IORING_POLL_ADD_MULTI
	}
	if bigEndian {
		events = events<<16 | events>>16 // poll32_events is "word-reversed for BE"
	}
	return r.put(sqe{opcode: _IORING_OP_POLL_ADD, flags: fileFlag(fixed), fd: int32(fd), len: flags, opFlags: events, userData: ud})
}

// PrepCancel prepares the cancelling of one operation whose user data is target. It completes with 0, -ENOENT (nothing
// such in flight), or -EALREADY (running); the operation itself completes with -ECANCELED, or with its result.
func (r *Ring) PrepCancel(target, ud uint64) bool {
	return r.put(sqe{opcode: _IORING_OP_ASYNC_CANCEL, fd: -1, addr: target, userData: ud})
}

var bigEndian = binary.NativeEndian.Uint16([]byte{0, 1}) == 1
