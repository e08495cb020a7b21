package staging

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// Defaults of [PoolConfig].
const (
	DefaultPoolBytes  = 64 << 20
	DefaultBufferSize = 1 << 20
)

// bufferAlign is what every buffer is aligned to, in bytes: the largest logical block size and the page size.
const bufferAlign = 4096

// ErrPoolClosed is returned by Get on a closed pool.
var ErrPoolClosed = errors.New("staging: the pool is closed")

// Policy says how hard NewPool tries for something that the system may refuse.
type Policy int

// Auto takes what the system gives and reports it, Never does not try, Require makes NewPool fail without it.
const (
	Auto Policy = iota
	Never
	Require
)

// PoolConfig configures [NewPool]. The zero value works.
type PoolConfig struct {
	// Bytes is the size of the pool, rounded up to whole buffers. 0 means 64 MiB, or all of Memory.
	Bytes int64
	// BufferSize is the size of one buffer in bytes, a multiple of 4096. 0 means 1 MiB. Reads are cut to it.
	BufferSize int
	// HugePages: reserved pages of 1 GiB or 2 MiB (vm.nr_hugepages), else transparent ones on request (MADV_HUGEPAGE),
	// which the kernel may or may not give.
	HugePages Policy
	// HugePageSize is 2 MiB or 1 GiB, in bytes. 0 tries 1 GiB where such pages hold the pool without a rest, then 2 MiB.
	HugePageSize int64
	// Lock: keep the memory from being swapped (mlock), as far as RLIMIT_MEMLOCK allows. Require means all of it.
	Lock Policy
	// Node points to the NUMA node to take all of the memory from, that of the GPU or of the network interface. Nil leaves
	// it to the kernel; -1 stands for a device whose node is not known, and does the same, but says so.
	Node *int
	// Bind says how hard to try for Node.
	Bind Policy
	// Devices are told of the memory, those that want to know it ([Registrar]), and again by Close, in reverse order.
	Devices []Device
	// Register says how hard to try that: with Auto, a device that refuses is reported and copies as it can.
	Register Policy
	// Memory, if not nil, is used instead of new memory: what a driver has allocated and pinned. It must start at a multiple
	// of 4096, stays as it is, with HugePages, Lock and Bind of no effect, and is the caller's again after Close.
	Memory []byte
	// Limit, if not nil, bounds this pool together with all others that share it.
	Limit *Limit
	// Debug finds those who use buffers that are not theirs, for a price in time: a page behind each buffer that nobody can
	// write to; a pattern in each free buffer, whose change is a panic when the buffer is handed out next, or an error of
	// Close; and who took and released a buffer, in all of these messages.
	Debug bool
}

// Pool is a fixed number of staging buffers in one region of memory, aligned to 4096 bytes. The buffer that was
// released last is handed out first, since it is the one still in cache. All methods are safe for concurrent use.
//
// The memory is not registered with io_uring: registered buffers serve reads of files and zero-copy sends, while the queues
// receive from TCP, where the kernel copies into any memory alike.
type Pool struct {
	info   PoolInfo
	mem    []byte
	stride int            // from one buffer to the next: more than BufferSize where guard pages lie between them
	undo   []func() error // what Close does, in reverse
	debug  *poolDebug     // nil without PoolConfig.Debug

	// gens[i] counts the hand-overs of buffer i: odd while it is out. A handle is valid only for its own generation.
	gens []atomic.Uint32

	mu      sync.Mutex
	free    []int32 // a stack
	waiters []chan Buffer
	closed  bool
	hooks   []*func() // replaced, never changed in place
}

// NewPool is [NewPoolContext] that cannot be interrupted.
func NewPool(cfg PoolConfig) (*Pool, error) { return NewPoolContext(context.Background(), cfg) }

// NewPoolContext allocates the pool's memory, touches every page of it, locks it as far as it may, and registers it with the
// devices. See [Pool.Info] for what came of it. For many gigabytes that takes seconds: when ctx ends meanwhile, all that was
// taken is given back, and the error wraps the cause of ctx. Only what a device does to register cannot be interrupted.
func NewPoolContext(ctx context.Context, cfg PoolConfig) (*Pool, error) {
	size := int64(cfg.BufferSize)
	if size == 0 {
		size = DefaultBufferSize
	}
	if size < 0 || size%bufferAlign != 0 || size > 1<<30 {
		return nil, fmt.Errorf("staging: buffer size %d: want a multiple of %d, at most 1 GiB", size, bufferAlign)
	}
	if h := cfg.HugePageSize; h != 0 && h != 2<<20 && h != 1<<30 {
		return nil, fmt.Errorf("staging: hugepages of %s: want 2 MiB, 1 GiB, or 0", sizeText(h))
	}
	total := cfg.Bytes
	switch {
	case total != 0:
	case cfg.Memory != nil:
		total = max(size, int64(len(cfg.Memory))/size*size)
	default:
		total = max(DefaultPoolBytes, size)
	}
	n := total / size
	if total%size != 0 {
		n++
	}
	if total < 0 || n > 1<<24 {
		return nil, fmt.Errorf("staging: pool of %d bytes in buffers of %d: want at most %d buffers", total, size, 1<<24)
	}
	p := &Pool{info: PoolInfo{Bytes: n * size, BufferSize: int(size), Buffers: int(n), Node: -1, Debug: cfg.Debug}, stride: int(size)}
	if int64(int(p.info.Bytes)) != p.info.Bytes {
		return nil, fmt.Errorf("staging: pool of %d bytes: more than this system can address", total)
	}
	if err := p.make(ctx, cfg); err != nil {
		return nil, fmt.Errorf("staging: pool of %s: %w", sizeText(p.info.Bytes), errors.Join(err, p.rollback(0)))
	}
	p.gens = make([]atomic.Uint32, n)
	p.free = make([]int32, n)
	for i := range p.free {
		p.free[i] = int32(int(n) - 1 - i) // the first buffers, which are locked first, go out first
	}
	return p, nil
}

// make gets the memory ready. What it has taken when it fails is for rollback.
func (p *Pool) make(ctx context.Context, cfg PoolConfig) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	var err error
	if cfg.Memory != nil {
		err = p.adopt(cfg)
	} else {
		err = p.allocate(ctx, cfg)
	}
	if err == nil {
		err = p.register(ctx, cfg)
	}
	if err == nil && cfg.Debug {
		p.debug, err = newPoolDebug(ctx, p)
	}
	return err
}

// adopt takes the caller's memory as it is.
func (p *Pool) adopt(cfg PoolConfig) error {
	if int64(len(cfg.Memory)) < p.info.Bytes {
		return fmt.Errorf("the memory given has %s", sizeText(int64(len(cfg.Memory))))
	}
	if at := uintptr(unsafe.Pointer(unsafe.SliceData(cfg.Memory))); at%bufferAlign != 0 {
		return fmt.Errorf("the memory given starts at %#x: want a multiple of %d", at, bufferAlign)
	}
	if cfg.HugePages == Require || cfg.Lock == Require || cfg.Bind == Require {
		return errors.New("hugepages, locked memory and a NUMA node cannot be required of memory that the caller gives")
	}
	if err := p.reserve(cfg.Limit, p.info.Bytes); err != nil {
		return err
	}
	const note = "the memory is the caller's"
	p.info.HugePagesNote, p.info.LockNote, p.info.GuardNote = note, note, note
	if cfg.Node != nil {
		p.info.NodeNote = note
	}
	p.mem = cfg.Memory[:p.info.Bytes:p.info.Bytes]
	return nil
}

// reserve takes n bytes from the limit, until Close.
func (p *Pool) reserve(l *Limit, n int64) error {
	if l != nil {
		if err := l.Reserve(n); err != nil {
			return err
		}
		p.undo = append(p.undo, func() error {
			l.Release(n)
			return nil
		})
	}
	p.info.MemoryBytes = n
	return nil
}

// rollback undoes what was done after the first keep steps. It stops at an error: what cannot be unregistered must not be unmapped.
func (p *Pool) rollback(keep int) error {
	for i := len(p.undo) - 1; i >= keep; i-- {
		undo := p.undo[i]
		p.undo = p.undo[:i]
		if err := undo(); err != nil {
			return err
		}
	}
	return nil
}

// areas is the memory of the buffers: in one piece, or one by one where guard pages lie between them.
func (p *Pool) areas() [][]byte {
	size := p.info.BufferSize
	if p.stride == size {
		return [][]byte{p.mem[:p.info.Bytes]}
	}
	list := make([][]byte, p.info.Buffers)
	for i := range list {
		list[i] = p.at(i)
	}
	return list
}

// at is the memory of buffer i.
func (p *Pool) at(i int) []byte {
	size, at := p.info.BufferSize, i*p.stride
	return p.mem[at : at+size : at+size]
}

// Info says what the pool got, and why not more.
func (p *Pool) Info() PoolInfo { return p.info }

// Get returns a buffer, and waits for one when all are out. It fails with the cause of ctx, or [ErrPoolClosed].
func (p *Pool) Get(ctx context.Context) (Buffer, error) {
	if err := context.Cause(ctx); err != nil {
		return Buffer{}, err
	}
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return Buffer{}, ErrPoolClosed
	}
	if b, ok := p.pop(); ok {
		p.mu.Unlock()
		if p.debug != nil {
			p.debug.taken(b)
		}
		return b, nil
	}
	w := make(chan Buffer, 1)
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()

	select {
	case b := <-w:
		if p.debug != nil {
			p.debug.taken(b)
		}
		return b, nil
	case <-ctx.Done():
	}
	p.mu.Lock()
	if i := slices.Index(p.waiters, w); i >= 0 {
		p.waiters = slices.Delete(p.waiters, i, i+1)
		p.mu.Unlock()
	} else {
		p.mu.Unlock()
		b := <-w // it was handed over at the same moment
		if p.debug != nil {
			p.debug.taken(b)
		}
		b.Release()
	}
	return Buffer{}, context.Cause(ctx)
}

// TryGet returns a buffer if one is free. It does not allocate.
func (p *Pool) TryGet() (Buffer, bool) {
	p.mu.Lock()
	b, ok := p.pop()
	p.mu.Unlock()
	if ok && p.debug != nil {
		p.debug.taken(b)
	}
	return b, ok
}

// pop takes the most recently freed buffer. The caller holds mu.
func (p *Pool) pop() (Buffer, bool) {
	if p.closed || len(p.free) == 0 {
		return Buffer{}, false
	}
	i := p.free[len(p.free)-1]
	p.free = p.free[:len(p.free)-1]
	return Buffer{pool: p, index: i, gen: p.gens[i].Add(1)}, true
}

// Out is the number of buffers that are handed out.
func (p *Pool) Out() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.out()
}

func (p *Pool) out() int { return p.info.Buffers - len(p.free) }

// OnRelease calls f each time that a buffer has become free, on the goroutine that released it and without any lock
// held, until remove is called. f must be quick; it may call TryGet. It may still run once after remove.
func (p *Pool) OnRelease(f func()) (remove func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.hooks = append(slices.Clone(p.hooks), &f)
	return func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.hooks = slices.DeleteFunc(slices.Clone(p.hooks), func(h *func()) bool { return h == &f })
	}
}

// Close unregisters the memory and gives it back. While buffers are out it refuses, says how many, with Debug also who took
// them, and changes nothing: release them and call Close again. Closing twice is harmless.
//
// If a device cannot unregister the memory, it stays mapped, since the device may still use it. With Debug, it is an error,
// too, if a free buffer was written to.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := p.out(); n > 0 {
		where := "; PoolConfig.Debug tells where they were taken"
		if p.debug != nil {
			where = p.debug.held()
		}
		return fmt.Errorf("staging: cannot close the pool: %d of %d buffers are still out; release them first%s", n, p.info.Buffers, where)
	}
	p.closed = true
	var misuse error
	if p.debug != nil {
		misuse = p.debug.checkFree()
	}
	p.mem = nil
	if err := errors.Join(misuse, p.rollback(0)); err != nil {
		return fmt.Errorf("staging: closing the pool: %w", err)
	}
	return nil
}

// Buffer is a handle on one buffer of a [Pool]. Whoever got it owns the memory until Release; after that neither the
// handle nor any slice of it may be used. Copies of a handle are the same handle: one of them is released, once.
type Buffer struct {
	pool  *Pool
	index int32
	gen   uint32
}

// Bytes is the whole buffer, BufferSize bytes, aligned to 4096. It panics after Release.
func (b Buffer) Bytes() []byte {
	if b.pool == nil || b.pool.gens[b.index].Load() != b.gen {
		panic(misuse{b, "use of a buffer after Release"})
	}
	return b.pool.at(int(b.index))
}

// Release gives the buffer back to its pool. Releasing twice panics, also when the buffer has a new owner already.
func (b Buffer) Release() {
	p := b.pool
	if p == nil || !p.gens[b.index].CompareAndSwap(b.gen, b.gen+1) {
		panic(misuse{b, "buffer released twice"})
	}
	if p.debug != nil {
		p.debug.released(b)
	}
	p.mu.Lock()
	if len(p.waiters) > 0 {
		w := p.waiters[0]
		p.waiters = slices.Delete(p.waiters, 0, 1)
		w <- Buffer{pool: p, index: b.index, gen: p.gens[b.index].Add(1)}
		p.mu.Unlock()
		return
	}
	p.free = append(p.free, b.index)
	hooks := p.hooks
	p.mu.Unlock()
	for _, h := range hooks {
		(*h)()
	}
}

// misuse is what methods of a handle that is not valid any more panic with. It is a value of its own so that they can be inlined.
type misuse struct {
	b    Buffer
	what string
}

func (m misuse) Error() string {
	text := "staging: " + m.what
	if p := m.b.pool; p != nil && p.debug != nil {
		text += p.debug.history(int(m.b.index))
	}
	return text
}
