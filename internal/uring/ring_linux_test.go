package uring

import (
	"fmt"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// The sizes are the kernel's ABI.
func TestABI(t *testing.T) {
	require.EqualValues(t, 64, unsafe.Sizeof(sqe{}))
	require.EqualValues(t, 32, unsafe.Offsetof(sqe{}.userData))
	require.EqualValues(t, 16, unsafe.Sizeof(CQE{}))
	require.EqualValues(t, 120, unsafe.Sizeof(params{}))
	require.EqualValues(t, 40, unsafe.Offsetof(params{}.sqOff))
	require.EqualValues(t, 80, unsafe.Offsetof(params{}.cqOff))
	require.EqualValues(t, 24, unsafe.Sizeof(getEventsArg{}))
	require.EqualValues(t, 16, unsafe.Offsetof(getEventsArg{}.ts))
	require.EqualValues(t, 16, unsafe.Sizeof(rsrcUpdate{}))
	require.EqualValues(t, 16+256*8, unsafe.Sizeof(probe{}))
}

func TestConfig(t *testing.T) {
	for _, c := range []Config{{}, {Entries: 32769}, {Entries: 8, CQEntries: 4}, {Entries: 8, CQEntries: 65537}} {
		_, err := New(c)
		require.ErrorContains(t, err, "entries")
	}
	r := newRing(t, Config{Entries: 5, CQEntries: 33})
	require.Len(t, r.sqes, 8)
	require.Len(t, r.cqes, 64)
}

// Both rings go round many times, with batches that do not divide their size.
func TestWrap(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	next, want := uint64(0), uint64(0)
	for next < 8*50 {
		for range 1 + next%7 {
			require.True(t, nop(r, next))
			next++
		}
		require.NoError(t, r.Enter(int(next-want), patience))
		for c, ok := r.Next(); ok; c, ok = r.Next() {
			require.Equal(t, CQE{UserData: want}, c)
			want++
		}
		require.Equal(t, next, want)
		require.Zero(t, r.InFlight())
	}
}

// The positions are 32-bit counters that overflow in a long life.
func TestCounterOverflow(t *testing.T) {
	r := newRing(t, Config{Entries: 4})
	r.done -= 6 // below 0, as when the kernel's counter has just gone past it
	require.Equal(t, 6, r.InFlight())
	for i := range uint64(6) {
		require.True(t, nop(r, i))
		one(t, r, i)
	}
	require.Equal(t, 6, r.InFlight())
	r.done += 6
}

func TestFull(t *testing.T) {
	r := newRing(t, Config{Entries: 4})
	for i := range uint64(4) {
		require.True(t, nop(r, i))
	}
	var b [1]byte
	require.False(t, nop(r, 4))
	require.False(t, r.PrepRecv(0, false, ptr(b[:]), 1, 0, 4))
	require.False(t, r.PrepPoll(0, false, unix.POLLIN, false, 4))
	require.False(t, r.PrepCancel(0, 4))
	got := collect(t, r, 4)
	require.NotContains(t, got, uint64(4))
	require.True(t, nop(r, 5))
	one(t, r, 5)
}

// The kernel keeps what the completion ring has no room for.
func TestCompletionOverflow(t *testing.T) {
	r := newRing(t, Config{Entries: 4, CQEntries: 4})
	const n = 50
	for i := range uint64(n) {
		require.True(t, nop(r, i))
		require.NoError(t, r.Enter(0, 0))
	}
	require.NoError(t, r.Enter(5, -1), "more than the ring holds must not wait for ever")
	require.Equal(t, n, r.InFlight())
	require.Len(t, collect(t, r, n), n)
	require.Zero(t, r.InFlight())
}

// An operation that is refused does not keep those after it from being submitted.
func TestBadOperation(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	require.True(t, nop(r, 1))
	require.True(t, r.put(sqe{opcode: 255, userData: 2}))
	require.True(t, nop(r, 3))
	got := collect(t, r, 3)
	require.Zero(t, got[1].Res)
	require.Equal(t, -int32(unix.EINVAL), got[2].Res)
	require.Zero(t, got[3].Res)
}

func TestCloseWithArmedReceive(t *testing.T) {
	lock(t)
	a, b := socketpair(t)
	ev := eventfd(t)
	for _, fixed := range []bool{false, true} {
		r, err := New(Config{Entries: 8})
		require.NoError(t, err)
		fd := a
		if fixed {
			require.NoError(t, r.RegisterFiles([]int{b, a}))
			fd = 1
		}
		buf := make([]byte, 4)
		require.True(t, r.PrepRecv(fd, fixed, ptr(buf), 4, 0, 1))
		require.True(t, r.PrepPoll(ev, false, unix.POLLIN, true, 2))
		require.NoError(t, r.Enter(0, 0))
		require.Equal(t, 2, r.InFlight())
		require.True(t, r.PrepSend(fd, fixed, ptr([]byte("lost")), 4, 0, 3)) // prepared only

		require.NoError(t, r.Close())
		require.NoError(t, r.Close())
		_, _, err = unix.Recvfrom(b, make([]byte, 4), unix.MSG_DONTWAIT)
		require.ErrorIs(t, err, unix.EAGAIN, "Close must not submit")

		// The data is nobody's but ours now.
		_, err = unix.Write(b, []byte("data"))
		require.NoError(t, err)
		got := make([]byte, 8)
		n, err := unix.Read(a, got)
		require.NoError(t, err)
		require.Equal(t, "data", string(got[:n]))
		require.Equal(t, make([]byte, 4), buf)

		require.False(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 1))
		require.False(t, r.PrepCancel(1, 1))
		require.ErrorIs(t, r.Enter(1, -1), errClosed)
		require.ErrorIs(t, r.RegisterFiles([]int{a}), errClosed)
		require.Zero(t, r.InFlight())
		_, ok := r.Next()
		require.False(t, ok)
	}
}

// Close does not pretend: while something is in flight it fails, and can be tried again.
func TestCloseStuck(t *testing.T) {
	defer func(d time.Duration) { closeTimeout = d }(closeTimeout)
	closeTimeout = time.Millisecond
	r := newRing(t, Config{Entries: 4})
	r.done-- // an operation that the kernel does not let go
	require.ErrorContains(t, r.Close(), "1 operations still in flight 1ms after they were cancelled")
	require.True(t, nop(r, 1))
	one(t, r, 1)
	r.done++
	require.NoError(t, r.Close())
}

// Completions that nobody has taken do not get in Close's way.
func TestCloseWithCompletions(t *testing.T) {
	lock(t)
	r, err := New(Config{Entries: 4, CQEntries: 4})
	require.NoError(t, err)
	for i := range uint64(20) {
		require.True(t, nop(r, i))
		require.NoError(t, r.Enter(0, 0))
	}
	require.NoError(t, r.Close())
}

// After Close nothing holds a registered socket open.
func TestCloseLetsFilesGo(t *testing.T) {
	lock(t)
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(p[1])
	require.NoError(t, unix.SetNonblock(p[1], true))
	r, err := New(Config{Entries: 4})
	require.NoError(t, err)
	require.NoError(t, r.RegisterFiles([]int{p[0]}))
	require.NoError(t, r.RegisterFiles([]int{p[0], p[0]}), "a second table replaces the first")
	require.Error(t, r.RegisterFiles(nil))
	require.ErrorIs(t, r.RegisterFiles([]int{1 << 20}), unix.EBADF)
	require.NoError(t, r.RegisterFiles([]int{p[0]}))
	require.NoError(t, r.Close())
	unix.Close(p[0])
	n, err := unix.Read(p[1], make([]byte, 1))
	require.NoError(t, err)
	require.Zero(t, n)
}

func TestOtherThread(t *testing.T) {
	r := newRing(t, Config{Entries: 4})
	require.True(t, nop(r, 1))
	errs := make(chan error, 2)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		errs <- r.Enter(1, -1)
		errs <- r.Close()
	}()
	require.ErrorContains(t, <-errs, "lock the goroutine to its thread")
	require.ErrorContains(t, <-errs, "close it there")
	one(t, r, 1)
}

// Neither descriptors nor the thread's 16 places for registered rings leak.
func TestLeak(t *testing.T) {
	lock(t)
	before := openFds(t)
	for range 40 {
		require.NoError(t, Probe())
		r, err := New(Config{Entries: 4})
		require.NoError(t, err)
		require.Contains(t, r.Features(), "REGISTERED_RING")
		require.NoError(t, r.Close())
	}
	require.Equal(t, before, openFds(t))
}

// A thread has 16 places for registered rings; the ring after those works too.
func TestManyRings(t *testing.T) {
	lock(t)
	var rings []*Ring
	for range 17 {
		r, err := New(Config{Entries: 2})
		require.NoError(t, err)
		rings = append(rings, r)
	}
	last := rings[16]
	require.NotContains(t, last.Features(), "REGISTERED_RING")
	require.Len(t, last.Notes(), 1)
	for i, r := range rings {
		require.True(t, nop(r, uint64(i)))
		one(t, r, uint64(i))
		require.NoError(t, r.Close())
	}
}

// Two rings, each on its thread: one sends and awaits the echo of the other.
func TestParallel(t *testing.T) {
	lock(t)
	a, b := tcpPair(t)
	const rounds = 500
	onRing := func(f func(r *Ring, do func(ops int) error) error) error {
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		r, err := New(Config{Entries: 2})
		if err != nil {
			return err
		}
		defer r.Close()
		return f(r, func(ops int) error {
			for ops > 0 {
				if err := r.Enter(ops, patience); err != nil {
					return err
				}
				for c, ok := r.Next(); ok; c, ok = r.Next() {
					if c.Res != 1 {
						return fmt.Errorf("operation %d gave %d", c.UserData, c.Res)
					}
					ops--
				}
			}
			return nil
		})
	}
	errs := make(chan error, 2)
	go func() {
		errs <- onRing(func(r *Ring, do func(int) error) error {
			out, in := make([]byte, 1), make([]byte, 1)
			for i := range rounds {
				out[0] = byte(i)
				r.PrepSend(a, false, ptr(out), 1, 0, 1)
				r.PrepRecv(a, false, ptr(in), 1, 0, 2)
				if err := do(2); err != nil {
					return err
				}
				if in[0] != out[0] {
					return fmt.Errorf("round %d: echo of %d is %d", i, out[0], in[0])
				}
			}
			return nil
		})
	}()
	go func() {
		errs <- onRing(func(r *Ring, do func(int) error) error {
			buf := make([]byte, 1)
			for range rounds {
				r.PrepRecv(b, false, ptr(buf), 1, 0, 1)
				if err := do(1); err != nil {
					return err
				}
				r.PrepSend(b, false, ptr(buf), 1, 0, 2)
				if err := do(1); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	for range 2 {
		select {
		case err := <-errs:
			require.NoError(t, err)
		case <-time.After(patience):
			t.Fatal("the two sides wait for each other")
		}
	}
}
