package main

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash/crc32"
	"io"
	"iter"
	"slices"
	"strings"
	"sync"

	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

const (
	minModel       = 1 << 20
	maxModel       = 1 << 42
	maxModelShards = 64
	// modelBlock is what shards are padded to on a namespace, in bytes.
	modelBlock = 4096
)

// modelFlags say what model to make up.
type modelFlags struct {
	size   byteSize
	shards int
	format modelFormat
}

func (f *modelFlags) add(fs *pflag.FlagSet) {
	f.size = 512 << 20
	fs.Var(&f.size, "size", "size of the made-up model")
	fs.IntVar(&f.shards, "shards", 4, "`N` shards of the made-up model")
	fs.Var(&f.format, "format", "format of the made-up model: safetensors or gguf")
}

// modelFormat is the flag --format. The zero value is safetensors.
type modelFormat staging.Format

func (f *modelFormat) Type() string { return "NAME" }

func (f *modelFormat) String() string {
	if *f == "" {
		return string(staging.FormatSafetensors)
	}
	return string(*f)
}

func (f *modelFormat) Set(s string) error {
	if s != string(staging.FormatSafetensors) && s != string(staging.FormatGGUF) {
		return fmt.Errorf("want %s or %s", staging.FormatSafetensors, staging.FormatGGUF)
	}
	*f = modelFormat(s)
	return nil
}

// model is a made-up model: tensors named, shaped and spread over shards as those of a Llama are. Their
// bytes are computed from where they are whenever they are read, so a model takes no memory and may be of any size.
type model struct {
	shards []*modelShard
}

// newModel makes a model of about size bytes: as wide as it can be with eight layers or more in three
// quarters of the bytes, and with a vocabulary that takes the rest.
func newModel(f modelFlags) (*model, error) {
	size := int64(f.size)
	if size < minModel || size > maxModel {
		return nil, usagef("--size %d: want 1M to 4T", size)
	}
	if f.shards < 1 || f.shards > maxModelShards {
		return nil, usagef("--shards %d: want 1 to %d", f.shards, maxModelShards)
	}
	width := int64(64)
	for 8*layerBytes(2*width) <= size/4*3 {
		width *= 2
	}
	layers := size / 4 * 3 / layerBytes(width)
	vocab := (size - layers*layerBytes(width)) / (4 * width)

	tensors := []staging.TensorInfo{bf16("model.embed_tokens.weight", vocab, width)}
	for i := range layers {
		tensors = append(tensors, layerTensors(i, width)...)
	}
	tensors = append(tensors, bf16("model.norm.weight", width), bf16("lm_head.weight", vocab, width))
	return split(tensors, f)
}

// layerTensors is one layer, in the order of names, which is that of real shards: the attention has a
// key and value head for each four of the query's, the MLP is 2.75 times as wide as the model.
func layerTensors(i, width int64) []staging.TensorInfo {
	p := fmt.Sprintf("model.layers.%d.", i)
	kv, inner := width/4, width/4*11
	return []staging.TensorInfo{
		bf16(p+"input_layernorm.weight", width),
		bf16(p+"mlp.down_proj.weight", width, inner),
		bf16(p+"mlp.gate_proj.weight", inner, width),
		bf16(p+"mlp.up_proj.weight", inner, width),
		bf16(p+"post_attention_layernorm.weight", width),
		bf16(p+"self_attn.k_proj.weight", kv, width),
		bf16(p+"self_attn.o_proj.weight", width, width),
		bf16(p+"self_attn.q_proj.weight", width, width),
		bf16(p+"self_attn.v_proj.weight", kv, width),
	}
}

func layerBytes(width int64) int64 { return totalBytes(layerTensors(0, width)) }

func bf16(name string, shape ...int64) staging.TensorInfo {
	return staging.TensorInfo{Name: name, DType: staging.BF16, Shape: shape}
}

// totalBytes is the size of tensors that have not been laid out yet.
func totalBytes(tensors []staging.TensorInfo) int64 {
	var sum int64
	for _, t := range tensors {
		n := int64(2)
		for _, d := range t.Shape {
			n *= d
		}
		sum += n
	}
	return sum
}

// split puts tensors into shards of about the same size, in order.
func split(tensors []staging.TensorInfo, f modelFlags) (*model, error) {
	m := &model{}
	left, total, shards := tensors, totalBytes(tensors), f.shards
	done := int64(0)
	for i := 1; i <= shards; i++ {
		n := 0
		for n < len(left) && (i == shards || done < total/int64(shards)*int64(i)) {
			done += totalBytes(left[n : n+1])
			n++
		}
		s := &modelShard{name: fmt.Sprintf("model-%05d-of-%05d.%s", i, shards, &f.format), seed: uint64(i) << 56}
		var err error
		if f.format == modelFormat(staging.FormatGGUF) {
			err = s.layOutGGUF(left[:n], i-1, shards, len(tensors))
		} else {
			err = s.layOut(left[:n])
		}
		if err != nil {
			return nil, err
		}
		m.shards = append(m.shards, s)
		left = left[n:]
	}
	return m, nil
}

// checksums returns the CRC-32C of each tensor, or slice, of a plan as it is made, in hex: computed here and now.
func (m *model) checksums(plan staging.Plan) map[string]string {
	parts := make([]map[string]string, len(m.shards))
	wanted := make(map[string]staging.PlanTensor, len(plan))
	for _, t := range plan {
		wanted[t.Name] = t
	}
	var wg sync.WaitGroup
	for i, s := range m.shards {
		wg.Go(func() { parts[i] = s.checksums(wanted) })
	}
	wg.Wait()
	all := map[string]string{}
	for _, part := range parts {
		for name, sum := range part {
			all[name] = sum
		}
	}
	return all
}

// modelShard is a shard of a model as a file: an io.ReaderAt.
type modelShard struct {
	name   string
	header *staging.Header
	text   []byte // the encoded header
	seed   uint64
}

// layOut makes it a safetensors shard of these tensors, in the order of their names, as real ones are: layer 10 comes before layer 2.
func (s *modelShard) layOut(tensors []staging.TensorInfo) (err error) {
	tensors = slices.SortedFunc(slices.Values(tensors), func(a, b staging.TensorInfo) int { return strings.Compare(a.Name, b.Name) })
	if s.header, err = staging.NewHeader(tensors, map[string]string{"format": "pt"}); err != nil {
		return err
	}
	s.text, err = s.header.Append(nil)
	return err
}

// layOutGGUF makes it part no of count of a split GGUF model that has so many tensors in all.
func (s *modelShard) layOutGGUF(tensors []staging.TensorInfo, no, count, all int) error {
	renamed := slices.Clone(tensors)
	for i := range renamed {
		renamed[i].Name = ggufNames.Replace(renamed[i].Name)
	}
	g, err := staging.NewGGUF(renamed, []staging.GGUFPair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "split.no", Value: uint16(no)},
		{Key: "split.count", Value: uint16(count)},
		{Key: "split.tensors.count", Value: int32(all)},
	})
	if err != nil {
		return err
	}
	s.header = g.Header
	s.text, err = g.Append(nil)
	return err
}

// ggufNames gives tensors the names that they have in GGUF.
var ggufNames = strings.NewReplacer(
	"model.embed_tokens", "token_embd", "model.norm", "output_norm", "lm_head", "output", "model.layers", "blk",
	"input_layernorm", "attn_norm", "post_attention_layernorm", "ffn_norm", "self_attn.k_proj", "attn_k", "self_attn.o_proj", "attn_output",
	"self_attn.q_proj", "attn_q", "self_attn.v_proj", "attn_v", "mlp.down_proj", "ffn_down", "mlp.gate_proj", "ffn_gate", "mlp.up_proj", "ffn_up",
)

// padded is the size of the shard on a namespace.
func (s *modelShard) padded() int64 {
	return (s.header.Size + modelBlock - 1) / modelBlock * modelBlock
}

// ReadAt reads the shard, and zeros behind it.
func (s *modelShard) ReadAt(p []byte, off int64) (int, error) {
	if off >= s.padded() {
		return 0, io.EOF
	}
	all := p[:min(int64(len(p)), s.padded()-off)]
	b := all
	if off < int64(len(s.text)) {
		n := copy(b, s.text[off:])
		b, off = b[n:], off+int64(n)
	}
	data := b[:max(0, min(int64(len(b)), s.header.Size-off))]
	s.fill(data, off)
	clear(b[len(data):])
	if len(all) < len(p) {
		return len(all), io.EOF
	}
	return len(all), nil
}

// fill computes the data at off in the shard.
func (s *modelShard) fill(b []byte, off int64) {
	var word [8]byte
	if skip := int(off % 8); skip > 0 && len(b) > 0 {
		binary.LittleEndian.PutUint64(word[:], s.word(off/8))
		n := copy(b, word[skip:])
		b, off = b[n:], off+int64(n)
	}
	at := off / 8
	for len(b) >= 8 {
		if k := s.key(at); at%patternWords == 0 && len(b) >= 8*patternWords {
			for i, w := range pattern() {
				binary.LittleEndian.PutUint64(b[8*i:8*i+8], w^k)
			}
			b, at = b[8*patternWords:], at+patternWords
			continue
		}
		binary.LittleEndian.PutUint64(b, s.word(at))
		b, at = b[8:], at+1
	}
	if len(b) > 0 {
		binary.LittleEndian.PutUint64(word[:], s.word(at))
		copy(b, word[:])
	}
}

// word is the i-th 64-bit word of the shard: one of a fixed pattern, with a key that changes with each
// repetition. A sound generator for each word would cost as much CPU time as all the rest of the target.
func (s *modelShard) word(i int64) uint64 { return pattern()[i%patternWords] ^ s.key(i) }

const patternWords = 64

// Four weights of up to a hundredth or so, without infinities and NaNs, have these bits, and any of those.
const (
	weightOnes = 0x3800_3800_3800_3800
	weightMask = 0x83FF_83FF_83FF_83FF
)

var pattern = sync.OnceValue(func() *[patternWords]uint64 {
	p := new([patternWords]uint64)
	for i := range p {
		p[i] = splitMix64(uint64(i))&weightMask | weightOnes
	}
	return p
})

// key is the key of the i-th word.
func (s *modelShard) key(i int64) uint64 {
	return splitMix64(s.seed+uint64(i/patternWords)) & weightMask
}

// splitMix64 is the n-th number of a pseudo-random sequence.
func splitMix64(n uint64) uint64 {
	z := n * 0x9E3779B97F4A7C15
	z = (z ^ z>>30) * 0xBF58476D1CE4E5B9
	z = (z ^ z>>27) * 0x94D049BB133111EB
	return z ^ z>>31
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

func (s *modelShard) checksums(wanted map[string]staging.PlanTensor) map[string]string {
	sums := map[string]string{}
	buf := make([]byte, 256<<10)
	for i := range s.header.Tensors {
		t := &s.header.Tensors[i]
		slice, ok := wanted[t.Name]
		if !ok {
			continue
		}
		h := crc32.New(castagnoli)
		for begin, end := range runs(t, slice) {
			for off := begin; off < end; off += int64(len(buf)) {
				b := buf[:min(int64(len(buf)), end-off)]
				s.fill(b, s.header.DataOffset+off)
				h.Write(b)
			}
		}
		sums[t.Name] = hex.EncodeToString(h.Sum(nil))
	}
	return sums
}

// runs are the ranges of a shard's data that a slice of tensor t has, or all of t. It knows nothing of how slices are loaded.
func runs(t *staging.TensorInfo, slice staging.PlanTensor) iter.Seq2[int64, int64] {
	return func(yield func(begin, end int64) bool) {
		if slice.Of == nil {
			yield(t.Begin, t.End)
			return
		}
		rows, size := int64(1), t.Shape[slice.Dim]
		for _, d := range t.Shape[:slice.Dim] {
			rows *= d
		}
		row := t.Bytes() / rows
		for begin := t.Begin; begin < t.End; begin += row {
			from := begin + slice.From*row/size
			if !yield(from, from+slice.Shape[slice.Dim]*row/size) {
				return
			}
		}
	}
}
