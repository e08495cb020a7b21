package staging

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

func debugPool(t testing.TB, n, size int) *Pool {
	t.Helper()
	p, err := NewPool(PoolConfig{Bytes: int64(n * size), BufferSize: size, Lock: Never, Debug: true})
	require.NoError(t, err)
	return p
}

// panicText is what f panics with.
func panicText(t testing.TB, f func()) (text string) {
	t.Helper()
	defer func() {
		t.Helper()
		v := recover()
		require.NotNil(t, v, "no panic")
		text = fmt.Sprint(v)
	}()
	f()
	return ""
}

//go:noinline
func takeOne(t testing.TB, p *Pool) Buffer {
	b, err := p.Get(t.Context())
	require.NoError(t, err)
	return b
}

//go:noinline
func releaseOne(b Buffer) { b.Release() }

func TestPoolDebug(t *testing.T) {
	p := debugPool(t, 2, 8192)
	info := p.Info()
	t.Log(info)
	require.True(t, info.Debug)
	require.Contains(t, info.String(), "debug mode")
	require.Equal(t, info.Guards == 0, info.GuardNote != "", "either guard pages or a reason")
	require.Contains(t, []int{0, info.Buffers}, info.Guards)

	a := takeOne(t, p)
	mem := a.Bytes()
	require.Equal(t, strings.Repeat("\xdb", 8192), string(mem))
	for i := range mem {
		mem[i] = byte(i)
	}
	releaseOne(a)
	require.Equal(t, strings.Repeat("\xdb", 8192), string(mem), "nobody reads the old bytes")
	for _, f := range []func(){a.Release, func() { a.Bytes() }} {
		text := panicText(t, f)
		require.Contains(t, text, "staging.takeOne")
		require.Contains(t, text, "staging.releaseOne")
		require.Contains(t, text, "pool_debug_test.go:")
		require.NotContains(t, text, "staging.(*Pool)", "stacks begin at the caller")
	}
	require.NotPanics(t, func() { takeOne(t, p).Release() })
	require.NoError(t, p.Close())
	require.Contains(t, panicText(t, func() { a.Bytes() }), "use of a buffer after Release", "also after Close")
}

// A write into a free buffer is found at the next hand-over, whichever byte and whichever way the buffer is handed over.
func TestPoolDebugWriteAfterRelease(t *testing.T) {
	for _, at := range []int{0, 1, 4095, 4096, 8191} {
		for name, take := range map[string]func(p *Pool){
			"TryGet": func(p *Pool) { p.TryGet() },
			"Get":    func(p *Pool) { _, _ = p.Get(context.Background()) },
		} {
			p := debugPool(t, 1, 8192)
			a := takeOne(t, p)
			mem := a.Bytes()
			releaseOne(a)
			mem[at] = 0
			text := panicText(t, func() { take(p) })
			require.Contains(t, text, fmt.Sprintf("buffer 0 was written to while it was free, at offset %d (byte 0x00), up to offset %d\n", at, at), name)
			require.Contains(t, text, "staging.takeOne")
			require.Contains(t, text, "staging.releaseOne")
			require.NoError(t, p.rollback(0)) // the buffer is out, and stays so
		}
	}
}

// A waiter gets the buffer on the releasing goroutine, so that the write comes before the check only if it is a race; the
// check must be there nevertheless.
func TestPoolDebugWaiter(t *testing.T) {
	p := debugPool(t, 1, 4096)
	a := takeOne(t, p)
	mem := a.Bytes()
	w := make(chan Buffer, 1)
	p.mu.Lock()
	p.waiters = append(p.waiters, w)
	p.mu.Unlock()
	a.Release()
	b := <-w
	mem[7] = 1
	require.Contains(t, panicText(t, func() { p.debug.taken(b) }), "at offset 7")
	mem[7] = poison

	ready := make(chan Buffer)
	go func() {
		c, err := p.Get(context.Background())
		if err != nil {
			panic(err)
		}
		ready <- c
	}()
	for { // until the goroutine waits
		p.mu.Lock()
		n := len(p.waiters)
		p.mu.Unlock()
		if n > 0 {
			break
		}
		runtime.Gosched()
	}
	clear(mem) // the owner's last write
	b.Release()
	c := <-ready
	require.Equal(t, byte(poison), c.Bytes()[0])
	require.Contains(t, p.Close().Error(), "TestPoolDebugWaiter.func", "the waiter has it")
	c.Release()
	require.NoError(t, p.Close())
}

// Close tells who holds the buffers, and who wrote to free ones, but not of all when there are many.
func TestPoolDebugClose(t *testing.T) {
	p := debugPool(t, 8, 4096)
	var held []Buffer
	for range 6 {
		held = append(held, takeOne(t, p))
	}
	last, _ := p.TryGet()
	at := last.Bytes()
	last.Release()
	text := p.Close().Error()
	require.Contains(t, text, "6 of 8 buffers are still out")
	require.Equal(t, 4, strings.Count(text, "staging.takeOne\n"))
	require.Contains(t, text, "and 2 more")
	require.NotContains(t, text, "was released")
	for _, b := range held {
		b.Release()
	}
	at[5] = 1
	text = p.Close().Error()
	require.Contains(t, text, "closing the pool: buffer 6 was written to while it was free, at offset 5 (byte 0x01)")
	require.NoError(t, p.Close(), "closed it is")

	p = newPoolOf(t, PoolConfig{Bytes: 4096, BufferSize: 4096})
	b, _ := p.TryGet()
	require.ErrorContains(t, p.Close(), "PoolConfig.Debug tells")
	b.Release()
}

func newPoolOf(t testing.TB, cfg PoolConfig) *Pool {
	t.Helper()
	p, err := NewPool(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestPoolDebugConcurrent(t *testing.T) {
	p := debugPool(t, 3, 4096)
	var wg sync.WaitGroup
	for g := range 6 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(2, uint64(g)))
			for range 300 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200))*time.Microsecond)
				if b, err := p.Get(ctx); err == nil {
					b.Bytes()[r.IntN(4096)]++
					b.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.NoError(t, p.Close())
}

// lateSource completes its reads when the context ends, as sources must, and writes to the buffers nevertheless if late is set.
type lateSource struct {
	*device
	late  bool
	after func(write func()) // has the write that comes late
}

func (s *lateSource) Feed(ctx context.Context, f Feed) error {
	wake := make(chan struct{}, 1)
	f.Attach(func() {
		select {
		case wake <- struct{}{}:
		default:
		}
	})
	var reads []*Read
	for len(reads) < s.depth { // all buffers of the pool
		r, done := f.Next()
		if done {
			return errors.New("fewer reads than buffers")
		}
		if r == nil {
			<-wake
			continue
		}
		reads = append(reads, r)
	}
	s.onRead(0) // now everything is in flight: the test cancels
	<-ctx.Done()
	late := reads[len(reads)-1].Buf
	for _, r := range reads {
		copy(r.Buf, s.data[r.Off:])
		r.Err = ctx.Err()
		f.Complete(r)
	}
	if s.late {
		s.after(func() { late[len(late)/2] = 0x5a })
	}
	return ctx.Err()
}

// Invariant 1: a buffer comes back only when nobody can write to it any more. A source that breaks it is caught.
func TestStreamCancelLateWrite(t *testing.T) {
	for _, late := range []bool{false, true} {
		for _, pieces := range []bool{false, true} {
			t.Run(fmt.Sprintf("late=%v/pieces=%v", late, pieces), func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				d := plainShard(t, 8, 4*4096)
				d.onRead = func(int64) { cancel(errCause) }
				var write func()
				shard, err := OpenShard(t.Context(), &lateSource{device: d, late: late, after: func(w func()) { write = w }})
				require.NoError(t, err)
				p := debugPool(t, d.depth, 4096)
				l := &Loader{Pool: p}
				if pieces {
					for _, err := range l.Pieces(ctx, shard.Plan()) {
						require.ErrorIs(t, err, errCause)
					}
				} else {
					for _, err := range l.Stream(ctx, shard.Plan(), Host{}) {
						require.ErrorIs(t, err, errCause)
					}
				}
				require.Zero(t, p.Out())
				if !late {
					require.NoError(t, p.Close())
					return
				}
				write()
				text := panicText(t, func() {
					for range p.info.Buffers {
						p.TryGet()
					}
				})
				require.Contains(t, text, "was written to while it was free, at offset 2048 (byte 0x5a)")
				require.Contains(t, text, "staging.(*feed).Complete", "who released it")
				require.Contains(t, text, "staging.(*feed).Next", "who took it")
				require.NoError(t, p.rollback(0))
			})
		}
	}
}

// forgetful returns with a read in flight.
type forgetful struct{ *device }

func (s forgetful) Feed(_ context.Context, f Feed) error {
	f.Attach(func() {})
	f.Next()
	return nil
}

// A read that a source forgets keeps its buffer for ever, and debug mode says whose it is.
func TestStreamForgottenRead(t *testing.T) {
	shard, err := OpenShard(t.Context(), forgetful{plainShard(t, 2, 8*4096)})
	require.NoError(t, err)
	p := debugPool(t, 2, 4096)
	for _, err := range shard.Stream(t.Context(), p, Host{}) {
		require.ErrorContains(t, err, "with 1 reads in flight")
	}
	err = p.Close()
	require.ErrorContains(t, err, "1 of 2 buffers are still out")
	require.ErrorContains(t, err, "staging.(*feed).Next")
	require.NoError(t, p.rollback(0))
}

// All that the loader does, with faults and cancels, in debug mode: nobody writes to what is not his.
func TestStreamDebug(t *testing.T) {
	for seed := range uint64(25) {
		for _, pieces := range []bool{false, true} {
			s := newSetup(t, seed)
			info := s.pool.Info()
			require.NoError(t, s.pool.Close())
			s.pool = debugPool(t, info.Buffers, info.BufferSize)
			s.load.Pool = s.pool
			ctx, cancel := context.WithCancelCause(t.Context())
			d := s.devs[0]
			at := int64(1 + s.r.IntN(12))
			switch s.r.IntN(4) {
			case 0:
				d.failAt = at
			case 1:
				d.breakAt = at
			case 2:
				d.onRead = func(n int64) {
					if n == at {
						cancel(errCause)
					}
				}
			}
			for range s.stream(t, ctx, pieces) { // what comes is the matter of TestStreamProperties
			}
			cancel(nil)
			require.NoError(t, s.gpu.Close())
			require.NoError(t, s.pool.Close())
		}
	}
}

// Over real connections: a cancelled stream leaves no buffer that the kernel writes to.
func TestNamespaceCancelDebug(t *testing.T) {
	image := randomShard(t, "x", 3<<20, 2<<20)
	_, srcs := connect(t, nvmetest.ModeNVMET, 512, image)
	shard, err := OpenShard(t.Context(), srcs[0])
	require.NoError(t, err)
	p := debugPool(t, 8, 128<<10)
	r := rand.New(rand.NewPCG(3, 3))
	cancelled := 0
	for range 12 {
		ctx, cancel := context.WithCancelCause(t.Context())
		n, at := 0, r.IntN(20)
		l := &Loader{Pool: p}
		for x, err := range l.Pieces(ctx, shard.Plan()) {
			if err != nil {
				require.True(t, errors.Is(err, errCause), "%v", err)
				cancelled++
				break
			}
			x.Release()
			if n++; n == at {
				cancel(errCause)
			}
		}
		cancel(nil)
		// Hand out all of it, so that all of it is checked.
		var all []Buffer
		for range p.info.Buffers {
			all = append(all, takeOne(t, p))
		}
		for _, b := range all {
			b.Release()
		}
	}
	require.NotZero(t, cancelled)
	require.NoError(t, p.Close())
}
