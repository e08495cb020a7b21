package staging

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// file puts the length before a header and data behind it.
func file(header string, data int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	b = append(b, header...)
	return append(b, make([]byte, data)...)
}

func readBytes(b []byte, trailing Trailing) (*Header, error) {
	return ReadHeader(context.Background(), bytes.NewReader(b), int64(len(b)), trailing)
}

func TestHeaderValid(t *testing.T) {
	nested := strings.Repeat("[", 100) + strings.Repeat("]", 100)
	for _, c := range []struct {
		name, header string
		data         int
		tensors      int
	}{
		{"empty", `{}`, 0, 0},
		{"one", `{"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}`, 16, 1},
		{"scalar", `{"test":{"dtype":"I32","shape":[],"data_offsets":[0,4]}}`, 4, 1},
		{"no elements", `{"test":{"dtype":"I32","shape":[2,0],"data_offsets":[0, 0]}}`, 0, 1},
		{"trailing white space", "{}\r \t\n", 0, 0},
		{"inner white space", "{ \"a\" : { \"dtype\" : \"U8\" , \"shape\" : [ 1 ] , \"data_offsets\" : [ 0 , 1 ] } }  ", 1, 1},
		{"not sorted", `{"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},"a":{"dtype":"F16","shape":[1],"data_offsets":[0,2]}}`, 3, 2},
		{"empty between", `{"b":{"dtype":"U8","shape":[1],"data_offsets":[1,2]},"e":{"dtype":"U8","shape":[0],"data_offsets":[1,1]},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 2, 3},
		{"metadata", `{"__metadata__":{"format":"pt","":""},"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, 1},
		{"F4", `{"a":{"dtype":"F4","shape":[1,2],"data_offsets":[0,1]}}`, 1, 1},
		{"F6", `{"a":{"dtype":"F6_E2M3","shape":[4],"data_offsets":[0,3]},"b":{"dtype":"F6_E3M2","shape":[8],"data_offsets":[3,9]}}`, 9, 2},
		{"unknown keys", `{"a":{"x":{"y":[1,-2.5e+3,true,false,null,"z"]},"dtype":"U8","shape":[1],"data_offsets":[0,1],"n":` + nested + `}}`, 1, 1},
		{"escapes", `{"\u0061\n\ud83d\ude00\"\\\/":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, 1},
		{"escaped keys", `{"a":{"d\u0074ype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			b := file(c.header, c.data)
			h, err := readBytes(b, NoTrailing)
			require.NoError(t, err)
			require.Len(t, h.Tensors, c.tensors)
			require.EqualValues(t, len(b), h.Size)
			require.EqualValues(t, 8+len(c.header), h.DataOffset)
			checkHeader(t, h)
		})
	}
}

// checkHeader checks what a valid header promises.
func checkHeader(t testing.TB, h *Header) {
	end := int64(0)
	for i := range h.Tensors {
		x := &h.Tensors[i]
		require.Same(t, x, h.Tensor(x.Name))
		require.Equal(t, end, x.Begin)
		require.GreaterOrEqual(t, x.End, x.Begin)
		n := int64(x.DType.Bits())
		require.NotZero(t, n)
		for _, d := range x.Shape {
			n *= d
		}
		require.Equal(t, n, x.Bytes()*8)
		end = x.End
	}
	require.Equal(t, h.DataOffset+end, h.Size)
	require.Nil(t, h.Tensor("no such tensor"))
}

func TestHeaderInvalid(t *testing.T) {
	u8 := `{"dtype":"U8","shape":[1],"data_offsets":[0,1]}`
	for _, c := range []struct {
		name, header string
		data         int
		err          string
	}{
		{"not closed", `{ `, 0, "the JSON ends"},
		{"not UTF-8", "{\"\xff\":" + u8 + "}", 1, "UTF-8"},
		{"text after the end", `{}{}`, 0, "after the end"},
		{"NUL padding", "{}\x00\x00", 0, "after the end"},
		{"form feed padding", "{}\f", 0, "after the end"},
		{"comma at the end", `{"a":` + u8 + `,}`, 1, "a string is due"},
		{"no comma", `{"a":` + u8 + `"b":` + u8 + `}`, 1, "',' or '}'"},
		{"duplicate name", `{"a":` + u8 + `,"a":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1, "duplicate tensor name"},
		{"duplicate name, escaped", `{"a":` + u8 + `,"\u0061":{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}`, 1, "duplicate tensor name"},
		{"duplicate metadata", `{"__metadata__":{},"__metadata__":{}}`, 0, "duplicate key __metadata__"},
		{"duplicate metadata key", `{"__metadata__":{"a":"","a":""}}`, 0, "duplicate key"},
		{"metadata value", `{"__metadata__":{"a":1}}`, 0, "a string is due"},
		{"metadata null", `{"__metadata__":null}`, 0, "'{' is due"},
		{"duplicate dtype", `{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, "duplicate key"},
		{"duplicate shape", `{"a":{"dtype":"U8","shape":[1],"shape":[1],"data_offsets":[0,1]}}`, 1, "duplicate key"},
		{"duplicate offsets", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1],"data_offsets":[0,1]}}`, 1, "duplicate key"},
		{"duplicate unknown key", `{"a":{"x":1,"x":1,"dtype":"U8","shape":[1],"data_offsets":[0,1]}}`, 1, "duplicate key"},
		{"no dtype", `{"a":{"shape":[1],"data_offsets":[0,1]}}`, 1, "missing"},
		{"no shape", `{"a":{"dtype":"U8","data_offsets":[0,1]}}`, 1, "missing"},
		{"no offsets", `{"a":{"dtype":"U8","shape":[1]}}`, 1, "missing"},
		{"dtype of GGUF", `{"a":{"dtype":"Q4_0","shape":[32],"data_offsets":[0,18]}}`, 18, "not a dtype of safetensors"},
		{"unknown dtype", `{"a":{"dtype":"u8","shape":[1],"data_offsets":[0,1]}}`, 1, "unknown dtype"},
		{"empty dtype", `{"a":{"dtype":"","shape":[1],"data_offsets":[0,1]}}`, 1, "unknown dtype"},
		{"tensor is null", `{"a":null}`, 0, "'{' is due"},
		{"one offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0]}}`, 1, "not two"},
		{"three offsets", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1,1]}}`, 1, "more than two"},
		{"negative offset", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[-1,0]}}`, 1, "not negative"},
		{"negative dimension", `{"a":{"dtype":"U8","shape":[-1],"data_offsets":[0,1]}}`, 1, "not negative"},
		{"minus zero", `{"a":{"dtype":"U8","shape":[-0],"data_offsets":[0,0]}}`, 0, "not negative"},
		{"fraction", `{"a":{"dtype":"U8","shape":[1.0],"data_offsets":[0,1]}}`, 1, "whole"},
		{"exponent", `{"a":{"dtype":"U8","shape":[1e0],"data_offsets":[0,1]}}`, 1, "whole"},
		{"leading zero", `{"a":{"dtype":"U8","shape":[01],"data_offsets":[0,1]}}`, 1, "begins with 0"},
		{"number too large", `{"a":{"dtype":"U8","shape":[9223372036854775808],"data_offsets":[0,1]}}`, 1, "too large"},
		{"number far too large", `{"a":{"dtype":"U8","shape":[` + strings.Repeat("9", 1000) + `],"data_offsets":[0,1]}}`, 1, "too large"},
		{"number as a string", `{"a":{"dtype":"U8","shape":["1"],"data_offsets":[0,1]}}`, 1, "whole"},
		{"end before start", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,0]}}`, 1, "end before they begin"},
		{"first not at 0", `{"a":{"dtype":"U8","shape":[1],"data_offsets":[1,2]}}`, 2, "hole or overlap"},
		{"hole", `{"a":` + u8 + `,"b":{"dtype":"U8","shape":[1],"data_offsets":[2,3]}}`, 3, "hole or overlap"},
		{"overlap", `{"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]},"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]}}`, 3, "hole or overlap"},
		{"same data twice", `{"a":` + u8 + `,"b":` + u8 + `}`, 1, "hole or overlap"},
		{"size", `{"a":{"dtype":"I32","shape":[2,2],"data_offsets":[0,4]}}`, 4, "is 16 bytes"},
		{"half a byte", `{"a":{"dtype":"F4","shape":[1,3],"data_offsets":[0,1]}}`, 1, "whole number of bytes"},
		{"F6 bits", `{"a":{"dtype":"F6_E2M3","shape":[1],"data_offsets":[0,1]}}`, 1, "whole number of bytes"},
		{"shape overflows", `{"a":{"dtype":"I32","shape":[4,9223372036854775807],"data_offsets":[0,16]}}`, 16, "overflows"},
		{"shape × dtype overflows", `{"a":{"dtype":"I32","shape":[1,9223372036854775807],"data_offsets":[0,16]}}`, 16, "overflows"},
		{"overflow before zero", `{"a":{"dtype":"U8","shape":[9223372036854775807,9223372036854775807,0],"data_offsets":[0,0]}}`, 0, "overflows"},
		{"rank", `{"a":{"dtype":"U8","shape":[` + strings.Repeat("1,", 64) + `1],"data_offsets":[0,1]}}`, 1, "dimensions"},
		{"deep", `{"a":{"x":` + strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + `}}`, 0, "deep"},
		{"control character", "{\"a\n\":" + u8 + "}", 1, "control character"},
		{"control character after an escape", "{\"\\n\n\":" + u8 + "}", 1, "control character"},
		{"unknown escape", `{"\x":` + u8 + `}`, 1, "unknown escape"},
		{"half a surrogate pair", `{"\ud83d":` + u8 + `}`, 1, "surrogate"},
		{"low surrogate alone", `{"\ude00":` + u8 + `}`, 1, "surrogate"},
		{"two high surrogates", `{"\ud83d\ud83d":` + u8 + `}`, 1, "surrogate"},
		{"bad hex", `{"\u00g0":` + u8 + `}`, 1, "hexadecimal"},
		{"string does not end", `{"a`, 0, "does not end"},
		{"escape does not end", `{"\u00`, 0, "does not end"},
		{"bad literal", `{"a":{"x":nul}}`, 0, "a value is due"},
		{"bad number", `{"a":{"x":-}}`, 0, "bad number"},
		{"bad fraction", `{"a":{"x":1.}}`, 0, "bad number"},
		{"bad exponent", `{"a":{"x":1e+}}`, 0, "bad number"},
		{"leading zero in an unknown key", `{"a":{"x":00}}`, 0, "bad number"},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readBytes(file(c.header, c.data), NoTrailing)
			require.ErrorIs(t, err, ErrHeader)
			require.ErrorContains(t, err, c.err)
			require.Less(t, len(err.Error()), 600)
		})
	}
}

func TestReadHeaderBounds(t *testing.T) {
	one := `{"test":{"dtype":"I32","shape":[2,2],"data_offsets":[0,16]}}`
	good := file(one, 16)
	for _, c := range []struct {
		name string
		file []byte
		want error
	}{
		{"nothing", nil, ErrNotShard},
		{"7 bytes", good[:7], ErrNotShard},
		{"only the length", good[:8], ErrNotShard},
		{"length 0", file("", 16), ErrNotShard},
		{"length 1", file("{", 16), ErrNotShard},
		{"length above the limit", append(binary.LittleEndian.AppendUint64(nil, MaxHeader+1), good[8:]...), ErrNotShard},
		{"length 2^64-1", append(bytes.Repeat([]byte{0xff}, 8), good[8:]...), ErrNotShard},
		{"length 2^63", append([]byte{0, 0, 0, 0, 0, 0, 0, 0x80}, good[8:]...), ErrNotShard},
		{"leading white space", file(" {}", 0), ErrNotShard},
		{"an array", file("[]", 0), ErrNotShard},
		{"cut in the header", good[:40], ErrTruncated},
		{"cut in the data", good[:len(good)-1], ErrTruncated},
		{"a byte more", append(bytes.Clone(good), 0), ErrTrailing},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, err := readBytes(c.file, NoTrailing)
			require.ErrorIs(t, err, c.want)
			if c.want == ErrTrailing {
				_, err = readBytes(c.file, TrailingBytes)
				require.NoError(t, err)
			} else {
				_, err = readBytes(c.file, TrailingBytes)
				require.ErrorIs(t, err, c.want)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := ReadHeader(ctx, bytes.NewReader(good), int64(len(good)), NoTrailing)
	require.ErrorIs(t, err, context.Canceled)
	_, err = ReadHeader(t.Context(), bytes.NewReader(good[:20]), int64(len(good)), NoTrailing)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF, "a source that holds less than it says")
}

// A header larger than the first read, and a random one, survive being written and read.
func TestHeaderRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7))
	for _, n := range []int{0, 1, 5, 3000} {
		tensors := make([]TensorInfo, n)
		for i := range tensors {
			tensors[i] = TensorInfo{Name: fmt.Sprintf("model.\"layers\".%d.\\wéight\n<&>😀", i), DType: BOOL + DType(r.IntN(int(U64))), Shape: make([]int64, r.IntN(4))}
			for k := range tensors[i].Shape {
				tensors[i].Shape[k] = int64(r.IntN(5))
			}
			tensors[i].Shape = append(tensors[i].Shape, 8)
		}
		for _, meta := range []map[string]string{nil, {}, {"format": "pt", "a": "\x01\"\\"}} {
			h, err := NewHeader(tensors, meta)
			require.NoError(t, err)
			checkHeader(t, h)
			var b bytes.Buffer
			require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader { return bytes.NewReader(make([]byte, x.Bytes())) }))
			require.Zero(t, h.DataOffset%8)
			require.EqualValues(t, b.Len(), h.Size)
			got, err := readBytes(b.Bytes(), NoTrailing)
			require.NoError(t, err)
			require.Equal(t, h.Metadata, got.Metadata)
			require.Len(t, got.Tensors, n)
			for i := range got.Tensors {
				require.Equal(t, h.Tensors[i], got.Tensors[i])
			}
		}
	}
}

func TestNewHeaderRefuses(t *testing.T) {
	ok := TensorInfo{Name: "a", DType: U8, Shape: []int64{1}}
	for _, tensors := range [][]TensorInfo{
		{ok, ok},
		{{Name: "__metadata__", DType: U8}},
		{{Name: "\xff", DType: U8}},
		{{Name: "a"}},
		{{Name: "a", DType: 200}},
		{{Name: "a", DType: U8, Shape: []int64{-1}}},
		{{Name: "a", DType: F4, Shape: []int64{3}}},
		{{Name: "a", DType: Q4_0, Shape: []int64{32}}},
		{{Name: "a", DType: U64, Shape: []int64{1 << 62}}},
		{{Name: "a", DType: U8, Shape: make([]int64, 65)}},
	} {
		_, err := NewHeader(tensors, nil)
		require.Error(t, err)
	}
	_, err := NewHeader(nil, map[string]string{"a": "\xff"})
	require.Error(t, err)
	_, err = NewHeader(nil, map[string]string{"a": strings.Repeat("a", MaxHeader)})
	require.ErrorContains(t, err, "more than")

	h, err := NewHeader([]TensorInfo{ok}, nil)
	require.NoError(t, err)
	for _, data := range []string{"", "ab"} {
		require.Error(t, WriteShard(io.Discard, h, func(*TensorInfo) io.Reader { return strings.NewReader(data) }))
	}
}

func TestDTypes(t *testing.T) {
	for d := BOOL; d <= NVFP4; d++ {
		got, err := ParseDType(d.String())
		require.NoError(t, err)
		require.Equal(t, d, got)
		elements, bytes := d.Block()
		require.NotZero(t, elements)
		require.NotZero(t, bytes)
		if d <= U64 {
			require.Equal(t, bytes*8, elements*d.Bits())
		} else {
			require.Zero(t, d.Bits())
			require.GreaterOrEqual(t, d.ggml(), 0, "neither safetensors nor GGUF has %v", d)
		}
	}
	require.Len(t, dtypes, int(NVFP4)+1)
	require.Equal(t, "DType(0)", DType(0).String())
	for _, d := range []DType{0, 99} {
		require.Zero(t, d.Bits())
		elements, bytes := d.Block()
		require.Zero(t, elements+bytes)
		require.Negative(t, d.ggml())
	}
}

const realShard = "../../shared/data/silero_vad_16k.safetensors"

func TestRealHeader(t *testing.T) {
	f, err := os.Open(realShard)
	if err != nil {
		t.Skipf("no real model here: %v", err)
	}
	defer f.Close()
	st, err := f.Stat()
	require.NoError(t, err)
	h, err := ReadHeader(t.Context(), f, st.Size(), NoTrailing)
	require.NoError(t, err)
	checkHeader(t, h)
	require.Len(t, h.Tensors, 15)
	for _, x := range h.Tensors {
		require.Equal(t, F32, x.DType)
	}
	require.Equal(t, []int64{258, 1, 256}, h.Tensor("stft_conv.weight").Shape)
}

// What is accepted is JSON, means the same to encoding/json, keeps its promises, survives being written, and takes memory in proportion.
func FuzzParseHeader(f *testing.F) {
	f.Add([]byte(`{}`))
	f.Add([]byte(`{"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[2,1],"data_offsets":[0,4]},"b":{"dtype":"F4","shape":[2],"data_offsets":[4,5]}}  `))
	f.Add([]byte(`{"\ud83d\ude00":{"x":[{"y":-1.5e3}],"dtype":"U8","shape":[],"data_offsets":[0,1]}}`))
	f.Add([]byte(`{"a":{"dtype":"I32","shape":[4,9223372036854775807],"data_offsets":[0,16]}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		var h *Header
		var err error
		used := allocated(func() { h, err = ParseHeader(text) })
		require.Less(t, used, uint64(64*len(text)+8<<10))
		if err != nil {
			require.ErrorIs(t, err, ErrHeader)
			return
		}
		checkHeader(t, h)
		var m map[string]json.RawMessage
		require.NoError(t, json.Unmarshal(text, &m))
		if h.Metadata != nil {
			delete(m, "__metadata__")
		}
		require.Len(t, m, len(h.Tensors))
		for name, raw := range m {
			var fields map[string]json.RawMessage // not a struct: encoding/json would match other cases of the names too
			require.NoError(t, json.Unmarshal(raw, &fields))
			var shape []int64
			var offsets [2]int64
			require.NoError(t, json.Unmarshal(fields["shape"], &shape))
			require.NoError(t, json.Unmarshal(fields["data_offsets"], &offsets))
			x := h.Tensor(name)
			require.NotNil(t, x)
			require.Equal(t, offsets, [2]int64{x.Begin, x.End})
			require.Equal(t, append([]int64{}, shape...), append([]int64{}, x.Shape...))
		}
		again, err := h.Append(nil)
		require.NoError(t, err)
		h2, err := ParseHeader(again[8:])
		require.NoError(t, err)
		require.Equal(t, h.Tensors, h2.Tensors)
		require.Equal(t, h.Metadata, h2.Metadata)
	})
}
