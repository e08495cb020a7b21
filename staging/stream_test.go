package staging

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	errMedium = errors.New("medium error")
	errFeed   = errors.New("association lost")
	errCopy   = errors.New("copy engine fault")
	errMemory = errors.New("out of device memory")
	errCause  = errors.New("the caller had enough")
)

// device is a block device in memory whose queues complete reads late and out of order, and check every read.
type device struct {
	t       testing.TB
	data    []byte
	block   int
	maxIO   int
	queues  int
	depth   int
	seed    uint64
	reads   atomic.Int64
	failAt  int64 // the read that fails, counted from 1; 0 none
	breakAt int64 // the read at which Feed fails as a whole
	onRead  func(n int64)
}

func (d *device) Size() int64    { return int64(len(d.data)) }
func (d *device) BlockSize() int { return d.block }
func (d *device) MaxIO() int     { return d.maxIO }

func (d *device) ReadAt(p []byte, off int64) (int, error) {
	return bytes.NewReader(d.data).ReadAt(p, off)
}

func (d *device) Feed(ctx context.Context, f Feed) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	wakes := make([]chan struct{}, d.queues)
	for i := range wakes {
		wakes[i] = make(chan struct{}, 1)
	}
	f.Attach(func() {
		for _, w := range wakes {
			select {
			case w <- struct{}{}:
			default:
			}
		}
	})
	var wg sync.WaitGroup
	for q := range d.queues {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(d.seed, uint64(q)))
			var flying []*Read
			for done := false; ; {
				for !done && len(flying) < d.depth && ctx.Err() == nil {
					var rd *Read
					if rd, done = f.Next(); rd == nil {
						break
					}
					d.check(rd)
					flying = append(flying, rd)
				}
				switch {
				case len(flying) > 0:
					i := r.IntN(len(flying))
					rd := flying[i]
					flying = slices.Delete(flying, i, i+1)
					d.serve(ctx, r, rd, stop)
					f.Complete(rd)
				case done || ctx.Err() != nil:
					return
				default:
					select {
					case <-wakes[q]:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	wg.Wait()
	return ended(ctx)
}

// ended does not know the caller's cause, as sources may not.
func ended(ctx context.Context) error {
	err := ctx.Err() // first: the context may end between two looks at it
	if err != nil && errors.Is(context.Cause(ctx), errFeed) {
		return errFeed
	}
	return err
}

// pause lets others run for a random while, mostly a short one.
func pause(r *rand.Rand) {
	if r.IntN(40) == 0 {
		time.Sleep(time.Duration(r.IntN(200)) * time.Microsecond)
	}
	for range r.IntN(20) {
		runtime.Gosched()
	}
}

func (d *device) check(r *Read) {
	n := len(r.Buf)
	if n == 0 || n > d.maxIO || n%d.block != 0 || r.Off%int64(d.block) != 0 || r.Off < 0 || r.Off+int64(n) > d.Size() || r.Err != nil {
		d.t.Errorf("bad read of %d bytes at %d (block %d, limit %d, size %d), err %v", n, r.Off, d.block, d.maxIO, d.Size(), r.Err)
	}
}

func (d *device) serve(ctx context.Context, r *rand.Rand, rd *Read, stop func(error)) {
	n := d.reads.Add(1)
	if d.onRead != nil {
		d.onRead(n)
	}
	if n == d.breakAt {
		stop(errFeed)
	}
	if rd.Err = ended(ctx); rd.Err != nil {
		return
	}
	half := len(rd.Buf) / 2 // in two steps, so that a buffer used too early is seen half-written
	copy(rd.Buf[half:], d.data[rd.Off+int64(half):])
	pause(r)
	if n == d.failAt {
		rd.Err = errMedium
		return
	}
	copy(rd.Buf[:half], d.data[rd.Off:])
	rd.Latency = time.Microsecond
}

// gpu is a device whose copies are asynchronous and whose memory has guards around it.
type gpu struct {
	t      testing.TB
	r      *rand.Rand // under mu
	mu     sync.Mutex
	live   int
	bytes  int64 // live
	peak   int64
	allocs int
	copies int
	failAt int // the allocation that fails
	copyAt int // the copy that fails
	wg     sync.WaitGroup
}

const guard = 64

type gpuMemory struct {
	d     *gpu
	whole []byte
	freed bool
}

func (g *gpu) Name() string { return "fake gpu" }

func (g *gpu) Alloc(n int64) (Memory, error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.allocs++; g.allocs == g.failAt {
		return nil, errMemory
	}
	g.live++
	g.bytes += n
	g.peak = max(g.peak, g.bytes)
	return &gpuMemory{d: g, whole: bytes.Repeat([]byte{0xee}, int(n)+2*guard)}, nil
}

func (m *gpuMemory) Len() int64    { return int64(len(m.whole) - 2*guard) }
func (m *gpuMemory) Bytes() []byte { return m.whole[guard : len(m.whole)-guard] }

func (m *gpuMemory) Free() {
	m.d.mu.Lock()
	defer m.d.mu.Unlock()
	if m.freed {
		m.d.t.Error("freed twice")
	}
	m.freed = true
	m.d.live--
	m.d.bytes -= m.Len()
	for _, c := range append(m.whole[:guard:guard], m.whole[len(m.whole)-guard:]...) {
		if c != 0xee {
			m.d.t.Error("write outside of the tensor's memory")
			return
		}
	}
}

func (g *gpu) CopyOut(dst []byte, src Memory, off int64, done func(error)) {
	copy(dst, src.Bytes()[off:])
	done(nil)
}

func (g *gpu) CopyIn(dst Memory, off int64, src []byte, done func(error)) {
	g.mu.Lock()
	g.copies++
	fail := g.copies == g.copyAt
	late := g.r.IntN(3) > 0
	wait := rand.New(rand.NewPCG(g.r.Uint64(), 3))
	g.mu.Unlock()
	was := crc32.Checksum(src, castagnoli)
	move := func() {
		if crc32.Checksum(src, castagnoli) != was {
			g.t.Error("the source of a copy changed before the copy was done")
		}
		m := dst.(*gpuMemory)
		g.mu.Lock()
		freed := m.freed
		g.mu.Unlock()
		if freed {
			g.t.Error("copy into freed memory")
		}
		if fail {
			done(errCopy)
			return
		}
		copy(m.Bytes()[off:], src)
		done(nil)
	}
	if !late {
		move()
		return
	}
	g.wg.Go(func() {
		pause(wait)
		move()
	})
}

func (g *gpu) Close() error {
	g.wg.Wait()
	if g.live > 0 {
		return fmt.Errorf("%d tensors live", g.live)
	}
	return nil
}

// makeShard makes a shard of random tensors and returns it with what it should hold.
func makeShard(t testing.TB, r *rand.Rand, prefix string, block, unit int) (*device, map[string][]byte) {
	want := map[string][]byte{}
	var tensors []TensorInfo
	for i := range r.IntN(14) {
		n := 0
		switch r.IntN(6) {
		case 0:
		case 1:
			n = 1 + r.IntN(3)
		case 2:
			n = r.IntN(block)
		case 3:
			n = unit * r.IntN(4)
		case 4:
			n = r.IntN(3 * unit)
		case 5:
			n = r.IntN(12 * unit)
		}
		shape := []int64{int64(n)}
		if n > 0 && r.IntN(2) == 0 {
			rows := int64(1 + r.IntN(64))
			shape = []int64{rows, int64(n)/rows + 1}
		}
		tensors = append(tensors, TensorInfo{Name: fmt.Sprint(prefix, ".", i), DType: U8, Shape: shape})
	}
	h, err := NewHeader(tensors, map[string]string{"pad": strings.Repeat("x", r.IntN(2*block))})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader {
		p := make([]byte, x.Bytes())
		for k := range p {
			p[k] = byte(r.Uint32())
		}
		want[x.Name] = p
		return bytes.NewReader(p)
	}))
	for b.Len()%block != 0 {
		b.WriteByte(0xaa)
	}
	b.Write(bytes.Repeat([]byte{0xaa}, r.IntN(3)*block))
	return &device{t: t, data: b.Bytes(), block: block, queues: 1 + r.IntN(3), depth: 1 + r.IntN(4), seed: r.Uint64()}, want
}

type setup struct {
	r     *rand.Rand
	pool  *Pool
	devs  []*device
	model *Model
	plan  Plan
	want  [][]byte // of each entry of the plan
	gpu   *gpu
	load  *Loader
}

func newSetup(t testing.TB, seed uint64) *setup {
	r := rand.New(rand.NewPCG(seed, 1))
	s := &setup{r: r}
	data := map[string][]byte{}
	block := []int{512, 4096}[r.IntN(2)]
	size := 4096 * (1 + r.IntN(4))
	var err error
	s.pool, err = NewPool(PoolConfig{Bytes: int64(size * (1 + r.IntN(6))), BufferSize: size, HugePages: Never, Lock: Never})
	require.NoError(t, err)
	// Poison, so that bytes that never came are seen.
	for i := range s.pool.mem {
		s.pool.mem[i] = 0xbd
	}
	var srcs []Source
	for i := range 1 + r.IntN(3) {
		d, want := makeShard(t, r, fmt.Sprint("s", i), block, size)
		d.maxIO = block * (1 + r.IntN(2*size/block))
		s.devs = append(s.devs, d)
		srcs = append(srcs, d)
		for k, v := range want {
			data[k] = v
		}
	}
	s.model, err = OpenModel(t.Context(), srcs...)
	require.NoError(t, err)
	s.plan = s.model.Plan()
	require.Len(t, s.plan, len(data))
	switch r.IntN(5) {
	case 0:
		r.Shuffle(len(s.plan), func(i, k int) { s.plan[i], s.plan[k] = s.plan[k], s.plan[i] })
	case 1:
		s.plan = s.plan.ByLayer()
	case 2:
		slices.Reverse(s.plan)
	}
	s.gpu = &gpu{t: t, r: rand.New(rand.NewPCG(seed, 2))}
	if r.IntN(2) == 0 {
		s.plan = randomSlices(t, r, s.plan, s.gpu)
	}
	for _, x := range s.plan {
		s.want = append(s.want, sliceOf(x, data[x.Name]))
	}
	s.load = &Loader{Pool: s.pool, Ahead: int64(r.IntN(10 * size))}
	if r.IntN(2) == 0 {
		s.load.Hash = sha256.New
	}
	return s
}

// randomSlices is the plan with some tensors in its entries several times, whole or in slices.
func randomSlices(t testing.TB, r *rand.Rand, plan Plan, dev Device) Plan {
	var out Plan
	for _, x := range plan {
		switch dim := r.IntN(len(x.Shape)); r.IntN(5) {
		case 0:
			out = append(out, x)
		case 1: // any parts, which may overlap, and the whole
			for range 1 + r.IntN(3) {
				from := r.Int64N(x.Shape[dim] + 1)
				part, err := x.Slice(dim, from, from+r.Int64N(x.Shape[dim]-from+1))
				require.NoError(t, err)
				out = append(out, part)
			}
			if r.IntN(2) == 0 {
				out = append(out, x)
			}
		case 2: // on several devices
			out = append(out, Plan{x}.To(dev)...)
			out = append(out, x)
		default: // the parts of all ranks
			ranks := 1 + r.IntN(4)
			for rank := range ranks {
				part, err := Plan{x}.Slice(rank, ranks, func(PlanTensor) int { return dim })
				require.NoError(t, err)
				out = append(out, part...)
			}
		}
	}
	return out
}

// sliceOf is what the entry is of the tensor's data: block by block, by the index of the block's first element.
func sliceOf(x PlanTensor, data []byte) []byte {
	if x.Of == nil {
		return data
	}
	elements, size := x.DType.Block()
	inner := int64(1)
	for _, d := range x.Of.Shape[x.Dim+1:] {
		inner *= d
	}
	out := []byte{}
	for k := range len(data) / size {
		if i := int64(k*elements) / inner % x.Of.Shape[x.Dim]; i >= x.From && i < x.From+x.Shape[x.Dim] {
			out = append(out, data[k*size:(k+1)*size]...)
		}
	}
	return out
}

// whole is a sequence of complete tensors, whichever way they came.
type whole struct {
	i    int // the entry of the plan
	name string
	data []byte
}

// stream yields what the loader delivers, having checked it piece by piece, through the device or as pieces.
func (s *setup) stream(t testing.TB, ctx context.Context, pieces bool) iter.Seq2[whole, error] {
	if !pieces {
		return func(yield func(whole, error) bool) {
			i := 0
			for x, err := range s.load.Stream(ctx, s.plan, s.gpu) {
				if err != nil {
					require.Nil(t, x)
					yield(whole{}, err)
					continue // the sequence must end by itself now
				}
				data := bytes.Clone(x.Memory.Bytes())
				pause(s.r)
				require.Equal(t, data, x.Memory.Bytes(), "memory changed after delivery")
				if s.load.Hash != nil {
					sum := sha256.Sum256(data)
					require.Equal(t, sum[:], x.Sum)
				}
				x.Release()
				if !yield(whole{i, x.Name, data}, nil) {
					return
				}
				i++
			}
		}
	}
	return func(yield func(whole, error) bool) {
		var data []byte
		i := 0
		type held struct {
			p    *Piece
			data []byte
		}
		var holding []held // some pieces are kept for a while, but never all buffers
		drop := func(n int) {
			for len(holding) > n {
				h := holding[0]
				holding = holding[1:]
				if !bytes.Equal(h.p.Data, h.data) {
					t.Error("a piece changed while it was held")
				}
				if len(s.plan) == len(s.model.Plan()) {
					clear(h.p.Data) // and nobody else may see this, unless there is another piece with the same bytes
				}
				h.p.Release()
			}
		}
		defer drop(0)
		for p, err := range s.load.Pieces(ctx, s.plan) {
			if err != nil {
				require.Nil(t, p)
				yield(whole{}, err)
				continue
			}
			require.EqualValues(t, len(data), p.Off, "pieces come in order")
			data = append(data, p.Data...)
			holding = append(holding, held{p, bytes.Clone(p.Data)})
			drop(s.r.IntN(max(1, s.pool.info.Buffers)))
			if !p.Last {
				continue
			}
			if !yield(whole{i, p.Name, data}, nil) {
				return
			}
			i++
			data = nil
		}
	}
}

// Whatever goes wrong: what is delivered is right and in order, nothing is in flight afterwards, and nothing is lost.
func TestStreamProperties(t *testing.T) {
	cases := 300
	if testing.Short() {
		cases = 100
	}
	outcomes := map[string]int{}
	for seed := range uint64(cases) {
		for _, pieces := range []bool{false, true} {
			if !t.Run(fmt.Sprintf("seed=%d/pieces=%v", seed, pieces), func(t *testing.T) { outcomes[streamOnce(t, seed, pieces)]++ }) {
				return
			}
		}
	}
	t.Log(outcomes)
	for _, o := range []string{"all", "break", "medium error", "association lost", "copy engine fault", "out of device memory", "the caller had enough"} {
		require.NotZero(t, outcomes[o], "no case ended with %q: the test does not test", o)
	}
}

func streamOnce(t *testing.T, seed uint64, pieces bool) (outcome string) {
	s := newSetup(t, seed)
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	fault := s.r.IntN(8)
	breakAt := -1
	d := s.devs[s.r.IntN(len(s.devs))]
	at := int64(1 + s.r.IntN(20))
	var expected error
	switch fault {
	case 0:
		d.failAt, expected = at, errMedium
	case 1:
		d.breakAt, expected = at, errFeed
	case 2:
		d.onRead = func(n int64) {
			if n == at {
				cancel(errCause)
			}
		}
		expected = errCause
	case 3:
		time.AfterFunc(time.Duration(s.r.IntN(2000))*time.Microsecond, func() { cancel(errCause) })
		expected = errCause
	case 4:
		s.gpu.failAt, expected = int(at), errMemory
	case 5:
		s.gpu.copyAt, expected = int(at), errCopy
	case 6:
		breakAt = s.r.IntN(len(s.plan) + 1)
	}
	var completed atomic.Int64
	s.load.OnRead = func(*Read) { completed.Add(1) }

	outcome = "all"
	got := 0
	for x, err := range s.stream(t, ctx, pieces) {
		if err != nil {
			require.NotNil(t, expected, "%v", err)
			require.ErrorIs(t, err, expected)
			outcome = expected.Error()
			continue
		}
		require.Equal(t, "all", outcome, "a tensor after an error")
		require.Equal(t, s.plan[got].Name, x.name, "in the order of the plan")
		require.True(t, bytes.Equal(s.want[got], x.data), "the bytes of %s", x.name)
		if got++; got == breakAt {
			outcome = "break"
			break
		}
	}
	if outcome == "all" {
		require.Equal(t, len(s.plan), got, "all tensors, or an error")
	}
	require.Zero(t, s.pool.Out(), "buffers are back")
	var reads int64
	for _, d := range s.devs {
		reads += d.reads.Load()
	}
	require.Equal(t, reads, completed.Load())
	require.NoError(t, s.gpu.Close())
	largest, together := int64(0), int64(0) // entries of one tensor may be read together
	for i, x := range s.plan {
		if i > 0 && s.plan[i-1].Name != x.Name {
			together = 0
		}
		together += x.Bytes()
		largest = max(largest, together)
	}
	require.LessOrEqual(t, s.gpu.peak, 2*s.ahead()+3*largest, "memory is bounded: what is ahead, and the consumer's one tensor")
	st := s.load.Stats()
	require.GreaterOrEqual(t, st.Tensors, int64(got))
	if outcome == "all" {
		require.Equal(t, s.plan.Bytes(), st.Bytes)
		if len(s.plan) == len(s.model.Plan()) { // nothing that may be read once for several entries
			require.GreaterOrEqual(t, st.ReadBytes, st.Bytes)
		}
		require.Equal(t, reads, st.Reads)
		require.Equal(t, len(s.plan) > 0, st.FirstTensor > 0)
	}
	require.NoError(t, s.pool.Close())
	return outcome
}

func (s *setup) ahead() int64 {
	if s.load.Ahead == 0 {
		return s.pool.info.Bytes
	}
	return s.load.Ahead
}

// A consumer that keeps everything and does not ask for more stops the reads: the device holds no more than what was asked for.
func TestStreamWaitsForSlowConsumer(t *testing.T) {
	const tensor = 8 * 4096
	d := plainShard(t, 64, tensor)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	g := &gpu{t: t, r: rand.New(rand.NewPCG(1, 1))}
	l := &Loader{Pool: newPool(t, 4, 4096), Ahead: 2 * tensor}
	var kept []*Tensor
	for x, err := range l.Stream(t.Context(), shard.Plan(), g) {
		require.NoError(t, err)
		kept = append(kept, x)
		if len(kept) == 2 || len(kept) == 10 {
			before := -1
			require.Eventually(t, func() bool { // until nothing moves
				g.mu.Lock()
				defer g.mu.Unlock()
				same := before == g.copies
				before = g.copies
				return same
			}, 5*time.Second, 20*time.Millisecond)
			g.mu.Lock()
			require.LessOrEqual(t, g.live, len(kept)+6)
			require.Greater(t, g.live, len(kept), "it does work ahead")
			g.mu.Unlock()
		}
	}
	require.Len(t, kept, 64)
	for i, x := range kept {
		require.Equal(t, d.data[shard.DataOffset+x.Begin:shard.DataOffset+x.End], x.Memory.Bytes(), "tensor %d", i)
		x.Release()
	}
	require.NoError(t, g.Close())
}

// The next tensor is started while the one before is still on its way, even if that never ends.
func TestStreamStartsNextTensorInTime(t *testing.T) {
	d := plainShard(t, 4, 4096)
	d.depth = 1
	later := make(chan struct{})
	d.onRead = func(n int64) {
		switch n {
		case 1: // the beginning of the first tensor; 2 is its end
			select {
			case <-later:
			case <-time.After(10 * time.Second):
				t.Error("the second tensor was not started")
			}
		case 3:
			close(later)
		}
	}
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	l := &Loader{Pool: newPool(t, 4, 4096), Ahead: 1}
	for x, err := range l.Stream(t.Context(), shard.Plan(), Host{}) {
		require.NoError(t, err)
		x.Release()
	}
}

// plainShard is n tensors of size bytes each.
func plainShard(t testing.TB, n, size int) *device {
	tensors := make([]TensorInfo, n)
	for i := range tensors {
		tensors[i] = TensorInfo{Name: fmt.Sprint("t", i), DType: U8, Shape: []int64{int64(size)}}
	}
	h, err := NewHeader(tensors, nil)
	require.NoError(t, err)
	var b bytes.Buffer
	r := rand.NewChaCha8([32]byte{1})
	require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader { return io.LimitReader(r, x.Bytes()) }))
	for b.Len()%512 != 0 {
		b.WriteByte(0)
	}
	return &device{t: t, data: b.Bytes(), block: 512, maxIO: 1 << 20, queues: 2, depth: 4}
}

// Tensors that lie side by side share reads.
func TestStreamJoinsSmallTensors(t *testing.T) {
	d := plainShard(t, 100, 50)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	l := &Loader{Pool: newPool(t, 2, 4096)}
	n := 0
	for p, err := range l.Pieces(t.Context(), shard.Plan()) {
		require.NoError(t, err)
		require.Equal(t, d.data[shard.DataOffset+p.Begin+p.Off:][:len(p.Data)], p.Data)
		p.Release()
		n++
	}
	require.GreaterOrEqual(t, n, 100)
	require.LessOrEqual(t, l.Stats().Reads, int64(3), "5000 bytes in buffers of 4096")
}

func TestReleaseTwice(t *testing.T) {
	d := plainShard(t, 2, 50)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	l := &Loader{Pool: newPool(t, 2, 4096)}
	for p, err := range l.Pieces(t.Context(), shard.Plan()) {
		require.NoError(t, err)
		p.Release()
		require.Panics(t, p.Release)
	}
	for x, err := range shard.Stream(t.Context(), l.Pool, Host{}) {
		require.NoError(t, err)
		x.Release()
		require.Panics(t, x.Release)
	}
}

// Pieces outlive the sequence; the buffers come back when the consumer is through with them.
func TestPiecesKept(t *testing.T) {
	d := plainShard(t, 3, 4096)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	pool := newPool(t, 8, 4096)
	var kept []*Piece
	for p, err := range (&Loader{Pool: pool}).Pieces(t.Context(), shard.Plan()) {
		require.NoError(t, err)
		kept = append(kept, p)
	}
	require.NotZero(t, pool.Out())
	require.Error(t, pool.Close())
	for _, p := range kept {
		require.Equal(t, d.data[shard.DataOffset+p.Begin+p.Off:][:len(p.Data)], p.Data)
		p.Release()
	}
	require.Zero(t, pool.Out())
}

// Two streams share a pool of two buffers.
func TestStreamsSharePool(t *testing.T) {
	d := plainShard(t, 20, 3000)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	pool := newPool(t, 2, 4096)
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			n := 0
			for x, err := range shard.Stream(t.Context(), pool, Host{}) {
				if err != nil || !bytes.Equal(d.data[shard.DataOffset+x.Begin:shard.DataOffset+x.End], x.Memory.Bytes()) {
					t.Errorf("%v", err)
					return
				}
				x.Release()
				n++
			}
			if n != 20 {
				t.Errorf("%d tensors", n)
			}
		})
	}
	wg.Wait()
}

// A source that breaks its promise costs buffers, never correctness: what may still be written to is not used again.
type faithless struct {
	*device
	keep *Read
}

func (f *faithless) Feed(_ context.Context, feed Feed) error {
	feed.Attach(func() {})
	f.keep, _ = feed.Next()
	return nil
}

func TestSourceReturnsWithReadsInFlight(t *testing.T) {
	src := &faithless{device: plainShard(t, 2, 5000)}
	shard, err := OpenShard(t.Context(), src)
	require.NoError(t, err)
	pool := newPool(t, 2, 4096)
	for x, err := range shard.Stream(t.Context(), pool, Host{}) {
		require.Nil(t, x)
		require.ErrorContains(t, err, "1 reads in flight")
	}
	require.Equal(t, 1, pool.Out())
	pool.gens[0].Add(1) // by force, for the test's end
	pool.free = append(pool.free, 0)
}

func TestStreamErrors(t *testing.T) {
	d := plainShard(t, 2, 5000)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	first := func(seq iter.Seq2[*Tensor, error]) (err error) {
		for _, err = range seq {
			break
		}
		return err
	}
	require.ErrorContains(t, first((&Loader{}).Stream(t.Context(), nil, Host{})), "no pool")
	pool := newPool(t, 2, 4096)
	require.ErrorContains(t, first((&Loader{Pool: pool}).Stream(t.Context(), Plan{{}}, Host{})), "entry 0")

	d.failAt = 1
	err = first(shard.Stream(t.Context(), pool, Host{}))
	var re *ReadError
	require.ErrorAs(t, err, &re)
	require.ErrorIs(t, err, errMedium)
	require.ErrorContains(t, err, "reading tensor \"t")

	d.block = 8192
	require.ErrorContains(t, first(shard.Stream(t.Context(), pool, Host{})), "cannot hold a block")
	d.block = 512
	d.data = d.data[:512]
	require.ErrorIs(t, first(shard.Stream(t.Context(), pool, Host{})), ErrTruncated)

	_, err = OpenModel(t.Context(), plainShard(t, 2, 10), plainShard(t, 1, 20))
	require.ErrorContains(t, err, `tensor "t0" is in shard 1 and in shard 2`)
	_, err = OpenModel(t.Context(), plainShard(t, 2, 10), &device{data: make([]byte, 4096), block: 512})
	require.ErrorIs(t, err, ErrNotShard)
	require.ErrorContains(t, err, "shard 2 of 2")
	_, err = OpenShard(t.Context(), &device{})
	require.ErrorContains(t, err, "blocks of 0 bytes")
}

func TestHost(t *testing.T) {
	for _, n := range []int64{0, 1, 7, 65536, 65537, 5 << 20} {
		m, err := Host{}.Alloc(n)
		require.NoError(t, err)
		require.EqualValues(t, n, m.Len())
		require.Len(t, m.Bytes(), int(n))
		ok := errors.New("not called")
		Host{}.CopyIn(m, 0, bytes.Repeat([]byte{7}, int(n)), func(err error) { ok = err })
		require.NoError(t, ok)
		back := make([]byte, n)
		ok = errors.New("not called")
		Host{}.CopyOut(back, m, 0, func(err error) { ok = err })
		require.NoError(t, ok)
		require.Equal(t, bytes.Repeat([]byte{7}, int(n)), back)
		Host{}.CopyIn(m, n, []byte{1}, func(err error) { ok = err })
		require.Error(t, ok)
		Host{}.CopyIn(m, -1, nil, func(err error) { ok = err })
		require.Error(t, ok)
		Host{}.CopyOut([]byte{1}, m, n, func(err error) { ok = err })
		require.Error(t, ok)
		m.Free()
		require.Nil(t, m.Bytes())
	}
	for _, n := range []int64{-1, 1 << 50, 1 << 62, 1<<63 - 1} { // what a hostile header may ask for
		_, err := Host{}.Alloc(n)
		require.Error(t, err)
	}
}

// In steady state reading costs no allocation: neither in the feed nor in the copier.
func TestStreamDoesNotAllocatePerRead(t *testing.T) {
	const reads = 20000
	d := plainShard(t, 1, reads*512)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	for _, pieces := range []bool{false, true} {
		pool := newPool(t, 16, 4096)
		l := &Loader{Pool: pool, OnRead: func(*Read) {}}
		src := &ReaderSource{ReaderAt: bytes.NewReader(d.data), Bytes: d.Size(), Block: 512, IO: 512}
		shard.src = src
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		if pieces {
			for p, err := range l.Pieces(t.Context(), shard.Plan()) {
				require.NoError(t, err)
				p.Release()
			}
		} else {
			for x, err := range l.Stream(t.Context(), shard.Plan(), Host{}) {
				require.NoError(t, err)
				x.Release()
			}
		}
		runtime.ReadMemStats(&after)
		require.GreaterOrEqual(t, l.Stats().Reads, int64(reads))
		n := after.Mallocs - before.Mallocs
		t.Logf("pieces=%v: %d allocations for %d reads", pieces, n, l.Stats().Reads)
		if pieces {
			n -= min(n, uint64(l.Stats().Reads)) // the piece itself, which the consumer may keep
		}
		require.Less(t, n, uint64(reads/10))
	}
}

func TestRealShard(t *testing.T) {
	f, err := os.Open(realShard)
	if err != nil {
		t.Skipf("no real model here: %v", err)
	}
	defer f.Close()
	file, err := os.ReadFile(realShard)
	require.NoError(t, err)
	shard, err := OpenShard(t.Context(), &ReaderSource{ReaderAt: f, Bytes: int64(len(file))})
	require.NoError(t, err)
	pool := newPool(t, 2, 64<<10)
	l := &Loader{Pool: pool}
	sums := map[string]Checksum{}
	for sum, err := range l.Checksums(t.Context(), shard.Plan()) {
		require.NoError(t, err)
		data := file[shard.DataOffset+sum.Begin : shard.DataOffset+sum.End]
		require.Equal(t, sha256.Sum256(data), sum.SHA256)
		require.Equal(t, crc32.Checksum(data, castagnoli), sum.CRC32C)
		sums[sum.Name] = sum
	}
	require.Len(t, sums, 15)
	for x, err := range shard.Stream(t.Context(), pool, Host{}) {
		require.NoError(t, err)
		require.Equal(t, sums[x.Name].SHA256, sha256.Sum256(x.Memory.Bytes()))
		x.Release()
	}
}

// Without a device Stream would wait for ever for somebody to allocate.
func TestStreamWithoutDevice(t *testing.T) {
	shard, err := OpenShard(t.Context(), plainShard(t, 1, 512))
	require.NoError(t, err)
	for tensor, err := range shard.Stream(t.Context(), newPool(t, 2, 4096), nil) {
		require.Nil(t, tensor)
		require.ErrorContains(t, err, "needs a device")
	}
}
