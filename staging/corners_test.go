package staging

import (
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
)

// A buffer of which only a part was handed out is lost, too, if its source returned with a read of it in flight.
func TestSourceReturnsInAnOpenBuffer(t *testing.T) {
	src := &faithless{device: plainShard(t, 2, 5000)}
	src.maxIO = 512
	shard, err := OpenShard(t.Context(), src)
	require.NoError(t, err)
	for _, pieces := range []bool{false, true} {
		pool := newPool(t, 2, 4096)
		l := &Loader{Pool: pool}
		if pieces {
			for _, err := range l.Pieces(t.Context(), shard.Plan()) {
				require.ErrorContains(t, err, "1 reads in flight")
			}
		} else {
			for _, err := range l.Stream(t.Context(), shard.Plan(), Host{}) {
				require.ErrorContains(t, err, "1 reads in flight")
			}
		}
		require.Equal(t, 1, pool.Out(), "what may still be written to is not used again")
		pool.gens[0].Add(1) // by force, for the test's end
		pool.free = append(pool.free, 0)
	}
}

// A narrow slice of columns that lies within a wide one before it, and the other way round.
func TestSliceWithinSlice(t *testing.T) {
	const rows, cols = 40, 200
	data := someBytes(rand.New(rand.NewPCG(1, 1)), rows*cols)
	for len(data)%512 != 0 {
		data = append(data, 0)
	}
	d := &device{t: t, data: data, block: 512, maxIO: 1 << 20, queues: 1, depth: 1}
	s, err := RawShard(d, []Range{{Name: "a", Len: rows * cols, DType: U8, Shape: []int64{rows, cols}}})
	require.NoError(t, err)
	for _, at := range [][4]int64{{0, 150, 120, 130}, {120, 130, 0, 150}, {0, 195, 100, 190}} {
		a, err := s.Plan()[0].Slice(1, at[0], at[1])
		require.NoError(t, err)
		b, err := s.Plan()[0].Slice(1, at[2], at[3])
		require.NoError(t, err)
		i := 0
		for x, err := range (&Loader{Pool: newPool(t, 2, 4096)}).Stream(t.Context(), Plan{a, b}, Host{}) {
			require.NoError(t, err)
			require.True(t, bytes.Equal(sliceOf(x.PlanTensor, data[:rows*cols]), x.Memory.Bytes()))
			x.Release()
			i++
		}
		require.Equal(t, 2, i)
	}
}

// Blocks that are decoded once more do not upset the content checksum.
func TestLZ4OnceMore(t *testing.T) {
	data := someBytes(rand.New(rand.NewPCG(1, 1)), 10*65536+100)
	var z bytes.Buffer
	w := lz4.NewWriter(&z)
	require.NoError(t, w.Apply(lz4.BlockSizeOption(lz4.Block64Kb), lz4.ChecksumOption(true), lz4.SizeOption(uint64(len(data)))))
	_, err := io.Copy(w, bytes.NewReader(data))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	raw := z.Bytes()
	for len(raw)%512 != 0 {
		raw = append(raw, 0)
	}
	src, err := OpenLZ4(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(raw), Bytes: int64(len(raw)), Block: 512}, LZ4Config{Workers: 1, Memory: 5 * 71680})
	require.NoError(t, err)
	var ranges []Range
	add := func(off, n int64) { ranges = append(ranges, Range{Name: fmt.Sprint(len(ranges)), Off: off, Len: n}) }
	for k := range int64(8) {
		add(k*65536, 65536)
	}
	for range 3 {
		add(0, 65536)
		add(3*65536, 65536)
	}
	add(8*65536, int64(len(data))-8*65536)
	s, err := RawShard(src, ranges)
	require.NoError(t, err)
	i := 0
	for x, err := range (&Loader{Pool: newPool(t, 2, 65536)}).Stream(t.Context(), s.Plan(), Host{}) {
		require.NoError(t, err)
		require.True(t, bytes.Equal(data[ranges[i].Off:ranges[i].Off+ranges[i].Len], x.Memory.Bytes()))
		x.Release()
		i++
	}
	require.EqualValues(t, 1, src.Stats().ContentVerified)
}

// What a save writes behind the shard's end is zeros, not what was in the buffer before.
func TestSavePadsWithZeros(t *testing.T) {
	for n := 1; n < 512; n += 51 {
		r := rand.New(rand.NewPCG(uint64(n), 1))
		a, b := randomTensor(r, "a", 5*512), randomTensor(r, "b", 512-n) // b ends n bytes before a block's end
		d := newCached(t, 512, bytes.Repeat([]byte{0xbb}, 20*512))
		pool := newPool(t, 2, 4096)
		for i := range pool.mem {
			pool.mem[i] = 0xcc
		}
		h, err := (&Saver{Pool: pool}).Save(t.Context(), d, []SaveTensor{a, b}, nil)
		require.NoError(t, err)
		require.Equal(t, bytes.Repeat([]byte{0}, n), d.data[h.Size:h.Size+int64(n)])
	}
}

// Memory that only a device can read, without that device, is refused before anything is written.
func TestSaveForgottenDevice(t *testing.T) {
	d := newCached(t, 512, bytes.Repeat([]byte{0xbb}, 1<<20))
	_, err := (&Saver{Pool: newPool(t, 2, 4096)}).Save(t.Context(), d, []SaveTensor{{TensorInfo: TensorInfo{Name: "a", DType: U8, Shape: []int64{9000}}, Memory: opaque(9000)}}, nil)
	require.ErrorContains(t, err, "name the Device")
	require.Equal(t, bytes.Repeat([]byte{0xbb}, 1<<20), d.data)
}

type opaque int64

func (m opaque) Len() int64    { return int64(m) }
func (m opaque) Bytes() []byte { return nil }
func (m opaque) Free()         {}

// Ranges each of which overlaps the one before are not all started at once.
func TestOverlapsAreBounded(t *testing.T) {
	const n, size, step = 200, 8 * 4096, 4096
	d := &device{t: t, data: make([]byte, n*step+size), block: 512, maxIO: 1 << 20, queues: 1, depth: 2}
	var ranges []Range
	for i := range int64(n) {
		ranges = append(ranges, Range{Name: fmt.Sprint(i), Off: i * step, Len: size})
	}
	s, err := RawShard(d, ranges)
	require.NoError(t, err)
	g := &gpu{t: t, r: rand.New(rand.NewPCG(1, 1))}
	l := &Loader{Pool: newPool(t, 2, 4096), Ahead: 4096}
	for x, err := range l.Stream(t.Context(), s.Plan(), g) {
		require.NoError(t, err)
		x.Release()
	}
	const together = size / step // ranges that overlap one
	require.LessOrEqual(t, g.peak, int64(2*4096+2*together*size))
}

func TestRawShardWithoutBlocks(t *testing.T) {
	_, err := RawShard(&device{}, []Range{{Name: "a"}})
	require.ErrorContains(t, err, "blocks of 0 bytes")
}
