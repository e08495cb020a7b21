package uring

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Msghdr is [unix.Msghdr].
type Msghdr = unix.Msghdr

// closeTimeout bounds how long Close waits for the kernel to let go of the operations in flight; tests shorten it.
var closeTimeout = 10 * time.Second

// Ring is one io_uring, owned by one thread: see the package documentation.
type Ring struct {
	fd     int
	owner  int // thread ID
	closed bool

	// What io_uring_enter is called with: the ring's descriptor, or its index in the thread's table of registered
	// rings with _IORING_ENTER_REGISTERED_RING.
	enterFd    uintptr
	enterFlags uintptr

	// The kernel moves sqHead and cqTail, we move sqTail and cqHead: in sqPos and cqPos, which Enter shows to the kernel.
	sqHead, sqTail *atomic.Uint32
	cqHead, cqTail *atomic.Uint32
	sqPos, cqPos   uint32
	sqes           []sqe // in the kernel's memory, as are cqes
	cqes           []CQE
	done           uint32 // operations whose last CQE has been taken, modulo 2³²

	arg getEventsArg
	ts  kernelTimespec

	escaped unsafe.Pointer // see Ring.prep

	filesRegistered bool
	features, notes []string

	ringMem, sqeMem []byte
}

// New makes a ring for the calling thread, which must be locked to its goroutine. It tries the ring out, so that an
// error here is the only sign of a kernel, sysctl or seccomp profile that stands in the way; the error says what to do.
//
//go:noinline
func New(cfg Config) (*Ring, error) { // noinline: a Ring must be on the heap, because the kernel gets the address of arg
	if cfg.Entries < 1 || cfg.Entries > _IORING_MAX_ENTRIES {
		return nil, fmt.Errorf("uring: %d entries: must be 1 to %d", cfg.Entries, _IORING_MAX_ENTRIES)
	}
	if cq := cfg.CQEntries; cq != 0 && (cq < cfg.Entries || cq > _IORING_MAX_CQ_ENTRIES) {
		return nil, fmt.Errorf("uring: %d completion entries: must be %d (the submission entries) to %d", cq, cfg.Entries, _IORING_MAX_CQ_ENTRIES)
	}
	r := &Ring{owner: unix.Gettid()}
	p, err := r.setup(cfg)
	if err != nil {
		return nil, err
	}
	if err := r.start(p); err != nil {
		r.release()
		return nil, err
	}
	return r, nil
}

// start makes a working ring of the descriptor from setup.
func (r *Ring) start(p *params) error {
	if err := checkFeatures(p.features); err != nil {
		return err
	}
	if err := r.mmap(p); err != nil {
		return err
	}
	if err := r.checkOps(); err != nil {
		return err
	}
	r.registerRing()
	return r.checkCancelAny()
}

// mmap maps the rings and the array of SQEs.
func (r *Ring) mmap(p *params) error {
	size := p.cqOff.cqes + p.cqEntries*uint32(unsafe.Sizeof(CQE{}))
	indirect := p.flags&_IORING_SETUP_NO_SQARRAY == 0
	if indirect {
		size = max(size, p.sqOff.array+p.sqEntries*4)
	}
	const prot, flags = unix.PROT_READ | unix.PROT_WRITE, unix.MAP_SHARED | unix.MAP_POPULATE
	var err error
	if r.ringMem, err = unix.Mmap(r.fd, _IORING_OFF_SQ_RING, int(size), prot, flags); err != nil {
		return fmt.Errorf("uring: mmap of the rings, %d bytes: %w", size, err)
	}
	sqeSize := int(p.sqEntries) * int(unsafe.Sizeof(sqe{}))
	if r.sqeMem, err = unix.Mmap(r.fd, _IORING_OFF_SQES, sqeSize, prot, flags); err != nil {
		return fmt.Errorf("uring: mmap of the submission entries, %d bytes: %w", sqeSize, err)
	}
	at := func(off uint32) unsafe.Pointer { return unsafe.Pointer(&r.ringMem[off]) }
	r.sqHead = (*atomic.Uint32)(at(p.sqOff.head))
	r.sqTail = (*atomic.Uint32)(at(p.sqOff.tail))
	r.cqHead = (*atomic.Uint32)(at(p.cqOff.head))
	r.cqTail = (*atomic.Uint32)(at(p.cqOff.tail))
	r.sqes = unsafe.Slice((*sqe)(unsafe.Pointer(&r.sqeMem[0])), p.sqEntries)
	r.cqes = unsafe.Slice((*CQE)(at(p.cqOff.cqes)), p.cqEntries)
	if indirect { // slot i of the ring is SQE i, for good
		for i, array := 0, unsafe.Slice((*uint32)(at(p.sqOff.array)), p.sqEntries); i < len(array); i++ {
			array[i] = uint32(i)
		}
	}
	return nil
}

// registerRing spares each io_uring_enter the look-up of the descriptor. A refusal (a thread has 16 places) costs
// only that.
func (r *Ring) registerRing() {
	r.enterFd, r.enterFlags = uintptr(r.fd), 0
	up := rsrcUpdate{offset: ^uint32(0), data: uint64(r.fd)} // offset: any free place
	if _, err := r.register(_IORING_REGISTER_RING_FDS, unsafe.Pointer(&up), 1); err != 0 {
		r.notes = append(r.notes, fmt.Sprintf("registered ring descriptor refused: %v", err))
		return
	}
	r.enterFd, r.enterFlags = uintptr(up.offset), _IORING_ENTER_REGISTERED_RING
	r.features = append(r.features, "REGISTERED_RING")
}

func (r *Ring) register(op uintptr, arg unsafe.Pointer, n int) (int, unix.Errno) {
	got, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, uintptr(r.fd), op, uintptr(arg), uintptr(n), 0, 0)
	return int(got), errno
}

// RegisterFiles gives the ring a table of descriptors, which Prep calls with fixed then name by index; it replaces the
// table of an earlier call. The ring holds the files open: closing a registered socket's descriptor does not close the
// connection before the ring is closed too (shutdown(2) does).
func (r *Ring) RegisterFiles(fds []int) error {
	if r.closed {
		return errClosed
	}
	if len(fds) == 0 {
		return errors.New("uring: register files: no descriptors given")
	}
	table := make([]int32, len(fds))
	for i, fd := range fds {
		table[i] = int32(fd)
	}
	r.unregisterFiles()
	if _, err := r.register(_IORING_REGISTER_FILES, unsafe.Pointer(&table[0]), len(table)); err != 0 {
		return fmt.Errorf("uring: register files %v: %w", fds, err)
	}
	r.filesRegistered = true
	return nil
}

func (r *Ring) unregisterFiles() {
	if r.filesRegistered {
		r.register(_IORING_UNREGISTER_FILES, nil, 0)
		r.filesRegistered = false
	}
}

// Features names what the ring has of the optional set-up flags and capabilities, for logs.
func (r *Ring) Features() []string { return r.features }

// Notes says what was refused, and why, for logs.
func (r *Ring) Notes() []string { return r.notes }

// InFlight is the number of operations that were submitted and whose last CQE has not been taken yet.
func (r *Ring) InFlight() int {
	if r.closed {
		return 0
	}
	return int(r.sqHead.Load() - r.done)
}

// Close cancels everything in flight, waits until the kernel has let go of it, and releases the ring. When it has
// returned nil the kernel touches no buffer of any operation any more. Completions not yet taken are dropped, and so
// are operations prepared but not submitted. A second call does nothing.
//
// After an error the ring is still open and operations may still be in flight: their buffers must stay. Close fails on
// any thread but the owner, and when the kernel does not let go within 10 seconds.
func (r *Ring) Close() error {
	if r.closed {
		return nil
	}
	if tid := unix.Gettid(); tid != r.owner {
		return fmt.Errorf("uring: close on thread %d, but the ring belongs to thread %d: close it there", tid, r.owner)
	}
	if err := r.drain(); err != nil {
		return err
	}
	r.unregisterFiles()
	r.release()
	return nil
}

// drain cancels what is in flight until nothing is.
func (r *Ring) drain() error {
	r.sqPos = r.sqHead.Load() // forget what was not submitted
	for deadline := time.Now().Add(closeTimeout); ; {
		for _, ok := r.Next(); ok; _, ok = r.Next() {
		}
		if r.InFlight() == 0 {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("uring: close: %d operations still in flight %v after they were cancelled", r.InFlight(), closeTimeout)
		}
		// Again each time round: a multishot poll can slip past a cancel while it fires.
		r.put(cancelAll)
		if err := r.Enter(2, 100*time.Millisecond); err != nil { // 2: the cancel and one that it hit
			return fmt.Errorf("uring: close: %w", err)
		}
	}
}

// release frees what the ring has; nothing may be in flight.
func (r *Ring) release() {
	r.closed = true
	if r.enterFlags != 0 {
		up := rsrcUpdate{offset: uint32(r.enterFd)}
		r.register(_IORING_UNREGISTER_RING_FDS, unsafe.Pointer(&up), 1)
	}
	for _, mem := range [][]byte{r.sqeMem, r.ringMem} {
		if mem != nil {
			unix.Munmap(mem)
		}
	}
	unix.Close(r.fd)
	r.sqHead, r.sqTail, r.cqHead, r.cqTail = nil, nil, nil, nil
	r.sqes, r.cqes, r.sqeMem, r.ringMem = nil, nil, nil, nil
}
