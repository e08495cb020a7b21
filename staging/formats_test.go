package staging

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
)

func isShardError(err error) bool {
	for _, want := range []error{ErrNotShard, ErrHeader, ErrTruncated, ErrTrailing} {
		if errors.Is(err, want) {
			return true
		}
	}
	return false
}

// fileSource is a source of a file on a device with these blocks, with more behind it.
func fileSource(t testing.TB, file []byte, block int) *device {
	data := append(bytes.Clone(file), bytes.Repeat([]byte{0xA5}, 2*block-len(file)%block)...)
	return &device{t: t, data: data, block: block, maxIO: 16 * block, queues: 3, depth: 2}
}

// tensorOfEach is a tensor of each type that has wants, with rows of whole blocks.
func tensorOfEach(has func(DType) bool) (tensors []TensorInfo) {
	for d := BOOL; d <= NVFP4; d++ {
		if has(d) {
			elements, _ := d.Block()
			tensors = append(tensors, TensorInfo{Name: "t." + d.String(), DType: d, Shape: []int64{int64(3 + d), 7, int64(elements) * 5}})
		}
	}
	return tensors
}

// A shard of every dtype in every format comes out of the loader bit by bit.
func TestEveryDTypeLoads(t *testing.T) {
	random := rand.NewChaCha8([32]byte{9})
	data := func(x *TensorInfo) io.Reader { return io.LimitReader(random, x.Bytes()) }

	var safe bytes.Buffer
	h, err := NewHeader(tensorOfEach(DType.safetensors), nil)
	require.NoError(t, err)
	require.Len(t, h.Tensors, 22)
	require.NoError(t, WriteShard(&safe, h, data))

	var gguf bytes.Buffer
	g, err := NewGGUF(tensorOfEach(func(d DType) bool { return d.ggml() >= 0 }), []GGUFPair{{alignmentKey, uint32(64)}, {"general.architecture", "test"}})
	require.NoError(t, err)
	require.Len(t, g.Tensors, 35)
	require.NoError(t, WriteGGUF(&gguf, g, data))

	ranges := []Range{{Name: "bytes", Off: 3, Len: 1001}}
	off := int64(5000)
	for _, x := range tensorOfEach(func(DType) bool { return true }) {
		size, err := x.size()
		require.NoError(t, err)
		ranges = append(ranges, Range{Name: x.Name, Off: off, Len: size, DType: x.DType, Shape: x.Shape})
		off += size + 3
	}
	raw := make([]byte, off)
	random.Read(raw)

	for _, block := range []int{512, 4096} {
		for name, c := range map[string]struct {
			file   []byte
			format Format
			count  int
			stored []byte // nil: file
		}{
			"safetensors":     {safe.Bytes(), FormatSafetensors, 22, nil},
			"safetensors.lz4": {safe.Bytes(), FormatSafetensors, 22, frame(t, safe.Bytes(), lz4.BlockSizeOption(lz4.Block64Kb))},
			"gguf":            {gguf.Bytes(), FormatGGUF, 35, nil},
			"gguf.lz4":        {gguf.Bytes(), FormatGGUF, 35, frame(t, gguf.Bytes(), lz4.BlockSizeOption(lz4.Block64Kb))},
			"raw":             {raw, FormatRaw, 1 + 49, nil},
		} {
			t.Run(fmt.Sprint(name, block), func(t *testing.T) {
				src := fileSource(t, c.file, block)
				if c.stored != nil {
					src = fileSource(t, c.stored, block)
				}
				var s *Shard
				var err error
				if c.format == FormatRaw {
					s, err = RawShard(src, ranges)
				} else {
					s, err = OpenShard(t.Context(), src)
				}
				require.NoError(t, err)
				require.Equal(t, c.format, s.Format)
				require.Equal(t, c.format == FormatGGUF, s.GGUF != nil)
				require.Equal(t, c.stored != nil, s.LZ4 != nil)
				require.Len(t, s.Tensors, c.count)
				n := 0
				for x, err := range s.Stream(t.Context(), newPool(t, 6, 16*block), Host{}) {
					require.NoError(t, err)
					want := c.file[s.DataOffset+x.Begin : s.DataOffset+x.End]
					require.True(t, bytes.Equal(want, x.Memory.Bytes()), x.Name)
					x.Release()
					n++
				}
				require.Equal(t, c.count, n)
				l := &Loader{Pool: newPool(t, 4, 8*block)}
				got := map[string][]byte{}
				for p, err := range l.Pieces(t.Context(), s.Plan()) {
					require.NoError(t, err)
					require.EqualValues(t, p.Off, len(got[p.Name]))
					got[p.Name] = append(got[p.Name], p.Data...)
					p.Release()
				}
				for i := range s.Tensors {
					x := &s.Tensors[i]
					require.True(t, bytes.Equal(c.file[s.DataOffset+x.Begin:s.DataOffset+x.End], got[x.Name]), x.Name)
				}
			})
		}
	}
}

func TestOpenShardAs(t *testing.T) {
	gguf, _ := ggufFile(t, []TensorInfo{{Name: "t", DType: F32, Shape: []int64{1000}}})
	safe := randomShard(t, "x", 5000)
	for _, c := range []struct {
		file   []byte
		format Format
		want   error
		text   string
	}{
		{gguf, FormatAuto, nil, ""},
		{gguf, FormatGGUF, nil, ""},
		{gguf, FormatSafetensors, ErrNotShard, "safetensors header"},
		{safe, FormatAuto, nil, ""},
		{safe, FormatSafetensors, nil, ""},
		{safe, FormatGGUF, ErrNotShard, `begins with "GGUF"`},
		{[]byte("FUGG\x00\x00\x00\x03"), FormatAuto, ErrHeader, "big-endian"},
		{make([]byte, 5000), FormatAuto, ErrNotShard, ""},
		{nil, FormatAuto, ErrNotShard, ""},
		{[]byte("GGU"), FormatAuto, ErrNotShard, ""},
		{frame(t, gguf), FormatAuto, nil, ""},
		{append(binary.LittleEndian.AppendUint32(nil, 0x184D2A53), append([]byte{4, 0, 0, 0, 1, 2, 3, 4}, frame(t, safe)...)...), FormatAuto, nil, ""},
		{frame(t, frame(t, safe)), FormatAuto, ErrNotShard, "safetensors header"},
		{frame(t, gguf), FormatGGUF, ErrNotShard, "begins with"},
		{[]byte("\x02\x21\x4C\x18 and more"), FormatAuto, errors.ErrUnsupported, "legacy"},
		{gguf, FormatRaw, nil, "RawShard"},
		{gguf, "onnx", nil, `cannot be opened as "onnx"`},
	} {
		t.Run(fmt.Sprintf("%.4q as %q", c.file, c.format), func(t *testing.T) {
			s, err := OpenShardAs(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(c.file), Bytes: int64(len(c.file))}, c.format)
			if c.text == "" && c.want == nil {
				require.NoError(t, err)
				require.Len(t, s.Tensors, 1)
				return
			}
			require.ErrorContains(t, err, "staging: ")
			require.ErrorContains(t, err, c.text)
			if c.want != nil {
				require.ErrorIs(t, err, c.want)
			}
		})
	}
}

func TestRawShardRefuses(t *testing.T) {
	src := fileSource(t, make([]byte, 10000), 512)
	size := src.Size()
	for _, r := range []Range{
		{Name: "\xff", Len: 1},
		{Name: "a", Off: -1, Len: 1},
		{Name: "a", Len: -1},
		{Name: "a", Len: size + 1},
		{Name: "a", Off: size, Len: 1},
		{Name: "a", Off: 1<<63 - 1, Len: 1<<63 - 1},
		{Name: "a", Len: 4, Shape: []int64{4}},
		{Name: "a", Len: 4, DType: F32, Shape: []int64{2}},
		{Name: "a", Len: 18, DType: Q4_0, Shape: []int64{16, 2}},
		{Name: "a", Len: 4, DType: 200},
	} {
		_, err := RawShard(src, []Range{r})
		require.Error(t, err, "%+v", r)
	}
	_, err := RawShard(src, []Range{{Name: "a", Len: 1}, {Name: "a", Len: 1}})
	require.ErrorContains(t, err, "duplicate")
	_, err = RawShard(src, []Range{{Name: "a", Len: size + 1}})
	require.ErrorIs(t, err, ErrTruncated)
	s, err := RawShard(src, []Range{{Name: "b", Off: 10, Len: 20}, {Name: "a", Len: 15}, {Name: "e", Off: size}})
	require.NoError(t, err, "any order, overlaps, and nothing at the end")
	require.Equal(t, "b", s.Tensors[0].Name)
	require.Equal(t, []int64{20}, s.Tensor("b").Shape)
	require.Equal(t, size, s.Size)
}

// Parts of a split model, as llama.cpp's gguf-split writes them: the first may have no tensors.
func TestSplitGGUF(t *testing.T) {
	part := func(no, count, tensors any, names ...string) Source {
		var list []TensorInfo
		for _, n := range names {
			list = append(list, TensorInfo{Name: n, DType: F32, Shape: []int64{100}})
		}
		var pairs []GGUFPair
		for i, v := range []any{no, count, tensors} {
			if v != nil {
				pairs = append(pairs, GGUFPair{[]string{splitNoKey, splitCountKey, splitTensorsKey}[i], v})
			}
		}
		b, _ := ggufFile(t, list, pairs...)
		return &ReaderSource{ReaderAt: bytes.NewReader(b), Bytes: int64(len(b))}
	}
	u16 := func(v int) any { return uint16(v) }
	three := int32(3)
	parts := func() []Source {
		return []Source{part(u16(0), u16(3), three), part(u16(1), u16(3), three, "a", "b"), part(u16(2), u16(3), three, "c")}
	}
	m, err := OpenModel(t.Context(), parts()...)
	require.NoError(t, err)
	require.Len(t, m.Plan(), 3)
	_, err = OpenModel(t.Context(), part(u16(0), u16(1), int32(1), "a"))
	require.NoError(t, err, "one part is not split")
	_, err = OpenModel(t.Context(), part(nil, nil, nil, "a"), part(nil, nil, nil, "b"))
	require.NoError(t, err, "two models that are not split")
	_, err = OpenModel(t.Context(), part(uint32(0), uint64(2), nil, "a"), part(int8(1), int32(2), nil, "b"))
	require.NoError(t, err, "other integers will do, too")

	p := parts()
	for name, c := range map[string]struct {
		srcs []Source
		text string
	}{
		"one of three":      {p[:1], "3 parts, and there are 1 shards"},
		"two of three":      {p[:2], "3 parts, and there are 2 shards"},
		"one too many":      {append(parts(), part(nil, nil, nil, "x")), "3 parts, and there are 4"},
		"not in order":      {[]Source{p[0], p[2], p[1]}, "split.no 2, want 1"},
		"another model":     {[]Source{p[0], p[1], part(u16(2), u16(4), three, "c")}, "shard 3 of 3"},
		"not a part":        {[]Source{part(nil, nil, nil, "x"), p[1], p[2]}, "shard 1 of 3 is not a part"},
		"a part missing no": {[]Source{p[0], p[1], part(nil, u16(3), three, "c")}, "split.no 0, want 2"},
		"tensors missing":   {[]Source{p[0], p[1], part(u16(2), u16(3), three)}, "is 3, and the parts have 2"},
		"parts of nothing":  {[]Source{part(u16(0), u16(0), three)}, "0 parts"},
		"safetensors":       {[]Source{p[0], p[1], fileSource(t, randomShard(t, "x", 10), 512)}, "not a part"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenModel(t.Context(), c.srcs...)
			require.ErrorIs(t, err, ErrSplit)
			require.ErrorContains(t, err, c.text)
		})
	}
	_, err = OpenModel(t.Context(), p[0], p[1], p[1])
	require.ErrorContains(t, err, "is in shard 2 and in shard 3")
}
