//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"errors"
	"fmt"
	"os"
	"testing"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/stretchr/testify/require"
)

func TestOpenErrors(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		_, err := Open(v, true, Config{Library: "/nowhere/libx.so"})
		require.ErrorIs(t, err, ErrNoDriver)
		require.ErrorContains(t, err, "tried /nowhere/libx.so (/nowhere/libx.so: cannot open shared object file")
		require.ErrorContains(t, err, v.Env)
		_, err = Open(v, true, Config{Library: "libc.so.6"})
		require.ErrorIs(t, err, ErrNoDriver)
		require.ErrorContains(t, err, "libc.so.6 lacks "+call(v, "cuInit", "hipInit"))

		_, err = Open(v, false, Config{Library: s.Path})
		require.ErrorIs(t, err, ErrNotBuilt)
		require.ErrorContains(t, err, "-tags "+v.Name)

		_, err = Open(v, true, Config{Library: s.Path, Ordinal: 2})
		require.ErrorIs(t, err, ErrNoDevice)
		require.ErrorContains(t, err, "device 2")
		_, err = Open(v, true, Config{Library: s.Path, Ordinal: -1})
		require.ErrorIs(t, err, ErrNoDevice)
		_, err = Open(v, true, Config{Library: s.Path, PCI: "0000:01:00.0"})
		require.ErrorIs(t, err, ErrNoDevice)
		require.ErrorContains(t, err, "0000:f0:00.0, 0000:f1:00.0")
		_, err = Open(v, true, Config{Library: s.Path, PCI: "x"})
		require.ErrorContains(t, err, `PCI address "x"`)
		for _, n := range []int{-1, maxStreams + 1} {
			_, err = Open(v, true, Config{Library: s.Path, Streams: n})
			require.ErrorContains(t, err, "streams")
		}
	})
}

func TestNoDevices(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("devices=0")
		_, err := Devices(v, true, s.Path)
		require.ErrorIs(t, err, ErrNoDevice)
		require.ErrorContains(t, err, call(v, "cuInit: CUDA_ERROR_NO_DEVICE (100)", "hipInit: hipErrorNoDevice (100)"))
		require.ErrorContains(t, err, s.Path)
		require.ErrorContains(t, err, v.check)
	})
}

func TestDevices(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("devices=3", "memory=12345678")
		t.Setenv(v.Env, s.Path) // instead of a parameter
		list, err := Devices(v, true, "")
		require.NoError(t, err)
		require.Len(t, list, 3)
		for i, d := range list {
			require.Equal(t, DeviceInfo{Ordinal: i, Name: call(v, "stand-in NVIDIA", "stand-in AMD"), PCI: fmt.Sprintf("0000:f%d:00.0", i), Node: -1, Bytes: 12345678}, d)
		}
		d := open(t, v, s, Config{PCI: "00000000:F2:00.0", Streams: 3})
		require.Equal(t, list[2], d.Info().DeviceInfo)
		require.Equal(t, s.Path, d.Info().Library)
		require.NotZero(t, d.Info().Version)
		require.EqualValues(t, 6, s.Count("streams"))
		require.Equal(t, v.Name+":2 "+list[2].Name, d.Name())
		require.Contains(t, d.Info().String(), "device 2, stand-in")
		require.Empty(t, d.Info().Trace)
	})
}

// Whichever call of Open fails, the error names it, and nothing is left over.
func TestOpenFails(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("devices=1")
		names := []string{
			"cuInit", "cuDriverGetVersion", "cuDeviceGetCount", "cuDeviceGet", "cuDeviceGetName", "cuDeviceGetPCIBusId", "cuDeviceTotalMem_v2",
			"cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2", "cuStreamCreate", "cuEventCreate",
		}
		if v.hip {
			names = []string{
				"hipInit", "hipDriverGetVersion", "hipGetDeviceCount", "hipDeviceGet", "hipDeviceGetName", "hipDeviceGetPCIBusId", "hipDeviceTotalMem",
				"hipGetDevice", "hipStreamCreateWithFlags", "hipEventCreateWithFlags",
			}
		}
		for _, name := range names {
			for _, n := range []int{1, 3} {
				s.Set(fmt.Sprintf("fail=%s:%d:999", name, n))
				d, err := Open(v, true, Config{Library: s.Path})
				if n == 3 && err == nil { // it is not called so often
					require.NoError(t, d.Close())
					s.Set("fail=")
					continue
				}
				var e *Error
				require.ErrorAs(t, err, &e, name)
				require.Equal(t, Error{v.Name, name, 999, call(v, "CUDA_ERROR_UNKNOWN", "hipErrorUnknown"), "unknown error"}, *e)
				for _, what := range []string{"streams", "events", "contexts", "pushed"} {
					require.Zero(t, s.Count(what), "%s after %s failed", what, name)
				}
			}
		}
	})
}

// A copy that cannot be started fails alone.
func TestCopyIsRefused(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{})
		src := registered(t, d, 1<<20)
		m := alloc(t, d, 1<<20)
		s.Set("delay_us=1000", "fail="+call(v, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync")+":3:1")
		res := newResults(t, 10)
		for i := range 10 {
			d.CopyIn(m, 0, src, res.done(i))
		}
		for i, err := range res.wait() {
			if i != 2 {
				require.NoError(t, err)
				continue
			}
			require.ErrorContains(t, err, call(v, "cuMemcpyHtoDAsync_v2: CUDA_ERROR_INVALID_VALUE (1)", "hipMemcpyHtoDAsync: hipErrorInvalidValue (1)"))
		}
		s.Set("fail=" + call(v, "cuMemcpyDtoH_v2", "hipMemcpyDtoH") + ":1:700")
		require.ErrorContains(t, out(d, make([]byte, 10), m, 0), "(700)")
	})
}

// A copy that fails on its way takes all that follow with it, each once; the device says so from then on, and can be opened again.
func TestCopyFails(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		for _, how := range []string{"fail_async=20:700", "fail=" + call(v, "cuEventRecord", "hipEventRecord") + ":20:700", "fail=" + call(v, "cuEventSynchronize", "hipEventSynchronize") + ":20:700"} {
			t.Run(how, func(t *testing.T) {
				d := open(t, v, s, Config{Streams: 1})
				src := registered(t, d, fenceBytes)
				m := alloc(t, d, fenceBytes)
				s.Set("jitter_us=100", how)
				res := newResults(t, 60)
				for i := range 60 {
					d.CopyIn(m, 0, src, res.done(i)) // each has its own event
				}
				first := 60
				for i, err := range res.wait() {
					if err == nil {
						require.Less(t, i, first, "copy %d failed", first)
						continue
					}
					first = min(first, i)
					var e *Error
					require.ErrorAs(t, err, &e)
					require.Equal(t, 700, e.Code)
				}
				require.Less(t, first, 20)
				err := in(d, m, 0, src)
				require.ErrorContains(t, err, "(700)")
				require.ErrorContains(t, err, "takes no more copies: close it and open it again")
				require.ErrorContains(t, out(d, src, m, 0), "takes no more copies")
			})
		}
		d := open(t, v, s, Config{})
		require.NoError(t, in(d, alloc(t, d, 100), 0, make([]byte, 100)))
	})
}

func TestTrace(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		d := open(t, v, s, Config{Trace: true, TraceLibrary: s.Path})
		require.Equal(t, s.Path, d.Info().Trace)
		src := registered(t, d, 1<<20)
		m := alloc(t, d, 1<<20)
		s.Set("delay_us=20000")
		res := newResults(t, 4)
		for i := range 4 {
			d.CopyIn(m, 0, src, res.done(i))
		}
		open := s.Count("ranges")
		if res.left.Load() == 4 { // each stream ends one range at most before it calls done
			require.GreaterOrEqual(t, open, int64(4-defaultStreams))
		}
		res.require()
		require.Zero(t, s.Count("ranges"))
	})
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		for _, lib := range []string{"/nowhere/libtrace.so", "libc.so.6"} {
			d := open(t, v, s, Config{Trace: true, TraceLibrary: lib})
			require.Contains(t, d.Info().Trace, "none: "+lib)
			require.NoError(t, in(d, alloc(t, d, 10), 0, make([]byte, 10)))
		}
	})
}

// The stand-in notices what the device never does. (What it misses would be missed in every other test.)
func TestStandinNotices(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		drv, err := openDriver(v, s.Path)
		require.NoError(t, err)
		defer drv.unload()
		noticed := func(err error, text string) {
			t.Helper()
			require.Error(t, err)
			all := fmt.Sprint(s.Violations())
			require.Contains(t, all, text)
		}
		_, err = drv.count()
		noticed(err, "before init")
		require.NoError(t, drv.init())
		if !v.hip {
			_, err = drv.alloc(1)
			noticed(err, "no such context")
		}
		require.NoError(t, drv.open(0))
		other, err := openDriver(v, s.Path)
		require.NoError(t, err)
		defer other.unload()
		require.NoError(t, other.open(1))

		st, err := drv.newStream()
		require.NoError(t, err)
		ev, err := drv.newEvent()
		require.NoError(t, err)
		noticed(drv.waitEvent(ev), "was not recorded")
		noticed(other.record(ev, st), "event of device 0 while 1 is current")
		noticed(other.waitStream(st), "stream of device 0 while 1 is current")
		p, err := drv.alloc(1000)
		require.NoError(t, err)
		host := pages(t, 8192)
		noticed(drv.copy(toDevice, p, host[:100], st), "that is not registered")
		noticed(drv.register(host[1:4097]), "not whole pages")
		require.NoError(t, drv.register(host[:4096]))
		noticed(drv.copy(toDevice, p, host[4000:4100], st), "that is not registered")
		noticed(drv.copy(toDevice, p, host[:1001], st), "1001 bytes, 0 behind the start of device memory of 1000")
		noticed(drv.copy(toHost, p+999, host[:2], st), "2 bytes, 999 behind")
		noticed(drv.copyNow(toHost, p-1, host[:2]), "no device memory")
		noticed(other.copyNow(toHost, p, host[:2]), "memory of device 0 while 1 is current")
		s.Set("delay_us=100000")
		require.NoError(t, drv.copy(toDevice, p, host[:100], st))
		require.NoError(t, drv.record(ev, st))
		noticed(drv.record(ev, st), "recorded again")
		noticed(drv.free(p), "1 copies are in flight")
		noticed(drv.unregister(host), "1 copies are in flight")
		require.NoError(t, drv.waitEvent(ev))
		require.NoError(t, drv.unregister(host))
		noticed(drv.unregister(host), "is not registered")
		noticed(other.free(p), "memory of device 0 while 1 is current")
		require.NoError(t, drv.free(p))
		noticed(drv.free(p), "freed already")
		noticed(drv.copyNow(toHost, p, host[:2]), "no device memory")
		require.NoError(t, drv.destroyEvent(ev))
		noticed(drv.destroyEvent(ev), "the event is destroyed")
		require.NoError(t, drv.destroyStream(st))
		noticed(drv.waitStream(st), "the stream is destroyed")
		if !v.hip {
			p, err = drv.alloc(10)
			require.NoError(t, err)
			require.NoError(t, drv.close())
			require.Contains(t, fmt.Sprint(s.Violations()), "10 bytes of device memory were not freed")
			require.NoError(t, drv.open(0))
			require.NoError(t, drv.free(p))
		}
		require.NoError(t, drv.close())
		require.NoError(t, other.close())
	})
}

func TestErrorMatches(t *testing.T) {
	require.ErrorIs(t, &Error{Code: codeNoDevice}, ErrNoDevice)
	require.ErrorIs(t, &Error{Code: codeInvalidDevice}, ErrNoDevice)
	require.False(t, errors.Is(&Error{Code: codeOutOfMemory}, ErrNoDevice))
	require.False(t, errors.Is(&Error{Code: codeNoDevice}, os.ErrNotExist))
}
