package uring

import (
	"os"
	"runtime"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// patience is for what should happen at once: reaching it means that it never will.
const patience = 20 * time.Second

// lock keeps the test on its thread to the end, or skips it where there is no io_uring.
func lock(t testing.TB) {
	t.Helper()
	if err := Probe(); err != nil {
		t.Skipf("io_uring cannot be used here: %v", err)
	}
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
}

// newRing makes a ring that the end of the test closes.
func newRing(t testing.TB, cfg Config) *Ring {
	t.Helper()
	lock(t)
	r, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	return r
}

// socketpair makes two connected blocking sockets.
func socketpair(t *testing.T) (a, b int) {
	t.Helper()
	p, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(p[0]); unix.Close(p[1]) })
	return p[0], p[1]
}

// tcpPair makes two connected blocking TCP sockets on loopback.
func tcpPair(t *testing.T) (a, b int) {
	t.Helper()
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(l)
	require.NoError(t, unix.Bind(l, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}))
	require.NoError(t, unix.Listen(l, 1))
	addr, err := unix.Getsockname(l)
	require.NoError(t, err)
	a, err = unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(a) })
	require.NoError(t, unix.Connect(a, addr))
	b, _, err = unix.Accept4(l, unix.SOCK_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(b) })
	return a, b
}

func eventfd(t *testing.T) int {
	t.Helper()
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	require.NoError(t, err)
	t.Cleanup(func() { unix.Close(fd) })
	return fd
}

func signal(t *testing.T, eventfd int) {
	one := [8]byte{0: 1, 7: 1} // not 0 in either byte order
	_, err := unix.Write(eventfd, one[:])
	require.NoError(t, err)
}

// collect enters until n completions have been taken, by their user data.
func collect(t *testing.T, r *Ring, n int) map[uint64]CQE {
	t.Helper()
	got := map[uint64]CQE{}
	for deadline := time.Now().Add(patience); len(got) < n; {
		require.True(t, time.Now().Before(deadline), "%d of %d completions", len(got), n)
		require.NoError(t, r.Enter(n-len(got), patience))
		for c, ok := r.Next(); ok; c, ok = r.Next() {
			require.NotContains(t, got, c.UserData)
			got[c.UserData] = c
		}
	}
	require.Len(t, got, n)
	return got
}

// one enters until there is a completion, which must have the given user data.
func one(t *testing.T, r *Ring, ud uint64) CQE {
	t.Helper()
	c, ok := collect(t, r, 1)[ud]
	require.True(t, ok, "completion of another operation")
	return c
}

func nop(r *Ring, ud uint64) bool { return r.put(sqe{opcode: _IORING_OP_NOP, userData: ud}) }

func ptr(b []byte) unsafe.Pointer { return unsafe.Pointer(unsafe.SliceData(b)) }

func openFds(t *testing.T) int {
	t.Helper()
	fds, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(fds)
}
