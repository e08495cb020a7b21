//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging"
	"github.com/stretchr/testify/require"
)

// Copies of all sizes from many goroutines land where they belong, late and in any order.
func TestCopies(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("jitter_us=300")
		d := open(t, v, s, Config{})
		const parts, each = 4, 3 << 20
		src, dst := registered(t, d, parts*each), registered(t, d, parts*each)
		clear(dst)
		mem := alloc(t, d, parts*each)
		var wg sync.WaitGroup
		for p := range parts {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(5, uint64(p)))
				var cuts []int
				for at := p * each; at < (p+1)*each; {
					cuts = append(cuts, at)
					at += 1 + r.IntN([]int{100, 10_000, 1 << 20}[r.IntN(3)])
				}
				cuts = append(cuts, (p+1)*each)
				for _, dir := range []direction{toDevice, toHost} {
					res := newResults(t, len(cuts)-1)
					for _, i := range r.Perm(len(cuts) - 1) {
						from, to := cuts[i], cuts[i+1]
						if dir == toDevice {
							d.CopyIn(mem, int64(from), src[from:to], res.done(i))
						} else {
							d.CopyOut(dst[from:to], mem, int64(from), res.done(i))
						}
					}
					res.require()
				}
			})
		}
		wg.Wait()
		require.True(t, bytes.Equal(src, dst))
		stats := d.Stats()
		require.EqualValues(t, parts*each, stats.InBytes)
		require.EqualValues(t, parts*each, stats.OutBytes)
		require.Equal(t, s.Count("copies"), stats.InCopies+stats.OutCopies)
		require.EqualValues(t, parts*each, stats.Memory)
		require.EqualValues(t, 2*parts*each, stats.RegisteredBytes)
		require.Zero(t, stats.UnregisteredBytes)
	})
}

// Memory that is not registered is copied at once, and counted.
func TestUnregistered(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		pin := registered(t, d, 8192)
		mem := alloc(t, d, 8192)
		src, dst := []byte("from the Go heap"), make([]byte, 16)
		called := false
		d.CopyIn(mem, 100, src, func(err error) { called = err == nil })
		require.True(t, called)
		require.NoError(t, out(d, dst, mem, 100))
		require.Equal(t, src, dst)
		require.EqualValues(t, 32, d.Stats().UnregisteredBytes)

		// Half of it is registered.
		m := pages(t, 8192)
		unregister, err := d.Register(m[:4096])
		require.NoError(t, err)
		require.NoError(t, in(d, mem, 0, m))
		require.EqualValues(t, 32+8192, d.Stats().UnregisteredBytes)
		require.NoError(t, out(d, pin, mem, 0))
		require.Equal(t, m, pin)
		require.NoError(t, unregister())
		require.NoError(t, unregister(), "again")
	})
}

// Whatever thread a goroutine is on, the device is current during the calls, and what was current before is so again.
func TestThreads(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		zero, one := open(t, v, s, Config{}), open(t, v, s, Config{Ordinal: 1})
		shared := registered(t, zero, 1<<20)
		var wg sync.WaitGroup
		for i := range 6 {
			wg.Go(func() {
				runtime.LockOSThread() // for good: the thread ends with the goroutine
				foreign := i % 2
				s.MakeCurrent(foreign)
				for _, d := range []*Device{one, zero, one} {
					m, err := d.Alloc(1 << 10)
					if err != nil {
						t.Error(err)
						return
					}
					mine := shared[i<<12 : i<<12+1<<10]
					for _, err := range []error{in(d, m, 0, mine), out(d, mine, m, 0), in(d, m, 0, make([]byte, 100))} {
						if err != nil {
							t.Error(err)
						}
					}
					m.Free()
					if got := s.Current(); got != foreign {
						t.Errorf("device %d was current, now it is %d", foreign, got)
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestRefused(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d, other := open(t, v, s, Config{}), open(t, v, s, Config{})
		mem, foreign := alloc(t, d, 1000), alloc(t, other, 1000)
		pin := registered(t, d, 4096)
		host, err := staging.Host{}.Alloc(1000)
		require.NoError(t, err)
		defer host.Free()
		freed := alloc(t, d, 1000)
		freed.Free()
		before := s.Count("copies")
		for _, c := range []struct {
			mem  staging.Memory
			off  int64
			n    int
			text string
		}{
			{mem, 0, 1001, "copy of 1001 bytes at 0 in memory of 1000"},
			{mem, 990, 11, "copy of 11 bytes"},
			{mem, -1, 1, "at -1"},
			{mem, 1 << 62, 1, "copy of 1 bytes"},
			{foreign, 0, 1, "not this device's"},
			{host, 0, 1, "not this device's"},
			{nil, 0, 1, "not this device's"},
			{freed, 0, 1, "that is freed"},
		} {
			require.ErrorContains(t, in(d, c.mem, c.off, pin[:c.n]), c.text)
			require.ErrorContains(t, out(d, pin[:c.n], c.mem, c.off), c.text)
		}
		require.Equal(t, before, s.Count("copies"), "none of them came to the driver")
		require.NoError(t, in(d, mem, 1000, nil))
		require.PanicsWithValue(t, v.Name+": memory freed twice", freed.Free)

		for _, bad := range [][]byte{nil, pin[:100], pin[1:], pages(t, 8192)[100 : 100+4096]} {
			_, err := d.Register(bad)
			require.ErrorContains(t, err, "whole pages")
		}
		big := registered(t, d, 8192)
		_, err = d.Register(big[4096:])
		var e *Error
		require.ErrorAs(t, err, &e, "a part of it is registered already")
		require.Equal(t, 712, e.Code)
		_, err = d.Alloc(-1)
		require.Error(t, err)
	})
}

func TestAlloc(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("memory=1048576")
		d := open(t, v, s, Config{})
		m := alloc(t, d, 1000)
		require.EqualValues(t, 1000, m.Len())
		require.Nil(t, m.Bytes())
		require.NotZero(t, m.Pointer())
		require.Zero(t, m.Pointer()%256)
		empty := alloc(t, d, 0)
		require.Zero(t, empty.Len())
		require.NoError(t, in(d, empty, 0, nil))
		_, err := d.Alloc(1 << 20)
		require.ErrorContains(t, err, "allocating 1048576 bytes on device 0")
		require.ErrorContains(t, err, "1047576 of 1048576 bytes are free")
		require.ErrorContains(t, err, call(v, "cuda: cuMemAlloc_v2: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", "rocm: hipMalloc: hipErrorOutOfMemory (2): out of memory"))
	})
}

// Several devices share host memory: the driver refuses to pin it twice, and pins it until the last of them has done with it.
func TestShared(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		devices := []*Device{open(t, v, s, Config{}), open(t, v, s, Config{Ordinal: 1})}
		pool, err := staging.NewPool(staging.PoolConfig{Bytes: 1 << 20, BufferSize: 64 << 10, Devices: []staging.Device{devices[0], devices[1]}, Register: staging.Require})
		require.NoError(t, err)
		require.EqualValues(t, 1, s.Count("registrations"))
		buf, _ := pool.TryGet()
		for _, d := range devices {
			require.NoError(t, in(d, alloc(t, d, 64<<10), 0, buf.Bytes()))
			require.Zero(t, d.Stats().UnregisteredBytes)
		}
		buf.Release()
		require.NoError(t, pool.Close())
		require.Zero(t, s.Count("registrations"))

		m := pages(t, 4096)
		for _, order := range [][2]int{{0, 1}, {1, 0}} {
			var undo [2]func() error
			for i, d := range devices {
				undo[i], err = d.Register(m)
				require.NoError(t, err)
			}
			require.NoError(t, undo[order[0]]())
			require.EqualValues(t, 1, s.Count("registrations"))
			require.NoError(t, in(devices[order[1]], alloc(t, devices[order[1]], 4096), 0, m))
			require.NoError(t, undo[order[1]]())
			require.Zero(t, s.Count("registrations"))
		}
	})
}

// Memory that the caller owns is used, and not freed.
func TestWrap(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		owned := alloc(t, d, 10_000)
		w, err := d.Wrap(owned.Pointer()+1000, 5000)
		require.NoError(t, err)
		src, dst := pages(t, 4096), make([]byte, 4096)
		require.NoError(t, in(d, w, 900, src))
		require.NoError(t, out(d, dst, owned, 1900))
		require.Equal(t, src, dst)
		require.Error(t, in(d, w, 5000, src[:1]))
		w.Free()
		require.EqualValues(t, 1, s.Count("allocations"))
		for _, n := range []int64{-1, 1} {
			_, err = d.Wrap(0, n)
			require.Error(t, err)
		}
		_, err = d.Wrap(^uintptr(0)-10, 100)
		require.Error(t, err)
	})
}

// What copies in flight use stays: device memory that is freed is given back after them, host memory is not unregistered.
func TestInFlight(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		src := pages(t, 1<<20)
		unregister, err := d.Register(src)
		require.NoError(t, err)
		m, err := d.Alloc(1 << 20)
		require.NoError(t, err)
		s.Set("delay_us=50000")
		c := make(chan error, 1)
		d.CopyIn(m, 0, src, func(err error) { c <- err })
		m.Free()
		if err := unregister(); err != nil { // else this machine was asleep for as long as the copy took, or the stand-in will say
			require.ErrorContains(t, err, "1 copies are in flight")
		}
		require.NoError(t, <-c)
		require.Zero(t, s.Count("allocations"))
		require.NoError(t, unregister())
	})
}

func TestCloseWaits(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d, err := Open(v, true, Config{Library: s.Path})
		require.NoError(t, err)
		src := pages(t, 1<<20)
		unregister, err := d.Register(src)
		require.NoError(t, err)
		m, err := d.Alloc(1 << 20)
		require.NoError(t, err)
		s.Set("delay_us=3000")
		res := newResults(t, 20)
		for i := range 20 {
			d.CopyIn(m, 0, src[i:], res.done(i))
		}
		err = d.Close()
		require.Zero(t, res.left.Load())
		res.require()
		require.ErrorContains(t, err, "1 allocations of 1048576 bytes were not freed")
		require.ErrorContains(t, err, "1048576 bytes of host memory were still registered")
		require.NoError(t, d.Close())

		// Everything is over, and says so or does nothing.
		m.Free()
		require.NoError(t, unregister())
		require.ErrorIs(t, in(d, alien(d), 0, src), ErrClosed)
		_, err = d.Alloc(1)
		require.ErrorIs(t, err, ErrClosed)
		_, err = d.Register(src)
		require.ErrorIs(t, err, ErrClosed)
		require.Zero(t, d.Stats().Memory)
	})
}

// alien is memory that is not freed.
func alien(d *Device) *Memory {
	m, _ := d.Wrap(1<<20, 1<<20)
	return m
}

// A steady flow of copies allocates nothing, and needs no more events than there are.
func TestNoAllocation(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		require.EqualValues(t, 2*defaultStreams, s.Count("streams"))
		require.EqualValues(t, 2*defaultStreams*maxFences, s.Count("events"))
		src := registered(t, d, 1<<20)
		m := alloc(t, d, 1<<20)
		c := make(chan error, 1000)
		done := func(err error) { c <- err }
		n := testing.AllocsPerRun(20, func() {
			for i := range 1000 {
				d.CopyIn(m, 0, src[:1+i%2000], done)
			}
			for range 1000 {
				if err := <-c; err != nil {
					t.Error(err)
				}
			}
		})
		require.Zero(t, n, "for 1000 copies")
		require.EqualValues(t, 2*defaultStreams*maxFences, s.Count("events"))
	})
}

// Also when all events are in use, and none of the copies is large.
func TestMoreCopiesThanEvents(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{Streams: 1})
		src := registered(t, d, fenceBytes+4096)
		m := alloc(t, d, int64(len(src)))
		s.Set("delay_us=200", "move=0")
		const n = 4 * maxFences
		res := newResults(t, n)
		for i := range n {
			d.CopyIn(m, 0, src[:fenceBytes+i%2], res.done(i))
		}
		res.require()
		s.Set("delay_us=0")
		res = newResults(t, 10_000)
		for i := range res.errs {
			d.CopyIn(m, 0, src[:10], res.done(i))
		}
		res.require()
	})
}

// The stand-in's link carries no more than it should.
func TestLinkRate(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		src := registered(t, d, 1<<20)
		m := alloc(t, d, 1<<20)
		s.Set("rate=1e9")
		begun := time.Now()
		res := newResults(t, 50)
		for i := range 50 {
			d.CopyIn(m, 0, src, res.done(i))
		}
		res.require()
		require.GreaterOrEqual(t, time.Since(begun), 52*time.Millisecond)
	})
}
