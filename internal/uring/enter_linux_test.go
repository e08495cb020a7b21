package uring

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pester interrupts the calling thread again and again until the test ends.
func pester(t *testing.T) {
	pid, tid := os.Getpid(), unix.Gettid()
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
				unix.Tgkill(pid, tid, unix.SIGURG)
			}
		}
	}()
	t.Cleanup(func() { close(stop); <-stopped })
}

func TestTimeout(t *testing.T) {
	const timeout = 30 * time.Millisecond
	for name, interrupted := range map[string]bool{"quiet": false, "signals": true} {
		t.Run(name, func(t *testing.T) {
			r := newRing(t, Config{Entries: 8})
			a, b := socketpair(t)
			buf := make([]byte, 4)
			if interrupted {
				pester(t)
			}
			waits := func(want int) {
				t.Helper()
				start := time.Now()
				require.NoError(t, r.Enter(want, timeout))
				took := time.Since(start)
				require.GreaterOrEqual(t, took, timeout)
				require.Less(t, took, patience)
			}
			waits(1)
			require.True(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 1)) // submitted by the call that waits
			waits(1)
			require.Equal(t, 1, r.InFlight())
			require.True(t, nop(r, 2))
			waits(2)
			waits(2) // the first completion has not been taken
			c, ok := r.Next()
			require.True(t, ok)
			require.EqualValues(t, 2, c.UserData)
			_, ok = r.Next()
			require.False(t, ok)

			go func() {
				time.Sleep(timeout)
				unix.Write(b, buf)
			}()
			require.NoError(t, r.Enter(1, -1))
			c, ok = r.Next()
			require.True(t, ok, "without a limit it must not come back empty-handed")
			require.Equal(t, CQE{UserData: 1, Res: 4}, c)
		})
	}
}

// With a timeout of 0 or nothing wanted it submits and comes back.
func TestNoWait(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	a, b := socketpair(t)
	buf := make([]byte, 4)
	require.True(t, r.PrepRecv(a, false, ptr(buf), 4, 0, 1))
	require.NoError(t, r.Enter(3, 0))
	require.NoError(t, r.Enter(0, -1))
	require.NoError(t, r.Enter(-1, -1))
	_, ok := r.Next()
	require.False(t, ok)

	// The armed receive is finished by an Enter that neither submits nor waits.
	_, err := unix.Write(b, buf)
	require.NoError(t, err)
	require.NoError(t, r.Enter(0, 0))
	c, ok := r.Next()
	require.True(t, ok)
	require.Equal(t, CQE{UserData: 1, Res: 4}, c)
}

// What is there already costs no system call.
func TestEnough(t *testing.T) {
	r := newRing(t, Config{Entries: 8})
	for i := range uint64(3) {
		require.True(t, nop(r, i))
	}
	require.NoError(t, r.Enter(3, -1))
	fd := r.enterFd
	r.enterFd = 1 << 20
	require.Error(t, r.Enter(4, -1))
	require.Error(t, r.Enter(0, 0), "the deferred work must be run")
	for want := 3; want > 0; want-- {
		require.NoError(t, r.Enter(want, -1))
		_, ok := r.Next()
		require.True(t, ok)
	}
	require.Error(t, r.Enter(1, -1))
	r.enterFd = fd
}
