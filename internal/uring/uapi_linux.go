package uring

// The parts of <linux/io_uring.h> in use, under the names of that header.
const (
	_IORING_SETUP_CQSIZE        = 1 << 3
	_IORING_SETUP_COOP_TASKRUN  = 1 << 8  // Linux 5.19
	_IORING_SETUP_SINGLE_ISSUER = 1 << 12 // Linux 6.0
	_IORING_SETUP_DEFER_TASKRUN = 1 << 13 // Linux 6.1
	_IORING_SETUP_NO_SQARRAY    = 1 << 16 // Linux 6.6

	_IORING_FEAT_SINGLE_MMAP   = 1 << 0 // Linux 5.4
	_IORING_FEAT_NODROP        = 1 << 1 // Linux 5.5
	_IORING_FEAT_SUBMIT_STABLE = 1 << 2 // Linux 5.5
	_IORING_FEAT_FAST_POLL     = 1 << 5 // Linux 5.7
	_IORING_FEAT_POLL_32BITS   = 1 << 6 // Linux 5.9
	_IORING_FEAT_EXT_ARG       = 1 << 8 // Linux 5.11

	_IORING_OFF_SQ_RING = 0
	_IORING_OFF_SQES    = 0x10000000

	_IORING_ENTER_GETEVENTS       = 1 << 0
	_IORING_ENTER_EXT_ARG         = 1 << 3
	_IORING_ENTER_REGISTERED_RING = 1 << 4

	_IORING_REGISTER_FILES      = 2
	_IORING_UNREGISTER_FILES    = 3
	_IORING_REGISTER_PROBE      = 8
	_IORING_REGISTER_RING_FDS   = 20
	_IORING_UNREGISTER_RING_FDS = 21

	_IO_URING_OP_SUPPORTED = 1 << 0

	_IOSQE_FIXED_FILE = 1 << 0

	_IORING_OP_NOP          = 0
	_IORING_OP_POLL_ADD     = 6
	_IORING_OP_SENDMSG      = 9
	_IORING_OP_RECVMSG      = 10
	_IORING_OP_ASYNC_CANCEL = 14
	_IORING_OP_READ         = 22
	_IORING_OP_SEND         = 26
	_IORING_OP_RECV         = 27

	_IORING_POLL_ADD_MULTI = 1 << 0

	_IORING_ASYNC_CANCEL_ALL = 1 << 0 // Linux 5.19
	_IORING_ASYNC_CANCEL_ANY = 1 << 2 // Linux 5.19

	_IORING_MAX_ENTRIES    = 32768 // io_uring/io_uring.c
	_IORING_MAX_CQ_ENTRIES = 2 * _IORING_MAX_ENTRIES
)

// sqe is struct io_uring_sqe.
type sqe struct {
	opcode   uint8
	flags    uint8
	ioprio   uint16
	fd       int32
	off      uint64
	addr     uint64
	len      uint32
	opFlags  uint32 // msg_flags, poll32_events, cancel_flags, rw_flags
	userData uint64
	_        [3]uint64 // buf_index, personality, file_index, addr3
}

// params is struct io_uring_params.
type params struct {
	sqEntries    uint32
	cqEntries    uint32
	flags        uint32
	sqThreadCPU  uint32
	sqThreadIdle uint32
	features     uint32
	wqFd         uint32
	_            [3]uint32
	sqOff        sqOffsets
	cqOff        cqOffsets
}

// sqOffsets is struct io_sqring_offsets.
type sqOffsets struct {
	head, tail, ringMask, ringEntries, flags, dropped, array uint32
	_                                                        uint32
	_                                                        uint64
}

// cqOffsets is struct io_cqring_offsets.
type cqOffsets struct {
	head, tail, ringMask, ringEntries, overflow, cqes, flags uint32
	_                                                        uint32
	_                                                        uint64
}

// getEventsArg is struct io_uring_getevents_arg.
type getEventsArg struct {
	sigmask   uint64
	sigmaskSz uint32
	_         uint32
	ts        uint64
}

// kernelTimespec is struct __kernel_timespec.
type kernelTimespec struct{ sec, nsec int64 }

// rsrcUpdate is struct io_uring_rsrc_update.
type rsrcUpdate struct {
	offset uint32
	_      uint32
	data   uint64
}

// probe is struct io_uring_probe with room for every opcode.
type probe struct {
	lastOp uint8
	opsLen uint8
	_      [14]byte
	ops    [256]struct {
		op    uint8
		_     uint8
		flags uint16
		_     uint32
	}
}
