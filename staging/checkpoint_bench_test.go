package staging

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// writeFeed writes one buffer again and again, which is what a load generator does.
type writeFeed struct {
	size, total int64
	mu          sync.Mutex
	next        int64
	free        []*Read
	err         error
}

func (f *writeFeed) Attach(func()) {}

func (f *writeFeed) Next() (*Read, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == f.total {
		return nil, true
	}
	if len(f.free) == 0 {
		return nil, false
	}
	r := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	r.Off = f.next
	f.next += f.size
	return r, f.next == f.total
}

func (f *writeFeed) Complete(r *Read) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.free = append(f.free, r)
	if r.Err != nil {
		f.err = r.Err
	}
}

// BenchmarkSave compares checkpoints with plain writes of 1 MiB, in turn so that both meet the same machine. The target is
// in the same process and forgets what is written.
func BenchmarkSave(b *testing.B) {
	const mib, buffers, tensors, tensor = 1 << 20, 32, 16, 32 << 20
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{
		{BlockSize: 4096, Backend: nvmetest.Null(4 << 30)},
	}}}})
	require.NoError(b, err)
	defer target.Close()
	for _, queues := range []int{1, 4} {
		b.Run(fmt.Sprint("queues=", queues), func(b *testing.B) {
			host := nvmetcp.UniqueHost()
			sub, err := host.Connect(b.Context(), nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, &nvmetcp.Options{NumIOQueues: queues, QueueSize: buffers/queues + 1})
			require.NoError(b, err)
			defer sub.Close()
			ns, err := sub.Namespace(b.Context(), 1)
			require.NoError(b, err)
			var list []SaveTensor
			for i := range tensors {
				m, err := Host{}.Alloc(tensor)
				require.NoError(b, err)
				defer m.Free()
				fill := m.Bytes()
				for k := 0; k < len(fill); k += 4096 {
					fill[k] = byte(k >> 12)
				}
				list = append(list, SaveTensor{TensorInfo: TensorInfo{Name: fmt.Sprint("t", i), DType: U8, Shape: []int64{tensor}}, Memory: m})
			}
			s := &Saver{Pool: newPool(b, buffers, mib)}
			plain := func() {
				f := &writeFeed{size: mib, total: tensors * tensor}
				var bufs []Buffer
				for range s.Pool.Info().Buffers {
					buf, err := s.Pool.Get(b.Context())
					require.NoError(b, err)
					bufs = append(bufs, buf)
					f.free = append(f.free, &Read{Write: true, Buf: buf.Bytes()})
				}
				require.NoError(b, ns.Feed(b.Context(), f))
				require.NoError(b, f.err)
				for _, buf := range bufs {
					buf.Release()
				}
			}
			save := func() {
				_, err := s.Save(b.Context(), ns, list, nil)
				require.NoError(b, err)
			}
			plain()                     // connections and memory are warm then
			var plains, saves []float64 // MB/s
			rate := func(f func()) float64 {
				begun := time.Now()
				f()
				return tensors * tensor / 1e6 / time.Since(begun).Seconds()
			}
			for b.Loop() {
				plains = append(plains, rate(plain))
				saves = append(saves, rate(save))
			}
			slices.Sort(plains)
			slices.Sort(saves)
			p, c := plains[len(plains)/2], saves[len(saves)/2]
			b.ReportMetric(p, "plain-MB/s")
			b.ReportMetric(c, "save-MB/s")
			b.ReportMetric(c/p, "save/plain")
			b.ReportMetric(0, "ns/op")
		})
	}
}
