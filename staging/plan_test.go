package staging

import (
	"bytes"
	"context"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// named is a plan of tensors of these names and a byte each.
func named(names ...string) Plan {
	var p Plan
	for i, n := range names {
		p = append(p, PlanTensor{TensorInfo: &TensorInfo{Name: n, DType: U8, Shape: []int64{1}, Begin: int64(i), End: int64(i) + 1}})
	}
	return p
}

func names(p Plan) (out []string) {
	for _, t := range p {
		out = append(out, t.Name)
	}
	return out
}

func TestByLayer(t *testing.T) {
	for name, want := range map[string][]string{
		"Hugging Face": {
			"model.embed_tokens.weight",
			"model.layers.0.input_layernorm.weight", "model.layers.0.mlp.experts.11.w", "model.layers.0.mlp.experts.2.w",
			"model.layers.1.x", "model.layers.2.x", "model.layers.10.x", "model.layers.100.x",
			"model.norm.weight", "lm_head.weight",
		},
		"GGUF":                   {"token_embd.weight", "rope_freqs.weight", "blk.0.attn_norm.weight", "blk.0.ffn_up.weight", "blk.2.x", "blk.11.x", "output_norm.weight", "output.weight"},
		"GPT-2":                  {"wpe.weight", "wte.weight", "h.0.ln_1.weight", "h.1.x", "h.10.x", "ln_f.bias", "ln_f.weight"},
		"NeoX":                   {"gpt_neox.embed_in.weight", "gpt_neox.layers.0.x", "gpt_neox.layers.12.x", "gpt_neox.final_layer_norm.weight", "embed_out.weight"},
		"T5":                     {"decoder.embed_tokens.weight", "shared.weight", "encoder.block.0.x", "decoder.block.0.x", "decoder.final_layer_norm.weight", "lm_head.weight"},
		"encoder before decoder": {"embeddings.LayerNorm.weight", "model.encoder.layers.0.x", "model.encoder.layers.10.x", "model.decoder.layers.0.x", "model.decoder.layers.3.x"},
		"vision first":           {"visual.patch_embed.proj.weight", "visual.merger.w", "visual.blocks.0.x", "visual.blocks.1.x", "model.layers.0.x"},
		"no layers":              {"stft.basis", "conv.weight", "final.bias"},
		"no numbers":             {"layers.0123456789.x", "layers..x", "layers.-1.x", "layers.1a.x", "7.x"},
	} {
		t.Run(name, func(t *testing.T) {
			p := named(want...)
			if name != "no layers" && name != "no numbers" {
				// In whatever order across layers, the order within each being kept.
				slices.SortStableFunc(p, func(a, b PlanTensor) int { return -layerOf(a.Name).compare(layerOf(b.Name)) })
			}
			require.Equal(t, want, names(p.ByLayer()))
		})
	}
}

func TestLayers(t *testing.T) {
	p := named("lm_head.weight", "model.layers.10.b", "model.layers.9.a", "model.layers.10.a", "model.embed_tokens.weight", "x", "model.norm.weight")
	var got []string
	for _, l := range p.Layers() {
		got = append(got, l.Name)
		for _, x := range l.Plan {
			got = append(got, "  "+x.Name)
		}
	}
	require.Equal(t, []string{
		"head", "  lm_head.weight", "model.layers.10", "  model.layers.10.b", "  model.layers.10.a", "model.layers.9", "  model.layers.9.a",
		"embeddings", "  model.embed_tokens.weight", "other", "  x", "norm", "  model.norm.weight",
	}, got)
	require.Equal(t, 10, p.Layers()[1].Number)
	require.Equal(t, -1, p.Layers()[0].Number)
	require.Empty(t, Plan{}.Layers())
}

func TestStage(t *testing.T) {
	p := named("lm_head.weight", "l.10.x", "l.2.x", "l.1.x", "l.0.x", "embed.weight", "l.3.x", "norm.weight")
	for rank, want := range [][]string{{"embed.weight", "l.0.x"}, {"l.1.x", "l.2.x"}, {"l.3.x", "l.10.x", "norm.weight", "lm_head.weight"}} {
		got, err := p.Stage(rank, 3)
		require.NoError(t, err)
		require.Equal(t, want, names(got))
	}
	_, err := p.Stage(3, 3)
	require.ErrorContains(t, err, "stage 3 of 3")
	_, err = p.Stage(0, 6)
	require.ErrorContains(t, err, "only 5 layers")
	_, err = named("a", "b").Stage(0, 1)
	require.ErrorContains(t, err, "layer's number")
}

func TestOrder(t *testing.T) {
	p := named("a", "b", "c", "d")
	got, err := p.Order("c", "a")
	require.NoError(t, err)
	require.Equal(t, []string{"c", "a", "b", "d"}, names(got))
	require.Equal(t, []string{"a", "b", "c", "d"}, names(p), "the plan itself stays")
	_, err = p.Order("c", "e")
	require.ErrorContains(t, err, `no tensor "e"`)
	_, err = p.Order("c", "c")
	require.ErrorContains(t, err, "twice")
	require.Equal(t, []string{"b", "d"}, names(p.Filter(func(x PlanTensor) bool { return x.Name == "b" || x.Name == "d" })))
}

// ordered is a source that notes in which order reads are handed out, over all sources that share mu and log.
type ordered struct {
	*device

	mu  *sync.Mutex
	log *[]handed
}

type handed struct {
	src *ordered
	off int64
	n   int
}

type orderedFeed struct {
	Feed

	o *ordered
}

func (o *ordered) Feed(ctx context.Context, f Feed) error {
	return o.device.Feed(ctx, &orderedFeed{f, o})
}

func (f *orderedFeed) Next() (*Read, bool) {
	f.o.mu.Lock()
	defer f.o.mu.Unlock()
	r, done := f.Feed.Next()
	if r != nil {
		*f.o.log = append(*f.o.log, handed{f.o, r.Off, len(r.Buf)})
	}
	return r, done
}

// layeredModel is two shards with the tensors of ten layers, whose files are in the order of the alphabet.
func layeredModel(t *testing.T, queues, tensor int) (*Model, *[]handed) {
	var mu sync.Mutex
	log := &[]handed{}
	var srcs []Source
	for s, all := range [][]string{
		{"model.layers.0.a", "model.layers.0.b", "model.layers.10.a", "model.layers.10.b", "model.layers.2.a", "model.norm.weight"},
		{"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.c", "model.layers.1.a", "model.layers.1.b", "model.layers.2.b"},
	} {
		var infos []TensorInfo
		for _, n := range all {
			infos = append(infos, TensorInfo{Name: n, DType: U8, Shape: []int64{int64(tensor)}})
		}
		h, err := NewHeader(infos, nil)
		require.NoError(t, err)
		var b bytes.Buffer
		r := rand.NewChaCha8([32]byte{byte(s)})
		require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader { return io.LimitReader(r, x.Bytes()) }))
		for b.Len()%512 != 0 {
			b.WriteByte(0)
		}
		d := &device{t: t, data: b.Bytes(), block: 512, maxIO: 4096, queues: queues, depth: 4, seed: uint64(s)}
		srcs = append(srcs, &ordered{d, &mu, log})
	}
	m, err := OpenModel(t.Context(), srcs...)
	require.NoError(t, err)
	*log = nil
	return m, log
}

// Reads are handed out strictly in the plan's order, over all queues and shards. So the bytes of the first layers are the first to come: what is
// read until the last of them is asked for is theirs, and nothing else but the padding to whole blocks.
func TestReadsAreInThePlansOrder(t *testing.T) {
	for _, queues := range []int{1, 4} {
		for _, pieces := range []bool{false, true} {
			m, log := layeredModel(t, queues, 50_000)
			plan := m.Plan().ByLayer()
			require.Equal(t, "model.embed_tokens.weight", plan[0].Name)
			l := &Loader{Pool: newPool(t, 8, 8192), Ahead: 1 << 20}
			if pieces {
				for p, err := range l.Pieces(t.Context(), plan) {
					require.NoError(t, err)
					p.Release()
				}
			} else {
				loadAll(t, l, plan)
			}
			at, pos := 0, int64(0) // of the plan, and within its tensor
			for _, h := range *log {
				for n := int64(h.n); n > 0 && at < len(plan); {
					x := plan[at]
					start := x.Shard.DataOffset + x.Begin
					require.Same(t, x.Shard.src, h.src, "a read of the wrong shard while %s is due", x.Name)
					here := start + pos
					require.True(t, h.off <= here && here < h.off+int64(h.n), "a read of %d bytes at %d, while %s is due, at %d", h.n, h.off, x.Name, here)
					step := min(h.off+int64(h.n)-here, x.Bytes()-pos)
					if pos += step; pos == x.Bytes() {
						at, pos = at+1, 0
					}
					n = h.off + int64(h.n) - here - step
					if at < len(plan) && (plan[at].Shard != x.Shard || plan[at].Begin != x.End) {
						break // what is left is padding
					}
				}
			}
			require.Equal(t, len(plan), at)
		}
	}
}

func TestProgress(t *testing.T) {
	m, _ := layeredModel(t, 2, 5000)
	for _, pieces := range []bool{false, true} {
		var got []Progress
		l := &Loader{Pool: newPool(t, 4, 4096), OnProgress: func(p Progress) { got = append(got, p) }}
		for _, plan := range []Plan{m.Plan().ByLayer(), m.Plan()} {
			got = nil
			before := l.Stats()
			if pieces {
				for p, err := range l.Pieces(t.Context(), plan) {
					require.NoError(t, err)
					p.Release()
				}
			} else {
				loadAll(t, l, plan)
			}
			require.Len(t, got, 12)
			var layers []string
			for i, p := range got {
				require.Equal(t, plan[i].Name, p.Tensor)
				require.Equal(t, i+1, p.Tensors)
				require.Equal(t, 12, p.PlanTensors)
				require.EqualValues(t, 60_000, p.PlanBytes)
				require.EqualValues(t, 5000*(i+1), p.Bytes)
				require.Positive(t, p.Rate())
				if p.Layer != "" {
					layers = append(layers, p.Layer)
				}
			}
			st := l.Stats()
			require.EqualValues(t, 60_000, st.Bytes-before.Bytes)
			require.Equal(t, layers[len(layers)-1], st.Layer)
			require.LessOrEqual(t, st.FirstTensor, st.FirstLayer)
			require.Positive(t, st.FirstLayer)
			require.LessOrEqual(t, st.FirstLayer, st.FirstToken)
			if plan[0].Name == "model.embed_tokens.weight" {
				require.Equal(t, []string{"embeddings", "model.layers.0", "model.layers.1", "model.layers.2", "model.layers.10", "norm", "head"}, layers)
				require.EqualValues(t, 4*5000, st.FirstLayerBytes, "embeddings and three tensors")
				require.Less(t, st.FirstLayer, st.FirstLayerInFileOrder)
				// The second file in this plan's order is the one with layers.0.a; layers.0.b ends after 8 tensors.
				require.Equal(t, got[7].Elapsed, st.FirstLayerInFileOrder)
			} else {
				require.EqualValues(t, 9*5000, st.FirstLayerBytes, "up to layers.0.c in the second file")
				require.Equal(t, st.FirstLayer, st.FirstLayerInFileOrder)
			}
		}
	}
	require.Zero(t, Progress{}.Rate())
}

// A consumer that dies leaves nothing behind.
func TestConsumerPanics(t *testing.T) {
	d := plainShard(t, 20, 5000)
	shard, err := OpenShard(t.Context(), d)
	require.NoError(t, err)
	pool := newPool(t, 4, 4096)
	g := &gpu{t: t, r: rand.New(rand.NewPCG(1, 1))}
	l := &Loader{Pool: pool, Hash: newBoth}
	require.PanicsWithValue(t, "consumer", func() {
		for x, err := range l.Stream(t.Context(), shard.Plan(), g) {
			require.NoError(t, err)
			x.Release()
			panic("consumer")
		}
	})
	require.Zero(t, pool.Out())
	require.NoError(t, g.Close())
	require.PanicsWithValue(t, "consumer", func() {
		for p, err := range l.Pieces(t.Context(), shard.Plan()) {
			require.NoError(t, err)
			p.Release()
			panic("consumer")
		}
	})
	require.Zero(t, pool.Out())
}

// Workers take the slots that were filled first, in whatever order they become complete.
func TestRingInsert(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	q := ring{slots: make([]*slot, 7), at: 5}
	for range 50 {
		seqs := r.Perm(7)
		for _, seq := range seqs {
			q.insert(&slot{seq: int64(seq)})
		}
		for want := range 7 {
			require.EqualValues(t, want, q.pop().seq)
		}
		require.Nil(t, q.pop())
	}
}
