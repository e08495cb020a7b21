package staging

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
)

// weights are n bytes as a model has them: every other 1 MiB noise, and numbers of few different values between.
func weights(n int) []byte {
	b := make([]byte, n)
	r := rand.NewChaCha8([32]byte{7})
	r.Read(b)
	for i := range b {
		if i>>20&1 == 1 && i%4 != 0 {
			b[i] = byte(i >> 3 & 3)
		}
	}
	return b
}

// BenchmarkLZ4 loads 256 MiB through the loader as pieces: uncompressed, and in frames that nothing, half or all of
// is compressed in, with a content checksum. times-plain is the time by that of the uncompressed load of the same run.
func BenchmarkLZ4(b *testing.B) {
	const size = 256 << 20
	noise := make([]byte, size)
	rand.NewChaCha8([32]byte{8}).Read(noise)
	few := bytes.Repeat(weights(2 << 20)[1<<20:], size>>20)
	load := func(b *testing.B, src Source, pool *Pool) {
		s, err := RawShard(src, []Range{{Name: "x", Len: size}})
		require.NoError(b, err)
		b.SetBytes(size)
		for b.Loop() {
			for p, err := range (&Loader{Pool: pool}).Pieces(b.Context(), s.Plan()) {
				require.NoError(b, err)
				p.Release()
			}
		}
	}
	for _, c := range []struct {
		name    string
		content []byte
	}{{"noise", noise}, {"weights", weights(size)}, {"few", few}} {
		var plain float64
		b.Run(c.name+"/plain", func(b *testing.B) {
			load(b, &ReaderSource{ReaderAt: bytes.NewReader(c.content), Bytes: size}, newPool(b, 32, 1<<20))
			plain = b.Elapsed().Seconds() / float64(b.N)
		})
		for _, block := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block4Mb} {
			framed := frame(b, c.content, lz4.BlockSizeOption(block), lz4.SizeOption(size))
			for _, workers := range []int{1, 2} {
				b.Run(fmt.Sprintf("%s/block=%dK/workers=%d", c.name, block>>10, workers), func(b *testing.B) {
					below := &ReaderSource{ReaderAt: bytes.NewReader(framed), Bytes: int64(len(framed))}
					src, err := OpenLZ4(b.Context(), below, LZ4Config{Workers: workers})
					require.NoError(b, err)
					load(b, src, newPool(b, 32, 1<<20))
					st := src.Stats()
					b.ReportMetric(b.Elapsed().Seconds()/float64(b.N)/plain, "times-plain")
					b.ReportMetric(float64(len(framed))/size, "compressed")
					b.ReportMetric(float64(st.Decoded)/st.DecodeTime.Seconds()/1e6, "MB/s/worker")
					b.Logf("%v", st)
				})
			}
		}
	}
}

func BenchmarkXXH32(b *testing.B) {
	p := make([]byte, 4<<20)
	b.SetBytes(int64(len(p)))
	for b.Loop() {
		xxh32Of(p)
	}
}
