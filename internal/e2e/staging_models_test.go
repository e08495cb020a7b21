package e2e

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging"
)

// model is a model as files, and what a reader that shares nothing with package staging finds in them.
type model struct {
	name    string
	format  staging.Format
	files   []modelFile
	index   []byte   // its model.safetensors.index.json, if it has one
	tensors []wanted // file by file, in the order of their data
}

type modelFile struct {
	name  string
	bytes []byte
}

// wanted is a tensor as it should be loaded.
type wanted struct {
	name, dtype string
	shape       []int64
	file        int
	begin       int64 // in the file
	data        []byte
}

// elementType is a type by the tables of the formats: so many elements take so many bytes.
type elementType struct {
	name            string
	ggml            uint32
	elements, bytes int64
}

// safetensorsTypes is Dtype of safetensors.
var safetensorsTypes = []elementType{
	{"BOOL", 0, 1, 1},
	{"F4", 0, 2, 1},
	{"F6_E2M3", 0, 4, 3},
	{"F6_E3M2", 0, 4, 3},
	{"U8", 0, 1, 1},
	{"I8", 0, 1, 1},
	{"F8_E5M2", 0, 1, 1},
	{"F8_E4M3", 0, 1, 1},
	{"F8_E8M0", 0, 1, 1},
	{"F8_E4M3FNUZ", 0, 1, 1},
	{"F8_E5M2FNUZ", 0, 1, 1},
	{"I16", 0, 1, 2},
	{"U16", 0, 1, 2},
	{"F16", 0, 1, 2},
	{"BF16", 0, 1, 2},
	{"I32", 0, 1, 4},
	{"U32", 0, 1, 4},
	{"F32", 0, 1, 4},
	{"C64", 0, 1, 8},
	{"F64", 0, 1, 8},
	{"I64", 0, 1, 8},
	{"U64", 0, 1, 8},
}

// ggmlTypes is ggml_type of GGML.
var ggmlTypes = []elementType{
	{"F32", 0, 1, 4},
	{"F16", 1, 1, 2},
	{"Q4_0", 2, 32, 18},
	{"Q4_1", 3, 32, 20},
	{"Q5_0", 6, 32, 22},
	{"Q5_1", 7, 32, 24},
	{"Q8_0", 8, 32, 34},
	{"Q8_1", 9, 32, 36},
	{"Q2_K", 10, 256, 84},
	{"Q3_K", 11, 256, 110},
	{"Q4_K", 12, 256, 144},
	{"Q5_K", 13, 256, 176},
	{"Q6_K", 14, 256, 210},
	{"Q8_K", 15, 256, 292},
	{"IQ2_XXS", 16, 256, 66},
	{"IQ2_XS", 17, 256, 74},
	{"IQ3_XXS", 18, 256, 98},
	{"IQ1_S", 19, 256, 50},
	{"IQ4_NL", 20, 32, 18},
	{"IQ3_S", 21, 256, 110},
	{"IQ2_S", 22, 256, 82},
	{"IQ4_XS", 23, 256, 136},
	{"I8", 24, 1, 1},
	{"I16", 25, 1, 2},
	{"I32", 26, 1, 4},
	{"I64", 27, 1, 8},
	{"F64", 28, 1, 8},
	{"IQ1_M", 29, 256, 56},
	{"BF16", 30, 1, 2},
	{"TQ1_0", 34, 256, 54},
	{"TQ2_0", 35, 256, 66},
	{"MXFP4", 39, 32, 17},
	{"NVFP4", 40, 64, 36},
	{"Q1_0", 41, 128, 18},
	{"Q2_0", 42, 64, 18},
}

// stagingModels are all models of the table. Their wide matrices have so many rows.
func stagingModels(t *testing.T, rows int64) []*model {
	r := rand.New(rand.NewPCG(uint64(rows), 8))
	plain := makeTensors(r, safetensorsTypes, rows, "model.embed_tokens.weight", "model.layers.%d.mlp.%s_%s.weight", "model.norm.weight", "lm_head.weight")
	quantized := makeTensors(r, ggmlTypes, rows, "token_embd.weight", "blk.%d.ffn_%s_%s.weight", "output_norm.weight", "output.weight")
	models := []*model{
		safetensorsModel(t, "safetensors", [][]wanted{plain}),
		ggufModel("gguf", [][]wanted{quantized}),
		safetensorsModel(t, "safetensors index", deal(plain, 3)),
		ggufModel("split gguf", deal(quantized, 3)),
	}
	const silero = "../../../shared/data/silero_vad_16k.safetensors"
	b, err := os.ReadFile(silero)
	if err != nil {
		t.Logf("NOT TESTED with a real model: %v", err)
		return models
	}
	return append(models, &model{
		name: "silero", format: staging.FormatSafetensors,
		files: []modelFile{{"silero", b}}, tensors: readSafetensors(t, b, 0),
	})
}

// makeTensors makes tensors of every type: matrices whose rows are far wider than what is worth reading through, and such with narrow rows, tensors
// of three dimensions, vectors, scalars, and some without bytes. Their order is not that of the layers, and nothing is aligned.
func makeTensors(r *rand.Rand, types []elementType, rows int64, embed, inLayer, norm, head string) []wanted {
	var list []wanted
	add := func(name string, e elementType, shape ...int64) {
		n := e.bytes
		for _, d := range shape {
			n *= d
		}
		list = append(list, wanted{name: name, dtype: e.name, shape: shape, data: someData(r, int(n/e.elements))})
	}
	for _, e := range types {
		in := func(part string) string { return fmt.Sprintf(inLayer, r.IntN(4), part, e.name) }
		k := e.elements
		add(in("wide"), e, rows, k*(40_000/e.bytes|1))
		add(in("narrow"), e, 100+r.Int64N(50), k*(1+r.Int64N(20)))
		add(in("deep"), e, 3, 5, k*(1+r.Int64N(40)))
		add(in("vector"), e, k*(1+r.Int64N(700)))
		if k == 1 {
			add(in("scalar"), e)
		}
		if e.ggml == 0 && e.name != "F32" {
			add(in("empty"), e, 0, 7)
		}
	}
	f32 := elementType{"F32", 0, 1, 4}
	add(embed, f32, 90, 33)
	add(norm, f32, 33)
	add(head, f32, 91, 33)
	r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
	return list
}

// someData is n bytes, of which some compress and no two places are alike.
func someData(r *rand.Rand, n int) []byte {
	b := fill(r, make([]byte, n+8))[:n]
	for i := range b {
		if i/1000%3 == 0 {
			b[i] &= 3
		}
	}
	return b
}

// deal deals tensors out to n files, in order.
func deal(tensors []wanted, n int) [][]wanted {
	out := make([][]wanted, n)
	for i, w := range tensors {
		out[i*n/len(tensors)] = append(out[i*n/len(tensors)], w)
	}
	return out
}

func safetensorsModel(t *testing.T, name string, files [][]wanted) *model {
	m := &model{name: name, format: staging.FormatSafetensors}
	where, total := map[string]string{}, 0
	for i, tensors := range files {
		file := fmt.Sprintf("model-%05d-of-%05d.safetensors", i+1, len(files))
		b := writeSafetensors(t, tensors, map[string]string{"format": "pt"}, 1)
		m.files = append(m.files, modelFile{file, b})
		m.tensors = append(m.tensors, readSafetensors(t, b, i)...)
		for _, w := range tensors {
			where[w.name] = file
			total += len(w.data)
		}
	}
	if len(files) > 1 {
		var err error
		m.index, err = json.Marshal(map[string]any{"metadata": map[string]any{"total_size": total}, "weight_map": where})
		require.NoError(t, err)
	}
	return m
}

// writeSafetensors is a shard of these tensors, one behind the other, whose data begins at a multiple of align.
func writeSafetensors(t *testing.T, tensors []wanted, metadata map[string]string, align int) []byte {
	encode := func(v any) string {
		b, err := json.Marshal(v)
		require.NoError(t, err)
		return string(b)
	}
	entries := []string{`"__metadata__":` + encode(metadata)}
	at := 0
	var data []byte
	for _, w := range tensors {
		shape := append([]int64{}, w.shape...) // not null
		entries = append(entries, fmt.Sprintf(`%s:{"dtype":"%s","shape":%s,"data_offsets":[%d,%d]}`, encode(w.name), w.dtype, encode(shape), at, at+len(w.data)))
		at += len(w.data)
		data = append(data, w.data...)
	}
	text := "{" + strings.Join(entries, ",") + "}"
	text += strings.Repeat(" ", (align-(8+len(text))%align)%align)
	return slices.Concat(binary.LittleEndian.AppendUint64(nil, uint64(len(text))), []byte(text), data)
}

// readSafetensors finds the tensors of a shard as the format's description has it.
func readSafetensors(t *testing.T, file []byte, number int) []wanted {
	n := binary.LittleEndian.Uint64(file)
	var entries map[string]json.RawMessage
	require.NoError(t, json.Unmarshal(file[8:8+n], &entries))
	delete(entries, "__metadata__")
	var list []wanted
	for name, text := range entries {
		var e struct {
			DType   string    `json:"dtype"`
			Shape   []int64   `json:"shape"`
			Offsets [2]uint64 `json:"data_offsets"`
		}
		require.NoError(t, json.Unmarshal(text, &e))
		begin, end := 8+n+e.Offsets[0], 8+n+e.Offsets[1]
		list = append(list, wanted{name: name, dtype: e.DType, shape: e.Shape, file: number, begin: int64(begin), data: file[begin:end]})
	}
	slices.SortFunc(list, func(a, b wanted) int { return cmp.Compare(a.begin, b.begin) })
	return list
}

func ggufModel(name string, files [][]wanted) *model {
	m := &model{name: name, format: staging.FormatGGUF}
	total := 0
	for _, tensors := range files {
		total += len(tensors)
	}
	for i, tensors := range files {
		b, list := writeGGUF(tensors, i, len(files), total)
		m.files = append(m.files, modelFile{fmt.Sprintf("model-%05d-of-%05d.gguf", i+1, len(files)), b})
		m.tensors = append(m.tensors, list...)
	}
	return m
}

// writeGGUF is part number i, counted from 0, of a model in so many parts, which have total tensors. It returns also the tensors with their places.
func writeGGUF(tensors []wanted, i, parts, total int) ([]byte, []wanted) {
	const alignment, typeUint16, typeUint32, typeInt32, typeString = 64, 2, 4, 5, 8
	le := binary.LittleEndian
	str := func(b []byte, s string) []byte { return append(le.AppendUint64(b, uint64(len(s))), s...) }
	pad := func(b []byte) []byte { return append(b, make([]byte, (alignment-len(b)%alignment)%alignment)...) }

	pairs := [][]byte{
		str(le.AppendUint32(str(nil, "general.architecture"), typeString), "llama"),
		le.AppendUint32(le.AppendUint32(str(nil, "general.alignment"), typeUint32), alignment),
	}
	if parts > 1 {
		pairs = append(pairs,
			le.AppendUint16(le.AppendUint32(str(nil, "split.no"), typeUint16), uint16(i)),
			le.AppendUint16(le.AppendUint32(str(nil, "split.count"), typeUint16), uint16(parts)),
			le.AppendUint32(le.AppendUint32(str(nil, "split.tensors.count"), typeInt32), uint32(total)))
	}
	b := le.AppendUint32([]byte("GGUF"), 3)
	b = le.AppendUint64(b, uint64(len(tensors)))
	b = le.AppendUint64(b, uint64(len(pairs)))
	b = append(b, bytes.Join(pairs, nil)...)
	var data []byte
	list := slices.Clone(tensors)
	for k := range list {
		w := &list[k]
		w.file, w.begin = i, int64(len(data))
		b = le.AppendUint32(str(b, w.name), uint32(len(w.shape)))
		for _, d := range slices.Backward(w.shape) {
			b = le.AppendUint64(b, uint64(d))
		}
		e := slices.IndexFunc(ggmlTypes, func(e elementType) bool { return e.name == w.dtype })
		b = le.AppendUint64(le.AppendUint32(b, ggmlTypes[e].ggml), uint64(len(data)))
		data = pad(append(data, w.data...))
	}
	b = pad(b)
	for k := range list {
		list[k].begin += int64(len(b))
	}
	return append(b, data...), list
}

// open opens the model on sources of its files.
func (m *model) open(t *testing.T, compressed bool, srcs []staging.Source) *staging.Model {
	var opened *staging.Model
	var err error
	if m.index == nil {
		opened, err = staging.OpenModel(t.Context(), srcs...)
	} else {
		var x *staging.Index
		x, err = staging.ParseIndex(m.index)
		require.NoError(t, err)
		opened, err = staging.OpenIndexed(t.Context(), x, func(file string) (staging.Source, error) {
			return srcs[slices.IndexFunc(m.files, func(f modelFile) bool { return f.name == file })], nil
		})
	}
	require.NoError(t, err)
	require.Len(t, opened.Shards, len(m.files))
	for _, s := range opened.Shards {
		require.Equal(t, m.format, s.Format)
		require.Equal(t, compressed, s.LZ4 != nil)
	}
	return opened
}

var numbered = regexp.MustCompile(`\.(\d+)\.`)

// layer is where in a forward pass the tensor is needed.
func (w *wanted) layer() int {
	if n := numbered.FindStringSubmatch(w.name); n != nil {
		i, _ := strconv.Atoi(n[1])
		return i
	}
	for part, at := range map[string]int{"embed_tokens.": -1, "token_embd.": -1, "norm.": 1000, "lm_head.": 1001} {
		if strings.Contains(w.name, part) {
			return at
		}
	}
	if w.name == "output.weight" {
		return 1001
	}
	return 0
}

// lz4Frame is content as the lz4 program compresses it by default: blocks of 4 MiB that are independent, a checksum of the content, and not its size.
func lz4Frame(t *testing.T, content []byte) []byte {
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	require.NoError(t, w.Apply(lz4.BlockSizeOption(lz4.Block4Mb), lz4.ChecksumOption(true), lz4.BlockChecksumOption(false)))
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// The models have every type that package staging knows, and no other.
func TestStagingModelsHaveEveryDType(t *testing.T) {
	var known []string
	for d := staging.BOOL; ; d++ {
		if n, _ := d.Block(); n == 0 {
			break
		}
		known = append(known, d.String())
	}
	have := map[string]bool{}
	for _, m := range stagingModels(t, 2) {
		if m.name != "silero" {
			for _, w := range m.tensors {
				have[w.dtype] = true
			}
		}
	}
	require.ElementsMatch(t, known, slices.Collect(maps.Keys(have)))
}
