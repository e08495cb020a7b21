package staging

import (
	"bytes"
	"errors"
	"io"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
)

// FuzzLZ4: hostile frames bring about the right bytes or an error, never a panic, and pierrec's reader agrees on the bytes.
func FuzzLZ4(f *testing.F) {
	for i := range 8 { // small frames, of which there are many a second
		content := append(bytes.Repeat([]byte("lz4"), i*15_000), "and something that does not compress"...)
		f.Add(i%3 == 0, frame(f, content, lz4.BlockSizeOption(lz4.Block64Kb), lz4.BlockChecksumOption(i&1 != 0), lz4.ChecksumOption(i&2 != 0)))
	}
	few := make([]byte, 300)
	f.Add(true, lz4Parts{flg: 0x7c, bd: 0x40, content: 300, blocks: [][]byte{few}}.bytes())
	f.Add(true, lz4Parts{flg: 0x60, bd: 0x40, blocks: [][]byte{make([]byte, 65536), few}}.bytes())
	f.Add(false, append([]byte{0x50, 0x2a, 0x4d, 0x18, 1, 0, 0, 0, 9}, lz4Parts{flg: 0x64, bd: 0x40}.bytes()...))
	f.Fuzz(func(t *testing.T, mend bool, b []byte) {
		if len(b) > 1<<20 {
			return
		}
		if mend && len(b) > 5 { // or no other header than the seeds' gets past its checksum
			b = bytes.Clone(b)
			if hc := 4 + lz4DescriptorLen(b[4]) - 1; hc < len(b) {
				b[hc] = byte(xxh32Of(b[4:hc]) >> 8)
			}
		}
		src := &ReaderSource{ReaderAt: bytes.NewReader(b), Bytes: int64(len(b)), Block: 1}
		s, err := OpenLZ4(t.Context(), src, LZ4Config{Workers: 2})
		if err != nil {
			known := false
			for _, k := range []error{ErrNotShard, ErrLZ4, ErrTruncated, errors.ErrUnsupported} {
				known = known || errors.Is(err, k)
			}
			require.True(t, known, "%v", err)
			return
		}
		require.LessOrEqual(t, s.Size(), int64(255*len(b)))
		got := make([]byte, s.Size())
		whole := &collector{todo: []*Read{{Buf: got}}}
		fed := s.Feed(t.Context(), whole)
		direct := make([]byte, s.Size())
		_, read := s.ReadAt(direct, 0)
		if fed == nil { // which has verified more than ReadAt
			require.NoError(t, read)
			require.Equal(t, got, direct)
		}
		want, err := io.ReadAll(lz4.NewReader(bytes.NewReader(b)))
		switch {
		case err == nil && fed == nil: // the oracle ignores what follows, as we do
			require.Equal(t, len(want), len(got))
			require.True(t, bytes.Equal(want, got))
		case fed == nil:
			// The oracle reads on behind the last frame, and takes rubbish there for an error.
			require.True(t, bytes.HasPrefix(got, want), "%v", err)
			require.Len(t, want, len(got), "%v", err)
		}
	})
}

// collector is a Feed of a few reads.
type collector struct{ todo []*Read }

func (c *collector) Attach(func()) {}

func (c *collector) Next() (*Read, bool) {
	if len(c.todo) == 0 {
		return nil, true
	}
	r := c.todo[0]
	c.todo = c.todo[1:]
	return r, false
}

func (c *collector) Complete(*Read) {}
