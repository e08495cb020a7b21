package staging

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
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

// Policy says how hard NewPool tries for hugepages or locked memory.
type Policy int

// Auto takes what the system gives and reports it, Never does not try, Require makes NewPool fail without it.
const (
	Auto Policy = iota
	Never
	Require
)

// PoolConfig configures [NewPool]. The zero value works.
type PoolConfig struct {
	// Bytes is the size of the pool, rounded up to whole buffers. 0 means 64 MiB.
	Bytes int64
	// BufferSize is the size of one buffer in bytes, a multiple of 4096. 0 means 1 MiB. Reads are cut to it.
	BufferSize int
	// HugePages: 2 MiB pages from the reserved ones (vm.nr_hugepages), else transparent ones on request (MADV_HUGEPAGE),
	// which the kernel may or may not give.
	HugePages Policy
	// Lock: keep the memory from being swapped or moved (mlock), as far as RLIMIT_MEMLOCK allows. Require means all of it.
	Lock Policy
}

// PoolInfo says what a pool got.
type PoolInfo struct {
	Bytes      int64 // Buffers × BufferSize
	BufferSize int   // bytes
	Buffers    int

	HugePages     bool   // reserved 2 MiB pages back the pool
	HugePagesNote string // why not, or what was done instead; empty when HugePages
	LockedBytes   int64
	LockNote      string // why not all of it; empty when LockedBytes == Bytes
}

// String is one line for a log.
func (i PoolInfo) String() string {
	s := fmt.Sprintf("%d buffers of %d bytes", i.Buffers, i.BufferSize)
	if i.HugePages {
		s += ", 2 MiB pages"
	} else {
		s += ", no reserved hugepages (" + i.HugePagesNote + ")"
	}
	if i.LockedBytes == i.Bytes {
		return s + ", locked"
	}
	return s + fmt.Sprintf(", %d of %d bytes locked (%s)", i.LockedBytes, i.Bytes, i.LockNote)
}

// Pool is a fixed number of staging buffers in one region of memory, aligned to 4096 bytes. The buffer that was
// released last is handed out first, since it is the one still in cache. All methods are safe for concurrent use.
type Pool struct {
	info  PoolInfo
	mem   []byte
	unmap func() error

	// gens[i] counts the hand-overs of buffer i: odd while it is out. A handle is valid only for its own generation.
	gens []atomic.Uint32

	mu      sync.Mutex
	free    []int32 // a stack
	waiters []chan Buffer
	closed  bool
	hooks   []*func() // replaced, never changed in place
}

// NewPool allocates the pool's memory, touches every page of it, and locks it as far as it may. See [Pool.Info].
func NewPool(cfg PoolConfig) (*Pool, error) {
	size := int64(cfg.BufferSize)
	if size == 0 {
		size = DefaultBufferSize
	}
	total := cfg.Bytes
	if total == 0 {
		total = max(DefaultPoolBytes, size)
	}
	if size < 0 || size%bufferAlign != 0 || size > 1<<30 {
		return nil, fmt.Errorf("staging: buffer size %d: want a multiple of %d, at most 1 GiB", size, bufferAlign)
	}
	n := total / size
	if total%size != 0 {
		n++
	}
	if total < 0 || n > 1<<24 {
		return nil, fmt.Errorf("staging: pool of %d bytes in buffers of %d: want at most %d buffers", total, size, 1<<24)
	}
	p := &Pool{info: PoolInfo{Bytes: n * size, BufferSize: int(size), Buffers: int(n)}}
	if int64(int(p.info.Bytes)) != p.info.Bytes {
		return nil, fmt.Errorf("staging: pool of %d bytes: more than this system can address", total)
	}
	if err := p.allocate(cfg); err != nil {
		return nil, fmt.Errorf("staging: pool of %d bytes: %w", p.info.Bytes, err)
	}
	p.gens = make([]atomic.Uint32, n)
	p.free = make([]int32, n)
	for i := range p.free {
		p.free[i] = int32(int(n) - 1 - i) // the first buffers, which are locked first, go out first
	}
	return p, nil
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
		return b, nil
	}
	w := make(chan Buffer, 1)
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()

	select {
	case b := <-w:
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
		b.Release()
	}
	return Buffer{}, context.Cause(ctx)
}

// TryGet returns a buffer if one is free. It does not allocate.
func (p *Pool) TryGet() (Buffer, bool) {
	p.mu.Lock()
	b, ok := p.pop()
	p.mu.Unlock()
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

// Close gives the memory back. While buffers are out it refuses, says how many, and changes nothing: release them and
// call Close again. Closing twice is harmless.
func (p *Pool) Close() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil
	}
	if n := p.out(); n > 0 {
		return fmt.Errorf("staging: cannot close the pool: %d of %d buffers are still out; release them first", n, p.info.Buffers)
	}
	p.closed = true
	p.mem = nil
	if err := p.unmap(); err != nil {
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
		panic("staging: use of a buffer after Release")
	}
	size := b.pool.info.BufferSize
	at := int(b.index) * size
	return b.pool.mem[at : at+size : at+size]
}

// Release gives the buffer back to its pool. Releasing twice panics, also when the buffer has a new owner already.
func (b Buffer) Release() {
	p := b.pool
	if p == nil || !p.gens[b.index].CompareAndSwap(b.gen, b.gen+1) {
		panic("staging: buffer released twice")
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
