//go:build linux && cgo && (cuda || rocm)

package gpu

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging"
	"github.com/stretchr/testify/require"
)

// shard is a safetensors shard of tensors of all sizes, and its bytes.
func shard(t testing.TB) (*staging.Shard, []byte) {
	var tensors []staging.TensorInfo
	for i, n := range []int64{1, 3_000_000, 0, 17, 1 << 20, 5000, 4096, 300_001, 2, 1 << 21} {
		tensors = append(tensors, staging.TensorInfo{Name: fmt.Sprintf("t%d", i), DType: staging.U8, Shape: []int64{n}})
	}
	for i := range 300 { // many in one buffer
		tensors = append(tensors, staging.TensorInfo{Name: fmt.Sprintf("small%d", i), DType: staging.F32, Shape: []int64{int64(i)}})
	}
	h, err := staging.NewHeader(tensors, nil)
	require.NoError(t, err)
	var b bytes.Buffer
	r := rand.NewChaCha8([32]byte{7})
	require.NoError(t, staging.WriteShard(&b, h, func(t *staging.TensorInfo) io.Reader { return io.LimitReader(r, t.Bytes()) }))
	s, err := staging.OpenShard(t.Context(), &staging.ReaderSource{ReaderAt: bytes.NewReader(b.Bytes()), Bytes: int64(b.Len()), Block: 512})
	require.NoError(t, err)
	return s, b.Bytes()
}

// pool is a small pool that is registered with d, and all of whose buffers are back at the end.
func pool(t testing.TB, d *Device) *staging.Pool {
	p, err := staging.NewPool(staging.PoolConfig{Bytes: 1 << 20, BufferSize: 128 << 10, Devices: []staging.Device{d}, Register: staging.Require})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

// check compares a tensor on the device with the shard, and releases it.
func check(t testing.TB, d *Device, x *staging.Tensor, file []byte) {
	got := make([]byte, x.Bytes())
	require.NoError(t, out(d, got, x.Memory, 0))
	at := x.Shard.DataOffset + x.Begin
	require.True(t, bytes.Equal(file[at:at+x.Bytes()], got), x.Name)
	x.Release()
}

func TestStream(t *testing.T) {
	for _, settings := range []string{"delay_us=0", "jitter_us=500", "rate=300e6"} {
		t.Run(settings, func(t *testing.T) {
			both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
				s.Set(settings)
				d := open(t, v, s, Config{})
				sh, file := shard(t)
				n := 0
				for x, err := range sh.Stream(t.Context(), pool(t, d), d) {
					require.NoError(t, err)
					check(t, d, x, file)
					n++
				}
				require.Len(t, sh.Tensors, n)
				stats := d.Stats()
				require.Equal(t, sh.Plan().Bytes(), stats.InBytes)
				require.Equal(t, stats.OutBytes, stats.UnregisteredBytes, "only what this test read back")
				require.Zero(t, stats.Memory)
			})
		})
	}
}

// Whatever fails ends the stream with one error, and nothing is left pinned or in flight.
func TestStreamFails(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("jitter_us=200")
		sh, file := shard(t)
		for _, c := range []struct {
			how, text string
			works     bool // the device does, so what came before the error can be looked at
		}{
			{"fail=" + call(v, "cuMemAlloc_v2", "hipMalloc") + ":5:2", "out of memory", true},
			{"fail=" + call(v, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync") + ":30:1", "invalid argument", true},
			{"fail=" + call(v, "cuEventRecord", "hipEventRecord") + ":10:999", "unknown error", false},
			{"fail=" + call(v, "cuEventSynchronize", "hipEventSynchronize") + ":10:999", "unknown error", false},
			{"fail_async=30:700", "illegal memory access", false},
		} {
			d, err := Open(v, true, Config{Library: s.Path})
			require.NoError(t, err)
			p := pool(t, d)
			s.Set(c.how)
			var failed error
			for x, err := range sh.Stream(t.Context(), p, d) {
				require.NoError(t, failed, "only one error")
				if failed = err; err != nil {
					require.Nil(t, x)
					continue
				}
				if c.works {
					check(t, d, x, file)
				} else {
					x.Release()
				}
			}
			require.ErrorContains(t, failed, c.text)
			var e *Error
			require.ErrorAs(t, failed, &e)
			require.Zero(t, p.Out())
			require.Zero(t, d.Stats().Memory)
			require.NoError(t, p.Close())
			require.NoError(t, d.Close())
			s.Set("fail=")
		}
	})
}

// The consumer may leave at any moment.
func TestStreamEnds(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("jitter_us=300")
		d := open(t, v, s, Config{})
		sh, file := shard(t)
		p := pool(t, d)
		r := rand.New(rand.NewPCG(3, 4))
		for i := range 20 {
			ctx, cancel := context.WithCancelCause(t.Context())
			why := errors.New("enough")
			n, left := r.IntN(len(sh.Tensors)), false
			for x, err := range sh.Stream(ctx, p, d) {
				if err != nil {
					require.ErrorIs(t, err, why)
					left = true
					break
				}
				check(t, d, x, file)
				if n--; n > 0 {
					continue
				}
				if left = i%2 == 0; left {
					break
				}
				cancel(why)
			}
			cancel(nil)
			require.True(t, left || n < 0)
			require.Zero(t, p.Out())
			require.Zero(t, d.Stats().Memory)
		}
	})
}

// The way back, as a checkpoint takes it: from the device into registered buffers.
func TestStreamBack(t *testing.T) {
	both(t, func(t *testing.T, v *Vendor, s *gputest.Standin) {
		s.Set("jitter_us=100")
		d := open(t, v, s, Config{})
		p := pool(t, d)
		data := pages(t, 1<<20)
		m := alloc(t, d, 1<<20)
		require.NoError(t, in(d, m, 0, data))
		size := p.Info().BufferSize
		var bufs []staging.Buffer
		res := newResults(t, len(data)/size)
		for i := range res.errs {
			b, ok := p.TryGet()
			require.True(t, ok)
			bufs = append(bufs, b)
			d.CopyOut(b.Bytes(), m, int64(i*size), res.done(i))
		}
		res.require()
		for i, b := range bufs {
			require.True(t, bytes.Equal(data[i*size:(i+1)*size], b.Bytes()))
			b.Release()
		}
	})
}
