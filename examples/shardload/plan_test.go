package main

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/staging"
)

func TestOrder(t *testing.T) {
	load := func(args ...string) *report {
		r := decodeReport(t, succeeds(t, append([]string{"--size", "16M", "--shards", "1", "--memory", "1M", "--json"}, args...)...).out)
		require.Empty(t, r.Checksums.Wrong)
		require.Equal(t, "model.layers.0", r.Milestones.Layer)
		return r
	}
	layer, file := load(), load("--order", "file")
	require.Equal(t, load("--order", "layer").Plan.Order, layer.Plan.Order, "the default")
	require.Equal(t, orderLayer, layer.Plan.Order)
	require.Equal(t, orderFile, file.Plan.Order)

	// In the file the head comes before everything else.
	require.Equal(t, "model.embed_tokens.weight", layer.Milestones.Tensor)
	require.Equal(t, "lm_head.weight", file.Milestones.Tensor)
	m, err := newModel(modelFlags{size: 16 << 20, shards: 1})
	require.NoError(t, err)
	head, embed := m.shards[0].header.Tensors[0], m.shards[0].header.Tensors[1]
	require.Equal(t, "lm_head.weight", head.Name)
	first := embed.Bytes() + m.shards[0].layer(0)
	require.Equal(t, first, layer.Milestones.FirstLayerBytes)
	require.Equal(t, first+head.Bytes(), file.Milestones.FirstLayerBytes)
	for _, r := range []*report{layer, file} {
		m := r.Milestones
		require.LessOrEqual(t, m.FirstLayer, m.FirstLayerInFileOrder)
		require.LessOrEqual(t, m.FirstLayerInFileOrder, m.FirstToken)
		require.LessOrEqual(t, m.FirstToken, m.Total)
		require.Equal(t, r.Bytes, r.Plan.ModelBytes)
		require.GreaterOrEqual(t, r.Plan.ReadBytes, r.Bytes)
		require.InDelta(t, 1, r.Plan.Amplification, 0.01)
	}
	require.Less(t, layer.Milestones.FirstLayer, layer.Milestones.FirstLayerInFileOrder)
	require.Equal(t, file.Milestones.FirstLayer, file.Milestones.FirstLayerInFileOrder)
	require.Contains(t, succeeds(t, "--size", "16M", "--shards", "1", "--memory", "1M").out, "(model.layers.0), in file order ")
}

// layer is the size of a layer's tensors.
func (s *modelShard) layer(n int) (bytes int64) {
	for _, t := range layerTensors(int64(n), 1) {
		bytes += s.header.Tensor(t.Name).Bytes()
	}
	return bytes
}

// A shard in LZ4 frames is loaded in its own order unless somebody insists, and the report says what held it up.
func TestLZ4(t *testing.T) {
	dir := t.TempDir()
	file := strings.TrimSpace(succeeds(t, "generate", "--size", "16M", "--shards", "1", dir).out)
	plain, err := os.ReadFile(file)
	require.NoError(t, err)
	packed := lz4Frame(t, plain)
	space := make([]byte, 32<<20)
	copy(space, packed)
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 4096, Backend: nvmetest.MemoryOf(space)})
	for want, args := range map[string][]string{
		orderFile:  {},
		orderLayer: {"--order", "layer"},
	} {
		for _, to := range [][]string{nil, {"--device", "host"}} {
			args := append(append([]string{"--file", file, "--memory", "4M"}, to...), args...)
			r := decodeReport(t, succeeds(t, at(target, "verify", append(args, "--json")...)...).out)
			require.Equal(t, want, r.Plan.Order)
			lz4 := r.Shards[0].LZ4
			require.GreaterOrEqual(t, lz4.DecodedBytes, r.Bytes)
			require.Positive(t, lz4.CompressedBytes)
			require.Contains(t, []string{"decode", "input", "output"}, lz4.Bound)
			require.Positive(t, lz4.DecodeSeconds)
		}
	}
	require.Regexp(t, `(?m)^lz4 +namespace 1: \d+ bytes of \d+ compressed, bound by (decode|input|output): `, succeeds(t, at(target, "")...).out)
}

// All ranks together have everything, and each is right by itself: the generator cuts tensors in its own way.
func TestRank(t *testing.T) {
	const ranks = 3 // which divides no dimension
	whole := decodeReport(t, succeeds(t, "--size", "4M", "--json").out)
	var norms, sum int64
	m, err := newModel(modelFlags{size: 4 << 20, shards: 4})
	require.NoError(t, err)
	for _, s := range m.shards {
		for _, tensor := range s.header.Tensors {
			if len(tensor.Shape) == 1 {
				norms += tensor.Bytes()
			}
		}
	}
	for _, format := range []string{"safetensors", "gguf"} {
		sum = 0
		for _, rank := range []string{"0/3", "1/3", "2/3"} {
			for _, to := range [][]string{nil, {"--device", "host"}} {
				o := succeeds(t, append([]string{"--size", "4M", "--format", format, "--rank", rank, "--json"}, to...)...)
				r := decodeReport(t, o.out)
				require.Equal(t, rank, r.Plan.Rank)
				require.Equal(t, whole.Bytes, r.Plan.ModelBytes)
				require.Equal(t, whole.Tensors, r.Checksums.Compared)
				require.Greater(t, r.Plan.ReadBytes, r.Bytes)
				require.Less(t, r.Plan.ReadBytes, whole.Plan.ReadBytes)
				require.InEpsilon(t, float64(r.Plan.ReadBytes)/float64(r.Bytes), r.Plan.Amplification, 1e-9)
				if to == nil {
					sum += r.Bytes
				}
			}
		}
		require.Equal(t, whole.Bytes+norms*(ranks-1), sum)
	}
	o := succeeds(t, "--size", "4M", "--rank", "1/3")
	require.Regexp(t, `(?m)^plan +order of the layers, rank 1/3; of a model of 4 MiB, read [\d.]+ MiB, [\d.]+ times what was needed$`, o.out)
}

// A byte that only one rank needs makes a difference to that one alone.
func TestVerifyRank(t *testing.T) {
	file := strings.TrimSpace(succeeds(t, "generate", "--size", "4M", "--shards", "1", t.TempDir()).out)
	data, err := os.ReadFile(file)
	require.NoError(t, err)
	h, err := staging.ReadHeader(t.Context(), strings.NewReader(string(data)), int64(len(data)), staging.NoTrailing)
	require.NoError(t, err)
	down := h.Tensor("model.layers.1.mlp.down_proj.weight") // split by columns
	data[h.DataOffset+down.End-1] ^= 1                      // in the last column
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.MemoryOf(append(data, make([]byte, 4096-len(data)%4096)...))})
	for _, to := range [][]string{nil, {"--device", "host"}} {
		succeeds(t, at(target, "verify", append(to, "--file", file, "--rank", "0/2")...)...)
		o := shardload(t, at(target, "verify", append(to, "--file", file, "--rank", "1/2")...)...)
		require.Equal(t, exitFailed, o.status)
		require.Contains(t, o.line(t), "are not as in "+file+": model.layers.1.mlp.down_proj.weight: SHA-256 is ")
	}
	o := shardload(t, at(target, "verify", "--sums", file, "--rank", "0/2")...)
	require.Equal(t, exitUsage, o.status)
	require.Contains(t, o.line(t), "--sums is of whole ones: compare with --file")
}

func TestLayers(t *testing.T) {
	files := generated(t, "4M")
	sums := filepath.Join(t.TempDir(), "sums")
	list := succeeds(t, append([]string{"sums"}, files...)...).out
	require.NoError(t, os.WriteFile(sums, []byte(list), 0o600))
	var spaces []nvmetest.Namespace
	for range files {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: 4096, Backend: nvmetest.Memory(4 << 20)})
	}
	target := startTarget(t, nvmetest.ModeNVMET, spaces...)
	for i, f := range files {
		succeeds(t, at(target, "put", "--yes", "--nsid", string(rune('1'+i)), f)...)
	}
	whole := decodeReport(t, succeeds(t, at(target, "", "--json")...).out)
	last := strings.Count(list, ".q_proj.") - 1
	require.GreaterOrEqual(t, last, 7)
	end := layerRange{first: 3, last: last, set: true}
	var tensors int
	var bytes int64
	for layers, first := range map[string]string{"0-1": "model.layers.0", "2": "model.layers.2", end.String(): "model.layers.3"} {
		r := decodeReport(t, succeeds(t, at(target, "verify", "--sums", sums, "--layers", layers, "--order", "file", "--json")...).out)
		require.Equal(t, first, r.Milestones.Layer)
		require.Equal(t, orderFile, r.Plan.Order)
		require.Equal(t, r.Tensors, r.Checksums.Compared)
		tensors, bytes = tensors+r.Tensors, bytes+r.Bytes
		switch first {
		case "model.layers.0":
			require.Equal(t, 2*9+1, r.Tensors, "with the embeddings")
		case "model.layers.2":
			require.Equal(t, 9, r.Tensors)
		}
	}
	require.Equal(t, whole.Tensors, tensors)
	require.Equal(t, whole.Bytes, bytes)
	require.Contains(t, succeeds(t, at(target, "", "--layers", "2-4", "--rank", "0/2")...).out, "order of the layers, rank 0/2, layers 2-4; ")

	require.NoError(t, os.WriteFile(sums, []byte(list+strings.Repeat("0", 64)+"  nowhere\n"), 0o600))
	o := shardload(t, at(target, "verify", "--sums", sums, "--layers", "2")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "1 of 10 tensors are not as in "+sums+": nowhere: not loaded")

	o = shardload(t, at(target, "", "--layers", "3-99")...)
	require.Equal(t, exitFailed, o.status)
	require.Regexp(t, `--layers 3-99: the model has \d+ layers, 0-\d+$`, o.line(t))
}

func TestIndex(t *testing.T) {
	files := generated(t, "4M")
	dir := t.TempDir()
	weights := map[string]string{}
	for _, f := range files {
		for line := range strings.Lines(succeeds(t, "sums", f).out) {
			_, tensor, _ := strings.Cut(strings.TrimSpace(line), "  ")
			weights[tensor] = filepath.Base(f)
		}
	}
	index := func(name string) string {
		text, err := json.Marshal(map[string]any{"metadata": map[string]any{"total_size": 4 << 20}, "weight_map": weights})
		require.NoError(t, err)
		name = filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(name, text, 0o600))
		return name
	}
	good := index("model.safetensors.index.json")
	weights["model.norm.weight"] = filepath.Base(files[0])
	bad := index("bad.json")
	clear(weights)
	empty := index("empty.json")
	var spaces []nvmetest.Namespace
	for range files {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: 4096, Backend: nvmetest.Memory(4 << 20)})
	}
	target := startTarget(t, nvmetest.ModeNVMET, spaces...)
	args := []string{"--nsid", "4,3,2,1"}
	for i, f := range files {
		succeeds(t, at(target, "put", "--yes", "--nsid", string(rune('4'-i)), f)...)
		args = append(args, "--file", f)
	}
	r := decodeReport(t, succeeds(t, at(target, "verify", append(args, "--index", good, "--json")...)...).out)
	require.EqualValues(t, 4, r.Shards[0].NSID)

	for _, c := range [][]string{
		{"which should be in", "--index", bad},
		{"4 shards, and 2 namespaces: choose with --nsid", "--index", good, "--nsid", "1-2"},
		{"bad shard index", "--index", good},
		{"shardload: index " + empty + ": its weight_map is empty", "--index", empty},
		{"no such file", "--index", good + "-none"},
		{"bad shard index", "--index", files[0]},
	} {
		rest := c[1:]
		if c[2] == bad {
			rest = append(rest, args[:2]...)
		}
		o := shardload(t, at(target, "", rest...)...)
		require.Equal(t, exitFailed, o.status, c)
		require.Contains(t, o.line(t), c[0])
		require.Contains(t, o.line(t), "index "+c[2]+": ")
		require.NotContains(t, o.line(t), "staging:")
	}
}
