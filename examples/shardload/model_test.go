package main

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"hash/crc32"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging"
)

func TestModelSizes(t *testing.T) {
	for _, size := range []int64{minModel, 3 << 20, 16 << 20, 512 << 20, 1 << 30, 100 << 30, maxModel} {
		m, err := newModel(modelFlags{size: byteSize(size), shards: 4})
		require.NoError(t, err)
		require.Len(t, m.shards, 4)
		var bytes, layers int64
		name := regexp.MustCompile(`^(model\.embed_tokens|model\.norm|lm_head|model\.layers\.\d+\.(self_attn\.[qkvo]_proj|mlp\.(gate|up|down)_proj|(input|post_attention)_layernorm))\.weight$`)
		for _, s := range m.shards {
			require.InEpsilon(t, size/4, s.header.Size, 0.5, "shards are about the same size")
			for _, tensor := range s.header.Tensors {
				require.Regexp(t, name, tensor.Name)
				require.Equal(t, staging.BF16, tensor.DType)
				bytes += tensor.Bytes()
				if regexp.MustCompile(`q_proj`).MatchString(tensor.Name) {
					layers++
				}
			}
		}
		require.InEpsilon(t, size, bytes, 0.01)
		require.GreaterOrEqual(t, layers, int64(8))
		require.Equal(t, "model.embed_tokens.weight", m.shards[0].header.Tensors[0].Name)
	}
}

// What a shard's ReadAt gives must not depend on how it is cut, or a wrong cut would go unseen.
func TestModelShardReads(t *testing.T) {
	m, err := newModel(modelFlags{size: minModel, shards: 4})
	require.NoError(t, err)
	rnd := rand.New(rand.NewPCG(1, 2))
	seen := map[string]bool{}
	for _, s := range m.shards {
		whole := make([]byte, s.padded())
		n, err := s.ReadAt(whole, 0)
		require.NoError(t, err)
		require.Len(t, whole, n)
		for range 500 {
			off := rnd.Int64N(int64(len(whole)))
			b := make([]byte, rnd.IntN(5000)+1)
			n, err := s.ReadAt(b, off)
			require.Equal(t, min(len(b), len(whole)-int(off)), n)
			if n < len(b) {
				require.ErrorIs(t, err, io.EOF)
			} else {
				require.NoError(t, err)
			}
			require.True(t, bytes.Equal(whole[off:][:n], b[:n]), "%d at %d", n, off)
		}
		_, err = s.ReadAt(make([]byte, 1), s.padded())
		require.ErrorIs(t, err, io.EOF)

		h, err := staging.ReadHeader(t.Context(), bytes.NewReader(whole), s.header.Size, staging.NoTrailing)
		require.NoError(t, err)
		require.Equal(t, s.header.Tensors, h.Tensors)
		require.Empty(t, bytes.Trim(whole[h.Size:], "\x00"))
		wanted := map[string]staging.PlanTensor{}
		for i := range h.Tensors {
			wanted[h.Tensors[i].Name] = staging.PlanTensor{TensorInfo: &h.Tensors[i]}
		}
		sums := s.checksums(wanted)
		for _, tensor := range h.Tensors {
			data := whole[h.DataOffset:][tensor.Begin:tensor.End]
			sum := crc32.Checksum(data, castagnoli)
			require.Equal(t, hex.EncodeToString(binary.BigEndian.AppendUint32(nil, sum)), sums[tensor.Name])
			require.False(t, seen[sums[tensor.Name]], "two tensors are the same")
			seen[sums[tensor.Name]] = true
			for ; len(data) > 0; data = data[2:] {
				v := math.Float32frombits(uint32(binary.LittleEndian.Uint16(data)) << 16)
				require.True(t, v != 0 && v > -0.01 && v < 0.01, "a weight of %v", v)
			}
		}
	}
}

func TestModelShardNumbers(t *testing.T) {
	whole, err := newModel(modelFlags{size: 8 << 20, shards: 1})
	require.NoError(t, err)
	for _, n := range []int{2, 3, maxModelShards} {
		m, err := newModel(modelFlags{size: 8 << 20, shards: n})
		require.NoError(t, err)
		require.Len(t, m.shards, n)
		var names, want []string
		for _, s := range m.shards {
			before := len(names)
			for _, tensor := range s.header.Tensors {
				names = append(names, tensor.Name)
			}
			require.True(t, slices.IsSorted(names[before:]))
		}
		for _, tensor := range whole.shards[0].header.Tensors {
			want = append(want, tensor.Name)
		}
		require.ElementsMatch(t, want, names)
	}
	succeeds(t, "--size", "1M", "--shards", "64") // some of them have no tensors
}

func TestGenerate(t *testing.T) {
	files := generated(t, "1M")
	m, err := newModel(modelFlags{size: minModel, shards: 4})
	require.NoError(t, err)
	for i, f := range files {
		got, err := os.ReadFile(f)
		require.NoError(t, err)
		want := make([]byte, m.shards[i].header.Size)
		_, err = m.shards[i].ReadAt(want, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	}
	o := shardload(t, "generate", "--size", "1M", files[0][:len(files[0])-len(m.shards[0].name)])
	require.Equal(t, exitFailed, o.status, "it must not overwrite what is there")
	require.Contains(t, o.line(t), files[0]+" exists: remove it, or choose another directory")
	succeeds(t, "generate", "--size", "1M", filepath.Join(t.TempDir(), "new"))
}

func BenchmarkModelRead(b *testing.B) {
	m, err := newModel(modelFlags{size: 512 << 20, shards: 4})
	require.NoError(b, err)
	buf := make([]byte, 1<<20)
	b.SetBytes(int64(len(buf)))
	for b.Loop() {
		_, _ = m.shards[1].ReadAt(buf, 1<<20)
	}
}
