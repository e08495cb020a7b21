//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"bytes"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What the stand-in cannot tell: whether the real drivers have these functions, and mean the same by them.
func TestRealDriver(t *testing.T) {
	for _, v := range []*Vendor{CUDA, ROCm} {
		t.Run(v.Name, func(t *testing.T) {
			if os.Getenv(v.Env) != "" {
				t.Skipf("NOT TESTED: %s names another library", v.Env)
			}
			devices, err := Devices(v, true, "")
			switch {
			case errors.Is(err, ErrNoDriver):
				require.ErrorContains(t, err, v.Libraries[0]+" (")
				require.ErrorContains(t, err, v.install)
				t.Skipf("NOT TESTED: %v", err)
			case errors.Is(err, ErrNoDevice):
				t.Log(err)
				require.ErrorContains(t, err, v.check)
				_, err = Open(v, true, Config{})
				require.ErrorIs(t, err, ErrNoDevice)
				return
			}
			require.NoError(t, err)
			for _, info := range devices {
				realDevice(t, v, info)
			}
		})
	}
}

// realDevice copies to a device and back, and logs at what rate.
func realDevice(t *testing.T, v *Vendor, info DeviceInfo) {
	d, err := Open(v, true, Config{PCI: info.PCI, Trace: true})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, d.Close()) })
	t.Log(d.Info())
	const n, part = 256 << 20, 1 << 20
	src, dst := registered(t, d, n), registered(t, d, n)
	clear(dst)
	m := alloc(t, d, n)
	for _, dir := range []direction{toDevice, toHost} {
		begun := time.Now()
		res := newResults(t, n/part)
		for i := range n / part {
			from, to := i*part, (i+1)*part
			if dir == toDevice {
				d.CopyIn(m, int64(from), src[from:to], res.done(i))
			} else {
				d.CopyOut(dst[from:to], m, int64(from), res.done(i))
			}
		}
		res.require()
		t.Logf("direction %d: %.2f GB/s", dir, n/1e9/time.Since(begun).Seconds())
	}
	require.True(t, bytes.Equal(src, dst))
	heap := []byte("memory that is not registered")
	back := make([]byte, len(heap))
	require.NoError(t, in(d, m, 1000, heap))
	require.NoError(t, out(d, back, m, 1000))
	require.Equal(t, heap, back)
}
