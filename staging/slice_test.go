package staging

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// counting counts how often each block is read.
type counting struct {
	data  []byte
	block int

	mu     sync.Mutex
	blocks map[int64]int
}

func (c *counting) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for at := off; at < off+int64(len(p)); at += int64(c.block) {
		c.blocks[at]++
	}
	return copy(p, c.data[off:]), nil
}

// each demands that every block that was read at all was read so often.
func (c *counting) each(t *testing.T, times int) {
	for at, n := range c.blocks {
		if n != times {
			t.Fatalf("block at %d: read %d times, not %d", at, n, times)
		}
	}
}

// oneTensor is a shard with one tensor of random bytes at an odd place.
func oneTensor(r *rand.Rand, block, io int, d DType, shape ...int64) (*Shard, *counting, []byte) {
	elements, size := d.Block()
	n := product(shape) / int64(elements) * int64(size)
	const at = 1234
	c := &counting{block: block, blocks: map[int64]int{}, data: make([]byte, (at+int(n)+block)/block*block)}
	for i := range c.data[:len(c.data)/8] {
		binary.LittleEndian.PutUint64(c.data[8*i:], r.Uint64())
	}
	h := &Header{Tensors: []TensorInfo{{Name: "x", DType: d, Shape: shape, End: n}}, DataOffset: at, Size: at + n}
	return &Shard{Header: h, src: &ReaderSource{ReaderAt: c, Bytes: int64(len(c.data)), Block: block, IO: io}}, c, c.data[at : at+n]
}

// assemble puts the slices of all ranks together again.
func assemble(t *testing.T, whole PlanTensor, slices []PlanTensor, data [][]byte) []byte {
	elements, size := whole.DType.Block()
	dim := slices[0].Dim
	bytesOf := func(shape []int64) int64 { return product(shape) * int64(size) / int64(elements) }
	out := make([]byte, whole.Bytes())
	row := bytesOf(whole.Shape[dim:])
	outer := product(whole.Shape[:dim])
	at := int64(0)
	for i, s := range slices {
		run := bytesOf(s.Shape[dim:])
		require.EqualValues(t, outer*run, len(data[i]))
		for k := range outer {
			copy(out[k*row+at:], data[i][k*run:(k+1)*run])
		}
		at += run
	}
	require.Equal(t, row, at)
	return out
}

// The slices of all ranks, put together again, are the tensor, whatever its type and shape, and whichever way they come.
func TestSlicesOfEveryDType(t *testing.T) {
	for d := BOOL; int(d) < len(dtypes); d++ {
		t.Run(d.String(), func(t *testing.T) {
			r := rand.New(rand.NewPCG(uint64(d), 1))
			for range 5 {
				elements, _ := d.Block()
				shape := make([]int64, 1+r.IntN(4))
				for i := range shape {
					shape[i] = 1 + r.Int64N(12)
				}
				shape[len(shape)-1] = int64(elements) * (1 + r.Int64N(40))
				block := []int{512, 4096}[r.IntN(2)]
				shard, _, want := oneTensor(r, block, block*(1+r.IntN(8)), d, shape...)
				pool := newPool(t, 2+r.IntN(4), 4096*(1+r.IntN(4)))
				dim, ranks := r.IntN(len(shape)), 1+r.IntN(5)
				var all Plan
				for rank := range ranks {
					p, err := shard.Plan().Slice(rank, ranks, func(PlanTensor) int { return dim })
					require.NoError(t, err)
					all = append(all, p...)
				}
				if ranks == 1 {
					all[0], _ = all[0].Slice(dim, 0, shape[dim])
				}
				load := &Loader{Pool: pool}
				var got [][]byte
				for x, err := range load.Stream(t.Context(), all, Host{}) {
					require.NoError(t, err)
					got = append(got, bytes.Clone(x.Memory.Bytes()))
					x.Release()
				}
				require.Equal(t, want, assemble(t, shard.Plan()[0], all, got), "%v along %d", shape, dim)
				for i, x := range all {
					require.Equal(t, sliceOf(x, want), got[i], "%v along %d", shape, dim)
				}

				got = make([][]byte, 0, ranks)
				var data []byte
				for p, err := range load.Pieces(t.Context(), all) {
					require.NoError(t, err)
					data = append(data, p.Data...)
					if p.Last {
						got = append(got, data)
						data = nil
					}
					p.Release()
				}
				require.Equal(t, want, assemble(t, shard.Plan()[0], all, got), "%v along %d, in pieces", shape, dim)
				require.NoError(t, pool.Close())
			}
		})
	}
}

func TestSliceErrors(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	plan := func(d DType, shape ...int64) Plan {
		shard, _, _ := oneTensor(r, 512, 4096, d, shape...)
		return shard.Plan()
	}
	slice := func(p Plan, dim int, from, to int64) error {
		_, err := p[0].Slice(dim, from, to)
		return err
	}
	bf16 := plan(BF16, 8, 6)
	require.ErrorContains(t, slice(bf16, 2, 0, 1), `slice [0,1) along dimension 2 of tensor "x", BF16 [8 6]: there is no such dimension`)
	require.ErrorContains(t, slice(bf16, -1, 0, 1), "no such dimension")
	require.ErrorContains(t, slice(bf16, 0, 3, 2), "outside")
	require.ErrorContains(t, slice(bf16, 0, -1, 2), "outside")
	require.ErrorContains(t, slice(bf16, 1, 0, 7), "outside")
	part, err := bf16[0].Slice(1, 2, 4)
	require.NoError(t, err)
	require.ErrorContains(t, slice(Plan{part}, 0, 0, 1), "a slice already")

	require.ErrorContains(t, slice(plan(F4, 4, 6), 1, 1, 4), "F4 can only be cut every 2 elements, which 1 is not")
	require.ErrorContains(t, slice(plan(F4, 4, 6), 1, 2, 5), "which 5 is not")
	require.ErrorContains(t, slice(plan(F4, 4, 3), 0, 1, 2), "which 3 is not", "a row ends within a byte")
	require.ErrorContains(t, slice(plan(F4, 4, 3), 1, 0, 2), "which 3 is not")
	require.NoError(t, slice(plan(F4, 4, 3), 0, 2, 4))
	require.ErrorContains(t, slice(plan(F6_E2M3, 8, 6), 1, 2, 4), "every 4 elements")
	require.ErrorContains(t, slice(plan(Q4_K, 4, 512), 1, 0, 128), "every 256 elements")
	require.NoError(t, slice(plan(Q4_K, 4, 512), 1, 256, 512))
	require.NoError(t, slice(plan(Q4_K, 4, 512), 0, 1, 2))

	// Shares are cut where the type allows it: 5 blocks for 3 ranks.
	var sizes []int64
	for rank := range 3 {
		p, err := plan(Q4_0, 2, 5*32).Slice(rank, 3, func(PlanTensor) int { return 1 })
		require.NoError(t, err)
		sizes = append(sizes, p[0].Shape[1])
	}
	require.Equal(t, []int64{64, 64, 32}, sizes)
	_, err = bf16.Slice(2, 2, TensorParallel)
	require.ErrorContains(t, err, "rank 2 of 2")
	_, err = bf16.Slice(0, 2, func(PlanTensor) int { return 7 })
	require.ErrorContains(t, err, "no such dimension")

	empty := Plan{{Shard: &Shard{Header: &Header{}}, TensorInfo: &TensorInfo{DType: F32, Shape: []int64{1 << 62, 0, 1 << 62}}}}
	part, err = empty[0].Slice(0, 1, 1<<61)
	require.NoError(t, err)
	require.Zero(t, part.Bytes())
}

func TestSliceRules(t *testing.T) {
	dim := func(rule SliceRule, name string) int { return rule(PlanTensor{TensorInfo: &TensorInfo{Name: name}}) }
	for name, want := range map[string]int{
		"model.layers.0.self_attn.q_proj.weight": 0, "model.layers.10.self_attn.o_proj.weight": 1, "model.layers.3.mlp.down_proj.weight": 1,
		"model.layers.3.mlp.experts.7.up_proj.weight": 0, "model.norm.weight": -1, "lm_head.weight": 0, "model.layers.0.mlp.down_proj.bias": -1,
		"blk.3.ffn_down.weight": 1, "output.weight": 0, "output_norm.weight": -1, "blk.0.attn_output.weight": 1, "token_embd.weight": 0,
		"model.layers.0.not_q_proj.weight": -1,
	} {
		require.Equal(t, want, dim(TensorParallel, name), name)
	}
	require.Equal(t, 1, dim(SliceBySuffix(map[string]int{"w": 0, "a.w": 1}), "x.a.w"), "the longest")
}

// loadAll streams the plan and returns the data of its entries.
func loadAll(t *testing.T, l *Loader, plan Plan) (data [][]byte) {
	for x, err := range l.Stream(t.Context(), plan, Host{}) {
		require.NoError(t, err)
		data = append(data, bytes.Clone(x.Memory.Bytes()))
		x.Release()
	}
	return data
}

// Rows cost their own bytes and the padding to whole blocks.
func TestRowSlicesReadOnlyTheirOwn(t *testing.T) {
	shard, count, want := oneTensor(rand.New(rand.NewPCG(1, 1)), 4096, 128<<10, BF16, 1024, 1000)
	for rank := range 4 {
		clear(count.blocks)
		plan, err := shard.Plan().Slice(rank, 4, func(PlanTensor) int { return 0 })
		require.NoError(t, err)
		l := &Loader{Pool: newPool(t, 4, 64<<10)}
		data := loadAll(t, l, plan)
		require.Equal(t, want[rank*len(want)/4:(rank+1)*len(want)/4], data[0])
		count.each(t, 1)
		st := l.Stats()
		require.LessOrEqual(t, float64(st.ReadBytes), 1.02*float64(st.Bytes))
		planned, err := plan.ReadBytes()
		require.NoError(t, err)
		require.Equal(t, planned, st.ReadBytes)
	}
}

// Columns: no block twice, runs that are far apart without what is between them, and whole rows where they are close.
func TestColumnSlicesReadNoBlockTwice(t *testing.T) {
	for _, c := range []struct {
		name          string
		rows, columns int64
		from, to      int64
		most          float64 // amplification
		whole         bool    // rows as a whole
	}{
		{"far apart", 20, 100_000, 30_000, 60_000, 1.3, false},
		{"thin and far apart", 60, 50_000, 100, 110, 600, false},
		{"a block between", 60, 24_000, 0, 6_000, 2, false},
		{"close", 200, 9000, 4000, 8000, 9000. / 4000 * 1.01, true},
		{"single bytes", 9000, 50, 7, 8, 50.3, true},
	} {
		for _, pieces := range []bool{false, true} {
			t.Run(fmt.Sprint(c.name, "/pieces=", pieces), func(t *testing.T) {
				shard, count, want := oneTensor(rand.New(rand.NewPCG(1, 1)), 512, 16<<10, U8, c.rows, c.columns)
				x, err := shard.Plan()[0].Slice(1, c.from, c.to)
				require.NoError(t, err)
				l := &Loader{Pool: newPool(t, 3, DefaultBufferSize)}
				var got []byte
				if pieces {
					for p, err := range l.Pieces(t.Context(), Plan{x}) {
						require.NoError(t, err)
						require.EqualValues(t, len(got), p.Off)
						got = append(got, p.Data...)
						p.Release()
					}
				} else {
					got = loadAll(t, l, Plan{x})[0]
				}
				require.Equal(t, sliceOf(x, want), got)
				count.each(t, 1)
				st := l.Stats()
				require.Equal(t, x.Bytes(), st.Bytes)
				require.EqualValues(t, len(count.blocks)*512, st.ReadBytes)
				planned, err := Plan{x}.ReadBytes()
				require.NoError(t, err)
				require.Equal(t, planned, st.ReadBytes)
				t.Logf("%d reads, amplification %.2f", st.Reads, float64(st.ReadBytes)/float64(st.Bytes))
				require.LessOrEqual(t, float64(st.ReadBytes)/float64(st.Bytes), c.most)
				span := (x.End-x.Begin)/512 + 2
				if c.whole {
					require.GreaterOrEqual(t, int64(len(count.blocks)), span*95/100)
					require.LessOrEqual(t, st.Reads, span*512/(16<<10)+8)
				} else {
					require.Less(t, int64(len(count.blocks)), span*9/10)
				}
			})
		}
	}
}

// One process loads for several devices: what they share is read once, and slices of one tensor are.
func TestSlicesForSeveralDevicesAreReadOnce(t *testing.T) {
	shard, count, want := oneTensor(rand.New(rand.NewPCG(1, 1)), 512, 16<<10, BF16, 64, 32_000)
	gpus := make([]*gpu, 4)
	var plan Plan
	for i := range gpus {
		gpus[i] = &gpu{t: t, r: rand.New(rand.NewPCG(uint64(i), 1))}
		p, err := shard.Plan().Slice(i, 4, func(PlanTensor) int { return 1 })
		require.NoError(t, err)
		plan = append(plan, p.To(gpus[i])...)
	}
	for i := range gpus {
		plan = append(plan, shard.Plan().To(gpus[i])...)
	}
	l := &Loader{Pool: newPool(t, 4, 64<<10)}
	var got [][]byte
	for x, err := range l.Stream(t.Context(), plan, nowhere{}) {
		require.NoError(t, err)
		require.Same(t, gpus[len(got)%4], x.Memory.(*gpuMemory).d)
		got = append(got, bytes.Clone(x.Memory.Bytes()))
		x.Release()
	}
	require.Equal(t, want, assemble(t, shard.Plan()[0], plan[:4], got))
	for _, whole := range got[4:] {
		require.Equal(t, want, whole)
	}
	count.each(t, 2) // once for the slices, once for the whole tensors
	planned, err := plan.ReadBytes()
	require.NoError(t, err)
	require.EqualValues(t, l.Stats().ReadBytes, planned)
	for _, g := range gpus {
		require.NoError(t, g.Close())
	}
}

// What is left between the slices of several devices is read through where it is small, as within one slice.
func TestSmallHolesBetweenSlicesAreReadThrough(t *testing.T) {
	shard, count, want := oneTensor(rand.New(rand.NewPCG(1, 1)), 512, 1<<20, U8, 20, 24_000)
	var plan Plan
	for _, from := range []int64{0, 10_000} {
		x, err := shard.Plan()[0].Slice(1, from, from+6000)
		require.NoError(t, err)
		plan = append(plan, x)
	}
	l := &Loader{Pool: newPool(t, 3, DefaultBufferSize), Ahead: 1 << 20}
	for i, got := range loadAll(t, l, plan) {
		require.Equal(t, sliceOf(plan[i], want), got)
	}
	count.each(t, 1)
	require.LessOrEqual(t, l.Stats().Reads, int64(2), "holes of 4000 and 8000 bytes")
}
