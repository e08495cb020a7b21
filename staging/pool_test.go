package staging

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	if os.Getenv(poolChildEnv) != "" {
		poolChild()
		return
	}
	goleak.VerifyTestMain(m)
}

// poolChildEnv makes the test binary run poolChild instead, in a process of its own.
const poolChildEnv = "NVSTAGE_TEST_POOL_CHILD"

var poolChild func() // where the system has such a test

// newPool makes a pool of n buffers and checks at the end of the test that all are back.
func newPool(t testing.TB, n, size int) *Pool {
	p, err := NewPool(PoolConfig{Bytes: int64(n) * int64(size), BufferSize: size})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func TestPoolZeroConfig(t *testing.T) {
	p, err := NewPool(PoolConfig{})
	require.NoError(t, err)
	info := p.Info()
	t.Log(info)
	require.EqualValues(t, DefaultPoolBytes, info.Bytes)
	require.Equal(t, DefaultBufferSize, info.BufferSize)
	require.Equal(t, 64, info.Buffers)
	require.Equal(t, info.HugePages, info.HugePagesNote == "", "either hugepages or a reason")
	require.Equal(t, info.LockedBytes == info.Bytes, info.LockNote == "", "either all locked or a reason")

	seen := map[*byte]bool{}
	for range info.Buffers {
		b, ok := p.TryGet()
		require.True(t, ok)
		m := b.Bytes()
		require.Len(t, m, info.BufferSize)
		require.Equal(t, info.BufferSize, cap(m), "an append must not reach the next buffer")
		require.Zero(t, uintptr(unsafe.Pointer(&m[0]))%bufferAlign)
		require.False(t, seen[&m[0]])
		seen[&m[0]] = true
		m[0], m[len(m)-1] = 1, 1
		defer b.Release()
	}
	_, ok := p.TryGet()
	require.False(t, ok, "the pool does not grow")
}

func TestPoolConfig(t *testing.T) {
	for _, cfg := range []PoolConfig{
		{BufferSize: 1000},
		{BufferSize: -4096},
		{Bytes: -1},
		{BufferSize: 2 << 30},
		{Bytes: 1 << 62, BufferSize: 4096},
		{Bytes: 1 << 62, BufferSize: 1 << 30},
	} {
		_, err := NewPool(cfg)
		require.Error(t, err, "%+v", cfg)
	}
	p, err := NewPool(PoolConfig{Bytes: 5000, BufferSize: 4096, HugePages: Never, Lock: Never})
	require.NoError(t, err)
	defer p.Close()
	require.Equal(t, 2, p.Info().Buffers, "rounded up")
	require.Zero(t, p.Info().LockedBytes)
	require.False(t, p.Info().HugePages)
}

// What is required is there, or NewPool fails and says what to do.
func TestPoolRequire(t *testing.T) {
	p, err := NewPool(PoolConfig{Bytes: 4 << 20, HugePages: Require})
	if err == nil {
		require.True(t, p.Info().HugePages)
		require.NoError(t, p.Close())
	} else {
		require.ErrorContains(t, err, "hugepages")
	}
	p, err = NewPool(PoolConfig{Bytes: 4 << 20, Lock: Require})
	if err == nil {
		require.Equal(t, p.Info().Bytes, p.Info().LockedBytes)
		require.NoError(t, p.Close())
	} else {
		require.ErrorContains(t, err, "locked memory")
	}
}

func TestPoolLastInFirstOut(t *testing.T) {
	p := newPool(t, 4, 4096)
	a, _ := p.TryGet()
	b, _ := p.TryGet()
	at := &a.Bytes()[0]
	b.Release()
	a.Release()
	c, _ := p.TryGet()
	defer c.Release()
	require.Same(t, at, &c.Bytes()[0])
}

func TestPoolDoubleRelease(t *testing.T) {
	p := newPool(t, 1, 4096)
	a, _ := p.TryGet()
	a.Release()
	require.Panics(t, func() { a.Release() })
	require.Panics(t, func() { a.Bytes() })

	b, _ := p.TryGet() // the same buffer has a new owner now
	require.Panics(t, func() { a.Release() })
	require.Panics(t, func() { a.Bytes() })
	require.Equal(t, 1, p.Out())
	b.Release()
	require.Panics(t, func() { Buffer{}.Release() })
}

func TestPoolGetWaits(t *testing.T) {
	p := newPool(t, 1, 4096)
	a, err := p.Get(t.Context())
	require.NoError(t, err)

	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("why")
	time.AfterFunc(10*time.Millisecond, func() { cancel(why) })
	_, err = p.Get(ctx)
	require.ErrorIs(t, err, why)

	time.AfterFunc(10*time.Millisecond, a.Release)
	b, err := p.Get(t.Context())
	require.NoError(t, err)
	b.Release()
	_, err = p.Get(ctx)
	require.ErrorIs(t, err, why, "also when one is free")
}

func TestPoolOnRelease(t *testing.T) {
	p := newPool(t, 2, 4096)
	n := 0
	remove := p.OnRelease(func() {
		if n++; n < 3 { // the hook may use the pool: no lock is held
			b, ok := p.TryGet()
			require.True(t, ok)
			b.Release()
		}
	})
	a, _ := p.TryGet()
	a.Release()
	require.Equal(t, 3, n)
	remove()
	a, _ = p.TryGet()
	a.Release()
	require.Equal(t, 3, n)
}

func TestPoolCloseRefuses(t *testing.T) {
	p, err := NewPool(PoolConfig{Bytes: 3 * 4096, BufferSize: 4096})
	require.NoError(t, err)
	a, _ := p.TryGet()
	b, _ := p.TryGet()
	require.ErrorContains(t, p.Close(), "2 of 3 buffers are still out")
	a.Bytes()[0] = 1 // still mapped
	a.Release()
	b.Release()
	require.NoError(t, p.Close())
	require.NoError(t, p.Close())
	_, err = p.Get(t.Context())
	require.ErrorIs(t, err, ErrPoolClosed)
	_, ok := p.TryGet()
	require.False(t, ok)
}

// No buffer has two owners, none is lost, whatever mix of waiting, cancelling and releasing.
func TestPoolConcurrent(t *testing.T) {
	p := newPool(t, 3, 4096)
	var wg sync.WaitGroup
	var owners [3]atomic.Int32
	for g := range 8 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(1, uint64(g)))
			for range 500 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Duration(r.IntN(200))*time.Microsecond)
				b, err := p.Get(ctx)
				if err == nil {
					if owners[b.index].Add(1) != 1 {
						t.Error("two owners")
					}
					b.Bytes()[r.IntN(4096)]++
					owners[b.index].Add(-1)
					b.Release()
				}
				cancel()
			}
		})
	}
	wg.Wait()
	require.Zero(t, p.Out())
	require.Empty(t, p.waiters)
}

func TestPoolGetDoesNotAllocate(t *testing.T) {
	p := newPool(t, 2, 4096)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b, _ := p.TryGet()
		b.Release()
	}))
}
