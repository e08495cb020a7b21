package staging

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// sparse is a source whose bytes cost nothing, so that what the loader costs is left.
type sparse struct{ head []byte }

func (s sparse) ReadAt(p []byte, off int64) (int, error) {
	if off < int64(len(s.head)) {
		copy(p, s.head[off:])
	}
	return len(p), nil
}

func benchShard(b *testing.B) *Shard {
	tensors := make([]TensorInfo, 8)
	for i := range tensors {
		tensors[i] = TensorInfo{Name: string(rune('a' + i)), DType: BF16, Shape: []int64{32, 1 << 20}}
	}
	h, err := NewHeader(tensors, nil)
	require.NoError(b, err)
	head, err := h.Append(nil)
	require.NoError(b, err)
	s, err := OpenShard(b.Context(), &ReaderSource{ReaderAt: sparse{head}, Bytes: h.Size})
	require.NoError(b, err)
	b.SetBytes(s.Plan().Bytes())
	b.ReportAllocs()
	return s
}

// BenchmarkStream is the loader with the copy to host memory, BenchmarkPieces without.
func BenchmarkStream(b *testing.B) {
	s, pool := benchShard(b), newPool(b, 64, 1<<20)
	for b.Loop() {
		for t, err := range s.Stream(b.Context(), pool, Host{}) {
			require.NoError(b, err)
			t.Release()
		}
	}
}

func BenchmarkPieces(b *testing.B) {
	s, pool := benchShard(b), newPool(b, 64, 1<<20)
	for b.Loop() {
		for p, err := range (&Loader{Pool: pool}).Pieces(b.Context(), s.Plan()) {
			require.NoError(b, err)
			p.Release()
		}
	}
}
