package staging

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func readGGUFBytes(b []byte, trailing Trailing) (*GGUF, error) {
	return ReadGGUF(context.Background(), bytes.NewReader(b), int64(len(b)), trailing)
}

// ggufFile writes a whole file, with random data, and returns it with its header.
func ggufFile(t testing.TB, tensors []TensorInfo, metadata ...GGUFPair) ([]byte, *GGUF) {
	g, err := NewGGUF(tensors, metadata)
	require.NoError(t, err)
	var b bytes.Buffer
	r := rand.NewChaCha8([32]byte{1})
	require.NoError(t, WriteGGUF(&b, g, func(x *TensorInfo) io.Reader { return io.LimitReader(r, x.Bytes()) }))
	require.EqualValues(t, g.Size, b.Len())
	return b.Bytes(), g
}

// checkGGUF checks what a valid header of a source of size bytes promises.
func checkGGUF(t testing.TB, g *GGUF, size int64) {
	end := int64(0)
	for i := range g.Tensors {
		x := &g.Tensors[i]
		require.Same(t, x, g.Tensor(x.Name))
		require.GreaterOrEqual(t, x.Begin, end)
		require.Zero(t, x.Begin%int64(g.Alignment))
		elements, bytes := x.DType.Block()
		require.GreaterOrEqual(t, x.DType.ggml(), 0)
		n := int64(1)
		for _, d := range x.Shape {
			n *= d
		}
		require.Equal(t, n, x.Bytes()/int64(bytes)*int64(elements))
		end = x.End
	}
	if len(g.Tensors) > 0 {
		require.Zero(t, g.DataOffset%int64(g.Alignment))
	}
	require.LessOrEqual(t, g.DataOffset+end, g.Size)
	require.LessOrEqual(t, g.Size, size)
	require.Less(t, g.Size-g.DataOffset-end, int64(g.Alignment))
	for _, p := range g.Metadata {
		require.Equal(t, p.Value, g.Value(p.Key))
	}
	require.Nil(t, g.Value("no such key"))
}

// testdata/ggml.gguf was written by GGML itself (gguf_write_to_file of ggml at d99724f): each type of value and of tensor that it has.
func TestGGUFOfGGML(t *testing.T) {
	file, err := os.ReadFile("testdata/ggml.gguf")
	require.NoError(t, err)
	g, err := readGGUFBytes(file, NoTrailing)
	require.NoError(t, err)
	checkGGUF(t, g, int64(len(file)))
	require.EqualValues(t, 3, g.Version)
	require.EqualValues(t, 32, g.Alignment)
	require.EqualValues(t, 2112, g.DataOffset)
	require.Equal(t, []GGUFPair{
		{"general.architecture", "llama"},
		{"general.alignment", uint32(32)},
		{"v.u8", uint8(200)},
		{"v.i8", int8(-100)},
		{"v.u16", uint16(60000)},
		{"v.i16", int16(-30000)},
		{"v.u32", uint32(4000000000)},
		{"v.i32", int32(-2000000000)},
		{"v.f32", float32(0.5)},
		{"v.bool", true},
		{"v.u64", uint64(1 << 63)},
		{"v.i64", int64(-1 << 62)},
		{"v.f64", -0.25},
		{"v.str", "héllo"},
		{"a.str", []string{"<s>", "", "▁the"}},
		{"a.i32", []int32{1, -2, 3}},
		{"a.f32", []float32{-1.5, 2}},
		{"a.bool", []bool{true, false}},
		{"a.u64", []uint64{1, math.MaxUint64}},
	}, g.Metadata)

	// Of each type there is a tensor of one to three rows of one block, filled from a linear congruential generator.
	x, found := uint32(1), 0
	for n, d := range ggmlTypes {
		if d == 0 {
			continue
		}
		found++
		info := g.Tensor("t." + strings.Replace(strings.ToLower(d.String()), "_k", "_K", 1))
		require.NotNil(t, info, "%v", d)
		require.Equal(t, d, info.DType)
		elements, size := d.Block()
		shape := []int64{int64(1 + n%3), int64(elements)}
		if shape[0] == 1 {
			shape = shape[1:] // GGML does not write dimensions of one at the end
		}
		require.Equal(t, shape, info.Shape)
		require.EqualValues(t, (1+n%3)*size, info.Bytes())
		for i, got := range file[g.DataOffset+info.Begin : g.DataOffset+info.End] {
			x = x*1664525 + 1013904223
			require.Equal(t, byte(x>>24), got, "byte %d of %s", i, info.Name)
		}
	}
	require.Len(t, g.Tensors, found)

	again, err := g.Append(nil)
	require.NoError(t, err)
	require.True(t, bytes.Equal(file[:g.DataOffset], again), "we write what GGML writes")
}

// randomValue makes a value of any type, of arrays up to so deep.
func randomValue(r *rand.Rand, depth int) any {
	str := func() string { return strings.Repeat("é\x00<s>", r.IntN(4)) }
	n := r.IntN(5)
	switch r.IntN(12 + min(depth, 1)*14) {
	case 0:
		return uint8(r.Uint32())
	case 1:
		return int8(r.Uint32())
	case 2:
		return uint16(r.Uint32())
	case 3:
		return int16(r.Uint32())
	case 4:
		return r.Uint32()
	case 5:
		return int32(r.Uint32())
	case 6:
		return r.Float32()
	case 7:
		return r.IntN(2) == 1
	case 8:
		return str()
	case 9:
		return r.Uint64()
	case 10:
		return int64(r.Uint64())
	case 11:
		return r.Float64()
	case 12:
		return randomArray(n*3000, func() uint8 { return uint8(r.Uint32()) })
	case 13:
		return randomArray(n, func() int8 { return int8(r.Uint32()) })
	case 14:
		return randomArray(n, func() uint16 { return uint16(r.Uint32()) })
	case 15:
		return randomArray(n, func() int16 { return int16(r.Uint32()) })
	case 16:
		return randomArray(n*1000, r.Uint32)
	case 17:
		return randomArray(n, func() int32 { return int32(r.Uint32()) })
	case 18:
		return randomArray(n, r.Float32)
	case 19:
		return randomArray(n, func() bool { return r.IntN(2) == 1 })
	case 20:
		return randomArray(n*1000, str)
	case 21:
		return randomArray(n, r.Uint64)
	case 22:
		return randomArray(n, func() int64 { return int64(r.Uint64()) })
	case 23:
		return randomArray(n, r.Float64)
	}
	all := []any{}
	for len(all) < n {
		if v := randomValue(r, depth-1); reflect.TypeOf(v).Kind() == reflect.Slice {
			all = append(all, v)
		} else if depth == 1 {
			all = append(all, []string{"deepest"})
		}
	}
	return all
}

func randomArray[T any](n int, element func() T) []T {
	all := make([]T, n)
	for i := range all {
		all[i] = element()
	}
	return all
}

func TestGGUFRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for range 60 {
		var metadata []GGUFPair
		for i := range r.IntN(20) {
			metadata = append(metadata, GGUFPair{fmt.Sprintf("llama.some_key.%d", i), randomValue(r, maxGGUFDepth)})
		}
		if r.IntN(2) == 0 {
			metadata = append(metadata, GGUFPair{alignmentKey, uint32(1) << r.IntN(14)})
		}
		var tensors []TensorInfo
		for i := range r.IntN(30) {
			d := DType(0)
			for d == 0 {
				d = ggmlTypes[r.IntN(len(ggmlTypes))]
			}
			elements, _ := d.Block()
			x := TensorInfo{Name: fmt.Sprintf("blk.%d.wéight", i), DType: d, Shape: []int64{int64(r.IntN(4) * elements)}}
			if elements == 1 && r.IntN(4) == 0 {
				x.Shape = nil
			} else {
				for range r.IntN(4) {
					x.Shape = append([]int64{int64(1 + r.IntN(3))}, x.Shape...)
				}
			}
			tensors = append(tensors, x)
		}
		file, want := ggufFile(t, tensors, metadata...)
		for _, version := range []uint32{2, 3} {
			binary.LittleEndian.PutUint32(file[4:], version)
			want.Version = version
			got, err := readGGUFBytes(file, NoTrailing)
			require.NoError(t, err)
			require.Equal(t, want, got)
			checkGGUF(t, got, int64(len(file)))
			require.Equal(t, len(metadata), len(got.Metadata))
			for i, p := range metadata {
				require.Equal(t, p, got.Metadata[i])
			}
			for i, x := range tensors {
				require.Equal(t, x.Name, got.Tensors[i].Name, "the order of the tensors")
				require.True(t, slices.Equal(x.Shape, got.Tensors[i].Shape))
				require.Equal(t, x.DType, got.Tensors[i].DType)
			}
		}
	}
}

// rawGGUF puts a header together byte by byte, as no writer would.
type rawGGUF struct{ b []byte }

func ggufStart(version uint32, tensors, pairs uint64) *rawGGUF {
	return (&rawGGUF{[]byte("GGUF")}).u32(version).u64(tensors, pairs)
}

func (w *rawGGUF) u32(vs ...uint32) *rawGGUF {
	for _, v := range vs {
		w.b = binary.LittleEndian.AppendUint32(w.b, v)
	}
	return w
}

func (w *rawGGUF) u64(vs ...uint64) *rawGGUF {
	for _, v := range vs {
		w.b = binary.LittleEndian.AppendUint64(w.b, v)
	}
	return w
}

func (w *rawGGUF) bytes(b ...byte) *rawGGUF { w.b = append(w.b, b...); return w }

func (w *rawGGUF) str(s string) *rawGGUF { w.b = appendGGUFString(w.b, s); return w }

// tensor is an entry of the table; dims in the file's order.
func (w *rawGGUF) tensor(name string, typ uint32, offset uint64, dims ...uint64) *rawGGUF {
	return w.str(name).u32(uint32(len(dims))).u64(dims...).u32(typ).u64(offset)
}

// data pads the header to a multiple and appends n bytes.
func (w *rawGGUF) data(alignment, n int) []byte {
	for len(w.b)%alignment != 0 {
		w.b = append(w.b, 0)
	}
	return append(w.b, make([]byte, n)...)
}

// nested is a header with an array so deep.
func nested(depth int) []byte {
	w := ggufStart(3, 0, 1).str("k").u32(ggufArray)
	for range depth - 1 {
		w.u32(ggufArray).u64(1)
	}
	return w.u32(ggufUint8).u64(0).b
}

func TestGGUFInvalid(t *testing.T) {
	const f32, q40, q4K = 0, 2, 12
	one := func() *rawGGUF { return ggufStart(3, 1, 0) }
	kv := func() *rawGGUF { return ggufStart(3, 0, 1) }
	for _, c := range []struct {
		name string
		file []byte
		want error
		text string
	}{
		{"nothing", nil, ErrNotShard, "begins with"},
		{"another magic", []byte("GGML\x03\x00\x00\x00 and more"), ErrNotShard, `here is "GGML"`},
		{"magic alone", []byte("GGUF"), ErrTruncated, "left"},
		{"version 0", ggufStart(0, 0, 0).b, ErrHeader, "big-endian"},
		{"version 1", ggufStart(1, 0, 0).b, ErrHeader, "version 1"},
		{"version 4", ggufStart(4, 0, 0).b, ErrHeader, "version 4"},
		{"big-endian", ggufStart(0x03000000, 0, 0).b, ErrHeader, "gguf_convert_endian.py"},
		{"big-endian magic", append([]byte("FUGG"), make([]byte, 40)...), ErrHeader, "big-endian"},
		{"tensors beyond the source", ggufStart(3, 1, 0).b, ErrTruncated, "1 tensors"},
		{"2^64-1 tensors", ggufStart(3, math.MaxUint64, 0).data(1, 100), ErrTruncated, "tensors"},
		{"2^64-1 pairs", ggufStart(3, 0, math.MaxUint64).data(1, 100), ErrTruncated, "pairs of metadata"},
		{"empty key", kv().str("").u32(ggufUint32, 0).data(1, 20), ErrHeader, "duplicate or empty"},
		{"duplicate key", ggufStart(3, 0, 2).str("k").u32(ggufUint32, 1).str("k").u32(ggufUint32, 1).b, ErrHeader, "duplicate or empty"},
		{"key too long", kv().str(strings.Repeat("k", 1<<16)).u32(ggufUint32, 1).b, ErrHeader, "more than 65535"},
		{"key not UTF-8", kv().str("\xff").u32(ggufUint32, 1).b, ErrHeader, "not UTF-8"},
		{"type of a value", kv().str("k").u32(13, 0).b, ErrHeader, "unknown type 13"},
		{"bool of 2", kv().str("k").u32(ggufBool).bytes(2).b, ErrHeader, "a bool of 2"},
		{"bool of 2 in an array", kv().str("k").u32(ggufArray, ggufBool).u64(2).bytes(1, 2).b, ErrHeader, "a bool of 2"},
		{"string of 2^64-1", kv().str("k").u32(ggufString).u64(math.MaxUint64).data(1, 50), ErrTruncated, "bytes of a string"},
		{"type of elements", kv().str("k").u32(ggufArray, 13).u64(0).b, ErrHeader, "unknown type 13 of an array"},
		{"2^64-1 numbers", kv().str("k").u32(ggufArray, ggufFloat64).u64(math.MaxUint64).data(1, 50), ErrTruncated, "elements of an array"},
		{"2^61+1 numbers, whose bytes overflow", kv().str("k").u32(ggufArray, ggufFloat64).u64(1<<61+1).data(1, 50), ErrTruncated, "elements of an array"},
		{"2^64-1 strings", kv().str("k").u32(ggufArray, ggufString).u64(math.MaxUint64).data(1, 50), ErrTruncated, "elements of an array"},
		{"2^64-1 arrays", kv().str("k").u32(ggufArray, ggufArray).u64(math.MaxUint64).data(1, 50), ErrTruncated, "elements of an array"},
		{"nested too deep", nested(maxGGUFDepth + 1), ErrHeader, "nested more than 8 deep"},
		{"alignment of another type", kv().str(alignmentKey).u32(ggufUint64).u64(32).b, ErrHeader, "uint64"},
		{"alignment 0", kv().str(alignmentKey).u32(ggufUint32, 0).b, ErrHeader, "power of two"},
		{"alignment 48", kv().str(alignmentKey).u32(ggufUint32, 48).b, ErrHeader, "power of two"},
		{"duplicate tensor", ggufStart(3, 2, 0).tensor("t", f32, 0, 8).tensor("t", f32, 32, 8).data(32, 64), ErrHeader, "duplicate tensor name"},
		{"tensor's name too long", one().tensor(strings.Repeat("n", 128), f32, 0, 8).data(32, 32), ErrHeader, "more than 127"},
		{"tensor's name not UTF-8", one().tensor("\xff", f32, 0, 8).data(32, 32), ErrHeader, "not UTF-8"},
		{"tensor's name with a NUL", one().tensor("t\x00u", f32, 0, 8).data(32, 32), ErrHeader, "has a NUL"},
		{"5 dimensions", one().tensor("t", f32, 0, 1, 1, 1, 1, 1).data(32, 32), ErrHeader, "5 dimensions"},
		{"2^32-1 dimensions", one().str("t").u32(math.MaxUint32).data(32, 200), ErrHeader, "dimensions"},
		{"a dimension of 2^63", one().tensor("t", f32, 0, 1<<63).data(32, 32), ErrHeader, "a dimension of"},
		{"2^64 elements", one().tensor("t", f32, 0, 1<<32, 1<<32).data(32, 32), ErrHeader, "overflows"},
		{"2^62 bytes of numbers", one().tensor("t", f32, 0, 1<<60).data(32, 32), ErrHeader, "overflows"},
		{"overflow before zero", one().tensor("t", f32, 0, 0, 1<<62, 1<<62).data(32, 32), ErrHeader, "overflows"},
		{"type removed", one().tensor("t", 4, 0, 32).data(32, 32), ErrHeader, "GGML type 4"},
		{"type removed, repacked", one().tensor("t", 31, 0, 32).data(32, 32), ErrHeader, "GGML type 31"},
		{"type unknown", one().tensor("t", uint32(len(ggmlTypes)), 0, 32).data(32, 32), ErrHeader, "is not known"},
		{"type 2^32-1", one().tensor("t", math.MaxUint32, 0, 32).data(32, 32), ErrHeader, "is not known"},
		{"half a block", one().tensor("t", q40, 0, 16, 2).data(32, 64), ErrHeader, "not whole blocks of 32"},
		{"half a super-block", one().tensor("t", q4K, 0, 128, 2).data(32, 256), ErrHeader, "not whole blocks of 256"},
		{"block of no dimensions", one().tensor("t", q40, 0).data(32, 64), ErrHeader, "not whole blocks of 32"},
		{"offset not aligned", one().tensor("t", f32, 16, 8).data(32, 64), ErrHeader, "multiple of the alignment"},
		{"overlap", ggufStart(3, 2, 0).tensor("t", f32, 0, 9).tensor("u", f32, 32, 8).data(32, 96), ErrHeader, `tensor "u" begins at 32`},
		{"same data twice", ggufStart(3, 2, 0).tensor("t", f32, 0, 8).tensor("u", f32, 0, 8).data(32, 96), ErrHeader, "before the end"},
		{"behind the end", one().tensor("t", f32, 64, 8).data(32, 64), ErrTruncated, "96 bytes of data"},
		{"a byte short", one().tensor("t", f32, 0, 8).data(32, 31), ErrTruncated, "32 bytes of data"},
		{"offset 2^64-32", one().tensor("t", f32, math.MaxUint64-31, 8).data(32, 64), ErrTruncated, "source of"},
		{"offset 2^63", one().tensor("t", f32, 1<<63, 8).data(32, 64), ErrTruncated, "source of"},
		{"no data at all", one().tensor("t", f32, 0, 8).b, ErrTruncated, "source of"},
		{"a byte behind the padding", one().tensor("t", f32, 0, 1).data(32, 33), ErrTrailing, "source of"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readGGUFBytes(c.file, NoTrailing)
			require.ErrorIs(t, err, c.want)
			require.ErrorContains(t, err, c.text)
			require.Less(t, len(err.Error()), 600)
		})
	}
}

func TestGGUFValid(t *testing.T) {
	const f32, q40 = 0, 2
	for _, c := range []struct {
		name       string
		file       []byte
		tensors    int
		data, size int64
	}{
		{"nothing", ggufStart(2, 0, 0).b, 0, 24, 24},
		{"nothing, padded", ggufStart(3, 0, 0).data(32, 0), 0, 24, 32},
		{"scalar", ggufStart(3, 1, 0).tensor("t", f32, 0).data(32, 4), 1, 64, 68},
		{"padding behind the last", ggufStart(3, 1, 0).tensor("t", f32, 0).data(32, 32), 1, 64, 96},
		{"half of the padding", ggufStart(3, 1, 0).tensor("t", f32, 0).data(32, 20), 1, 64, 84},
		{"no elements", ggufStart(3, 1, 0).tensor("t", q40, 0, 0, 5).data(32, 0), 1, 96, 96},
		{"four dimensions", ggufStart(3, 1, 0).tensor("t", q40, 0, 32, 2, 1, 3).data(32, 108), 1, 96, 204},
		{"hole", ggufStart(3, 2, 0).tensor("t", f32, 0, 1).tensor("u", f32, 4096, 1).data(32, 4100), 2, 96, 96 + 4100},
		{"not in the order of the table", ggufStart(3, 2, 0).tensor("t", f32, 32, 1).tensor("u", f32, 0, 8).data(32, 36), 2, 96, 132},
		{"empty between", ggufStart(3, 3, 0).tensor("t", f32, 0, 8).tensor("e", f32, 32, 0).tensor("u", f32, 32, 8).data(32, 64), 3, 128, 192},
		{"alignment 1", ggufStart(3, 1, 1).str(alignmentKey).u32(ggufUint32, 1).tensor("t", f32, 3, 1).data(1, 7), 1, 90, 97},
		{"alignment 4096", ggufStart(3, 1, 1).str(alignmentKey).u32(ggufUint32, 4096).tensor("t", f32, 0, 1).data(4096, 4), 1, 4096, 4100},
		{"arrays of arrays", ggufStart(3, 0, 1).str("k").u32(ggufArray, ggufArray).u64(2).u32(ggufBool).u64(1).bytes(1).u32(ggufArray).u64(0).b, 0, 74, 74},
		{"arrays as deep as may be", nested(maxGGUFDepth), 0, 24 + 8 + 1 + 4 + 8*12, 24 + 8 + 1 + 4 + 8*12},
		{"name of 127 bytes", ggufStart(3, 1, 0).tensor(strings.Repeat("n", 127), f32, 0).data(32, 4), 1, 192, 196},
	} {
		t.Run(c.name, func(t *testing.T) {
			g, err := readGGUFBytes(c.file, NoTrailing)
			require.NoError(t, err)
			checkGGUF(t, g, int64(len(c.file)))
			require.Len(t, g.Tensors, c.tensors)
			require.Equal(t, c.data, g.DataOffset)
			require.Equal(t, c.size, g.Size)

			more := append(bytes.Clone(c.file), make([]byte, 5000)...)
			g, err = readGGUFBytes(more, TrailingBytes)
			require.NoError(t, err)
			checkGGUF(t, g, int64(len(more)))
			_, err = readGGUFBytes(more, NoTrailing)
			require.ErrorIs(t, err, ErrTrailing)
		})
	}
}

// Whatever is cut off, the error is that something is cut off.
func TestGGUFCut(t *testing.T) {
	file, g := ggufFile(t, []TensorInfo{{Name: "t", DType: F32, Shape: []int64{8}}, {Name: "u", DType: Q4_0, Shape: []int64{3, 32}}},
		GGUFPair{"a", []string{"b", "c"}}, GGUFPair{"d", []any{[]int32{1}, []any{[]bool{true}}}}, GGUFPair{"e", 1.5})
	for n := range file[:g.DataOffset+g.Tensors[1].End] {
		_, err := readGGUFBytes(file[:n], NoTrailing)
		if n < 4 {
			require.ErrorIs(t, err, ErrNotShard, "%d bytes", n)
		} else {
			require.ErrorIs(t, err, ErrTruncated, "%d bytes", n)
		}
	}
}

// What the source says is what the caller hears.
func TestGGUFSourceFails(t *testing.T) {
	file, _ := ggufFile(t, nil, GGUFPair{"tokens", randomArray(30000, func() string { return "token" })})
	_, err := ReadGGUF(t.Context(), bytes.NewReader(file[:200_000]), int64(len(file)), NoTrailing)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a source that holds less than it says")
	require.NotErrorIs(t, err, ErrHeader)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCause)
	_, err = ReadGGUF(ctx, bytes.NewReader(file), int64(len(file)), NoTrailing)
	require.ErrorIs(t, err, errCause)
}

func TestGGUFInt(t *testing.T) {
	g, err := NewGGUF(nil, []GGUFPair{{"0", uint8(7)}, {"1", int8(7)}, {"2", uint16(7)}, {"3", int16(7)}, {"4", uint32(7)}, {"5", int32(7)}, {"6", uint64(7)}, {"7", int64(7)}, {"f", 7.0}, {"big", uint64(1 << 63)}})
	require.NoError(t, err)
	for i := range 8 {
		v, ok := g.Int(fmt.Sprint(i))
		require.True(t, ok)
		require.EqualValues(t, 7, v)
	}
	for _, key := range []string{"f", "big", "none"} {
		_, ok := g.Int(key)
		require.False(t, ok, key)
	}
}

func TestNewGGUFRefuses(t *testing.T) {
	ok := TensorInfo{Name: "a", DType: F32, Shape: []int64{1}}
	for _, tensors := range [][]TensorInfo{
		{ok, ok},
		{{Name: "\xff", DType: F32}},
		{{Name: strings.Repeat("a", 128), DType: F32}},
		{{Name: "a"}},
		{{Name: "a", DType: U8, Shape: []int64{1}}},
		{{Name: "a", DType: F8_E4M3, Shape: []int64{1}}},
		{{Name: "a", DType: F32, Shape: []int64{-1}}},
		{{Name: "a", DType: Q4_0, Shape: []int64{32, 3}}},
		{{Name: "a", DType: F64, Shape: []int64{1 << 62}}},
		{{Name: "a", DType: F32, Shape: make([]int64, 5)}},
	} {
		_, err := NewGGUF(tensors, nil)
		require.Error(t, err)
	}
	deep := any([]int32{1})
	for range maxGGUFDepth {
		deep = []any{deep}
	}
	for _, v := range []any{nil, 1, []any{1}, []any{"a"}, []int{1}, complex(1, 1), deep} {
		_, err := NewGGUF(nil, []GGUFPair{{"k", v}})
		require.Error(t, err, "%T", v)
	}
	_, err := NewGGUF(nil, []GGUFPair{{alignmentKey, uint32(3)}})
	require.Error(t, err)
	_, err = NewGGUF(nil, []GGUFPair{{"k", strings.Repeat("a", MaxHeader)}})
	require.ErrorIs(t, err, ErrHeader)

	h, err := NewGGUF([]TensorInfo{ok}, nil)
	require.NoError(t, err)
	for _, data := range []string{"", "abcde"} {
		require.Error(t, WriteGGUF(io.Discard, h, func(*TensorInfo) io.Reader { return strings.NewReader(data) }))
	}
	_, err = h.Header.Append(nil)
	require.NoError(t, err, "a GGUF header that could be one of safetensors")
	h, err = NewGGUF([]TensorInfo{{Name: "q", DType: Q4_0, Shape: []int64{32}}}, nil)
	require.NoError(t, err)
	_, err = h.Header.Append(nil)
	require.Error(t, err, "a type that safetensors has not")
	h, err = NewGGUF([]TensorInfo{ok, {Name: "b", DType: F32}}, nil)
	require.NoError(t, err)
	_, err = h.Header.Append(nil)
	require.Error(t, err, "a hole")
}

// zeroTail is a source of bytes, and zeros behind them.
type zeroTail struct {
	b    []byte
	size int64
}

func (z zeroTail) ReadAt(p []byte, off int64) (int, error) {
	n := int(min(int64(len(p)), z.size-off))
	clear(p[:n])
	if off < int64(len(z.b)) {
		copy(p[:n], z.b[off:])
	}
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

// allocated is how many bytes f allocates in all.
func allocated(f func()) uint64 {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	f()
	runtime.ReadMemStats(&after)
	return after.TotalAlloc - before.TotalAlloc
}

// Counts that the source could hold, but does not, cost nothing: memory is in proportion to what has been read.
func TestGGUFHostileCounts(t *testing.T) {
	const size = 1 << 40
	nest := ggufStart(3, 0, 1).str("k").u32(ggufArray)
	for range maxGGUFDepth - 1 {
		nest.u32(ggufArray).u64((MaxHeader - 1000) / 12)
	}
	for name, b := range map[string][]byte{
		"pairs":   ggufStart(3, 0, (MaxHeader-1000)/14).b,
		"tensors": ggufStart(3, (MaxHeader-1000)/24, 0).b,
		"strings": ggufStart(3, 0, 1).str("k").u32(ggufArray, ggufString).u64((MaxHeader - 1000) / 8).str("a").u64(math.MaxUint64).b,
		"arrays":  nest.u32(13).b,
	} {
		t.Run(name, func(t *testing.T) {
			got := allocated(func() {
				_, err := ReadGGUF(t.Context(), zeroTail{b, size}, size, TrailingBytes)
				require.ErrorIs(t, err, ErrHeader)
			})
			require.Less(t, got, uint64(4<<20))
		})
	}
	_, err := ReadGGUF(t.Context(), zeroTail{ggufStart(3, 0, 1).str("k").u32(ggufString).u64(MaxHeader).b, size}, size, TrailingBytes)
	require.ErrorIs(t, err, ErrHeader)
	require.ErrorContains(t, err, "do not fit in a header")
}

// What is accepted keeps its promises, survives being written, and takes memory in proportion.
func FuzzReadGGUF(f *testing.F) {
	file, err := os.ReadFile("testdata/ggml.gguf")
	require.NoError(f, err)
	f.Add(file[:2112])
	f.Add(ggufStart(2, 2, 0).tensor("t", 0, 64, 4).tensor("u", 12, 0, 256).b)
	f.Add(ggufStart(3, 1, 1).str(alignmentKey).u32(ggufUint32, 1).tensor("t", 39, 3, 32, 2, 1, 0).b)
	f.Add(ggufStart(3, 0, 2).str("k").u32(ggufArray, ggufArray).u64(2).u32(ggufBool).u64(1).bytes(1).u32(ggufArray).u64(0).str("l").u32(ggufString).str("x").b)
	f.Add(ggufStart(3, 0, 1).str("k").u32(ggufArray, ggufString).u64(1 << 40).b)
	f.Fuzz(func(t *testing.T, b []byte) {
		size := int64(len(b)) + 32<<10
		var g *GGUF
		var err error
		used := allocated(func() { g, err = ReadGGUF(t.Context(), zeroTail{b, size}, size, TrailingBytes) })
		require.Less(t, used, uint64(40*size))
		if err != nil {
			require.True(t, isShardError(err), "%v", err)
			require.Less(t, len(err.Error()), 1000)
			return
		}
		checkGGUF(t, g, size)
		text, err := g.Append(nil)
		require.NoError(t, err)
		size = int64(len(text)) + g.Size - g.DataOffset
		again, err := ReadGGUF(t.Context(), zeroTail{text, size}, size, TrailingBytes)
		require.NoError(t, err)
		require.Equal(t, g.Tensors, again.Tensors)
		textAgain, err := again.Append(nil)
		require.NoError(t, err)
		require.True(t, bytes.Equal(text, textAgain)) // values, too: they may be NaNs, which are not equal
	})
}

// A header like that of a model with a large vocabulary.
func BenchmarkReadGGUF(b *testing.B) {
	word := func() string { return "▁token" }
	file, _ := ggufFile(b, nil, GGUFPair{"tokenizer.ggml.tokens", randomArray(150_000, word)}, GGUFPair{"tokenizer.ggml.merges", randomArray(280_000, word)},
		GGUFPair{"tokenizer.ggml.token_type", make([]int32, 150_000)}, GGUFPair{"tokenizer.ggml.scores", make([]float32, 150_000)})
	b.SetBytes(int64(len(file)))
	b.ReportAllocs()
	for b.Loop() {
		if _, err := readGGUFBytes(file, NoTrailing); err != nil {
			b.Fatal(err)
		}
	}
}
