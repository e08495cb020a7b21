package staging

import (
	"context"
	"fmt"
	"hash"
	"hash/crc32"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// pace is a simulated link: what is sent over it takes its turn, at so many bytes per second.
type pace struct {
	rate float64

	mu   sync.Mutex
	free time.Time // when the link has nothing to do any more
}

// take returns when n bytes that are sent now are through.
func (p *pace) take(n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); p.free.Before(now) {
		p.free = now
	}
	p.free = p.free.Add(time.Duration(float64(n) / p.rate * float64(time.Second)))
	return p.free
}

// sleepUntil is more exact than time.Sleep, which may take a millisecond longer.
func sleepUntil(t time.Time) {
	if d := time.Until(t); d > 0 {
		ts := unix.NsecToTimespec(int64(d))
		_ = unix.Nanosleep(&ts, nil)
	}
}

// wire is a source whose reads cost no CPU, but the time of a link that its queues share.
type wire struct {
	pace

	head   []byte
	size   int64
	queues int
}

func (w *wire) Size() int64    { return w.size }
func (w *wire) BlockSize() int { return 4096 }
func (w *wire) MaxIO() int     { return 1 << 20 }

func (w *wire) ReadAt(p []byte, off int64) (int, error) { return sparse{w.head}.ReadAt(p, off) }

func (w *wire) Feed(ctx context.Context, f Feed) error {
	type flying struct {
		r   *Read
		due time.Time
	}
	wakes := make([]chan struct{}, w.queues)
	for i := range wakes {
		wakes[i] = make(chan struct{}, 1)
	}
	wake := func() {
		for _, c := range wakes {
			select {
			case c <- struct{}{}:
			default:
			}
		}
	}
	f.Attach(wake)
	defer context.AfterFunc(ctx, wake)()
	var wg sync.WaitGroup
	for q := range w.queues {
		wg.Go(func() {
			var fifo []flying
			for done := false; ; {
				for !done && len(fifo) < 32 && ctx.Err() == nil {
					var r *Read
					if r, done = f.Next(); r == nil {
						break
					}
					fifo = append(fifo, flying{r, w.take(len(r.Buf))})
				}
				switch {
				case len(fifo) > 0:
					sleepUntil(fifo[0].due)
					for len(fifo) > 0 && !time.Now().Before(fifo[0].due) {
						r := fifo[0].r
						fifo = append(fifo[:0], fifo[1:]...)
						r.Err = ctx.Err()
						f.Complete(r)
					}
				case done || ctx.Err() != nil:
					return
				default:
					<-wakes[q]
				}
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// link is a device whose copies cost no CPU, but the time of a link: the caller gets the buffer back when they are through.
type link struct {
	nowhere
	pace

	copies chan copyIn
}

type copyIn struct {
	due  time.Time
	done func(error)
}

func newLink(rate float64) *link {
	d := &link{pace: pace{rate: rate}, copies: make(chan copyIn, 1024)}
	go func() {
		for c := range d.copies {
			sleepUntil(c.due)
			c.done(nil)
		}
	}()
	return d
}

func (d *link) CopyIn(_ Memory, _ int64, src []byte, done func(error)) {
	d.copies <- copyIn{d.take(len(src)), done}
}

func (d *link) Close() error {
	close(d.copies)
	return nil
}

// wireShard is a model of so many layers, eight tensors each, in files' order: by the alphabet.
func wireShard(b *testing.B, rate float64, queues, layers int) *Shard {
	var infos []TensorInfo
	for i := range layers {
		for k := range 8 {
			infos = append(infos, TensorInfo{Name: fmt.Sprintf("model.layers.%d.%c", i, 'a'+k), DType: BF16, Shape: []int64{4, 1 << 20}})
		}
	}
	infos = append(infos, TensorInfo{Name: "lm_head.weight", DType: BF16, Shape: []int64{16, 1 << 20}}, TensorInfo{Name: "transformer.embed.weight", DType: BF16, Shape: []int64{16, 1 << 20}})
	slices.SortFunc(infos, func(a, b TensorInfo) int { return strings.Compare(a.Name, b.Name) })
	h, err := NewHeader(infos, nil)
	require.NoError(b, err)
	head, err := h.Append(nil)
	require.NoError(b, err)
	s, err := OpenShard(b.Context(), &wire{pace: pace{rate: rate}, head: head, size: (h.Size + 4095) / 4096 * 4096, queues: queues})
	require.NoError(b, err)
	return s
}

// sleepers makes room for goroutines that sleep in the kernel, and hold a processor of the runtime for some time.
func sleepers(b *testing.B) {
	was := runtime.GOMAXPROCS(16)
	b.Cleanup(func() { runtime.GOMAXPROCS(was) })
}

// BenchmarkLink is a load to a device behind a link of 25 GB/s, from sources slower, about as fast, and faster. load/bound is the time that it
// took over that of the slower of the two links.
func BenchmarkLink(b *testing.B) {
	const rate = 25e9
	sleepers(b)
	for _, read := range []float64{5e9, 12.5e9, 24e9, 100e9} {
		for _, sum := range []string{"", "crc"} {
			b.Run(fmt.Sprintf("read=%gGB/s%s", read/1e9, sum), func(b *testing.B) {
				s, pool, dev := wireShard(b, read, 4, 16), newPool(b, 64, 1<<20), newLink(rate)
				l := &Loader{Pool: pool}
				if sum != "" {
					l.Hash = func() hash.Hash { return crc32.New(castagnoli) }
				}
				plan := s.Plan().ByLayer()
				b.SetBytes(plan.Bytes())
				for b.Loop() {
					for t, err := range l.Stream(b.Context(), plan, dev) {
						require.NoError(b, err)
						t.Release()
					}
				}
				load := b.Elapsed().Seconds() / float64(b.N)
				begun := time.Now()
				for p, err := range l.Pieces(b.Context(), plan) {
					require.NoError(b, err)
					p.Release()
				}
				reading, copying := time.Since(begun).Seconds(), float64(plan.Bytes())/rate
				b.ReportMetric(load/max(reading, copying), "load/bound")
				b.ReportMetric(reading/float64(plan.Bytes())*read, "read/wire")
				require.NoError(b, dev.Close())
			})
		}
	}
}

// BenchmarkFirstLayer reports when the first layer was there, over its share of the time by its bytes, as the median of all runs; and when it would have been
// there in the order of the file, which has the head first and the embeddings behind the layers.
func BenchmarkFirstLayer(b *testing.B) {
	sleepers(b)
	for _, queues := range []int{1, 4} {
		b.Run(fmt.Sprint("queues=", queues), func(b *testing.B) {
			s, pool, dev := wireShard(b, 10e9, queues, 32), newPool(b, 64, 1<<20), newLink(25e9)
			plan := s.Plan().ByLayer()
			b.SetBytes(plan.Bytes())
			var first, files []float64
			for b.Loop() {
				l := &Loader{Pool: pool}
				for t, err := range l.Stream(b.Context(), plan, dev) {
					require.NoError(b, err)
					t.Release()
				}
				st := l.Stats()
				share := float64(st.FirstLayerBytes) / float64(st.Bytes) * float64(st.FirstToken)
				first = append(first, float64(st.FirstLayer)/share)
				files = append(files, float64(st.FirstLayerInFileOrder)/share)
			}
			slices.Sort(first)
			slices.Sort(files)
			b.ReportMetric(first[len(first)/2], "layer/share")
			b.ReportMetric(files[len(files)/2], "file-order/share")
			require.NoError(b, dev.Close())
		})
	}
}
