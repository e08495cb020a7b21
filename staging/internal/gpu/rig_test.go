//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// both runs a test with either driver. Whichever tag this was built with, the C part has both.
func both(t *testing.T, test func(t *testing.T, v *Vendor, s *gputest.Standin)) {
	t.Run("cuda", func(t *testing.T) { test(t, CUDA, gputest.New(t, gputest.CUDA)) })
	t.Run("rocm", func(t *testing.T) { test(t, ROCm, gputest.New(t, gputest.HIP)) })
}

// call is the name of a driver's function.
func call(v *Vendor, cuda, hip string) string {
	if v.hip {
		return hip
	}
	return cuda
}

// open opens a device of the stand-in; the test's end closes it.
func open(t testing.TB, v *Vendor, s *gputest.Standin, cfg Config) *Device {
	t.Helper()
	cfg.Library = s.Path
	d, err := Open(v, true, cfg)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	return d
}

// pages maps host memory outside of the Go heap, full of random bytes.
func pages(t testing.TB, n int) []byte {
	m, err := unix.Mmap(-1, 0, n, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unix.Munmap(m)) })
	r := rand.NewChaCha8([32]byte{1})
	_, err = r.Read(m)
	require.NoError(t, err)
	return m
}

// registered maps host memory and registers it.
func registered(t testing.TB, d *Device, n int) []byte {
	m := pages(t, n)
	unregister, err := d.Register(m)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, unregister()) })
	return m
}

func alloc(t testing.TB, d *Device, n int64) *Memory {
	m, err := d.Alloc(n)
	require.NoError(t, err)
	t.Cleanup(func() {
		if !m.(*Memory).freed.Load() {
			m.Free()
		}
	})
	return m.(*Memory)
}

// results takes what many copies report, each once.
type results struct {
	t     testing.TB
	errs  []error
	calls []atomic.Int32
	left  atomic.Int64
	all   chan struct{}
}

func newResults(t testing.TB, n int) *results {
	r := &results{t: t, errs: make([]error, n), calls: make([]atomic.Int32, n), all: make(chan struct{})}
	r.left.Store(int64(n))
	return r
}

func (r *results) done(i int) func(error) {
	return func(err error) {
		if r.calls[i].Add(1) != 1 {
			panic(fmt.Sprintf("copy %d is done twice", i))
		}
		r.errs[i] = err
		if r.left.Add(-1) == 0 {
			close(r.all)
		}
	}
}

func (r *results) wait() []error {
	<-r.all
	return r.errs
}

func (r *results) require() {
	r.t.Helper()
	for i, err := range r.wait() {
		require.NoError(r.t, err, "copy %d", i)
	}
}

// in and out copy and wait.
func in(d *Device, m staging.Memory, off int64, src []byte) error {
	c := make(chan error, 1)
	d.CopyIn(m, off, src, func(err error) { c <- err })
	return <-c
}

func out(d *Device, dst []byte, m staging.Memory, off int64) error {
	c := make(chan error, 1)
	d.CopyOut(dst, m, off, func(err error) { c <- err })
	return <-c
}
