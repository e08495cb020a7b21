package staging

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// someBytes are n bytes of which some compress well, some a little, and some not.
func someBytes(r *rand.Rand, n int) []byte {
	b := make([]byte, n)
	fill := rand.NewChaCha8([32]byte{byte(r.Uint32())})
	for rest := b; len(rest) > 0; {
		k := min(1+r.IntN(150_000), len(rest))
		switch r.IntN(3) {
		case 0:
			copy(rest[:k], bytes.Repeat([]byte{byte(r.Uint32())}, k))
		case 1:
			fill.Read(rest[:k])
			for i := range k {
				rest[i] &= 3
			}
		default:
			fill.Read(rest[:k])
		}
		rest = rest[k:]
	}
	return b
}

// frame is content as pierrec's Writer writes it.
func frame(t testing.TB, content []byte, options ...lz4.Option) []byte {
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	require.NoError(t, w.Apply(options...))
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// on is a device that has b and some rubbish behind it.
func on(t testing.TB, b []byte) *device {
	const block = 512
	room := bytes.Repeat([]byte{0xaa}, (len(b)/block+3)*block)
	copy(room, b)
	return &device{t: t, data: room, block: block, maxIO: 100 * block, queues: 2, depth: 4}
}

// checkLZ4 compares all ways to read the frames on src with what they should hold.
func checkLZ4(t testing.TB, r *rand.Rand, src Source, want []byte) *LZ4Source {
	s, err := OpenLZ4(t.Context(), src, LZ4Config{Workers: 1 + r.IntN(3)})
	require.NoError(t, err)
	require.EqualValues(t, len(want), s.Size())
	inOrder := newReader(t, r, want)
	inOrder.line(0, len(want), 1+r.IntN(300_000))
	require.NoError(t, s.Feed(t.Context(), inOrder))
	inOrder.finished()

	got := make([]byte, len(want))
	n, err := s.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, len(want), n)
	require.True(t, bytes.Equal(want, got))
	for range 5 {
		off := r.IntN(len(want) + 1)
		p := make([]byte, r.IntN(20_000))
		n, err := s.ReadAt(p, int64(off))
		require.Equal(t, min(len(p), len(want)-off), n)
		require.True(t, bytes.Equal(want[off:off+n], p[:n]))
		if n < len(p) {
			require.Equal(t, io.EOF, err)
		} else {
			require.NoError(t, err)
		}
	}

	// A new one, so that nothing is known about the blocks.
	anywhere, err := OpenLZ4(t.Context(), src, LZ4Config{Workers: 1 + r.IntN(3)})
	require.NoError(t, err)
	random := newReader(t, r, want)
	for range 20 {
		off := r.IntN(len(want) + 1)
		random.add(off, r.IntN(min(300_000, len(want)-off)+1))
	}
	require.NoError(t, anywhere.Feed(t.Context(), random))
	random.finished()
	return s
}

func TestLZ4Options(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, size := range []lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb, lz4.Block1Mb, lz4.Block4Mb} {
		for i := range 8 {
			blockSum, contentSum, stated := i&1 != 0, i&2 != 0, i&4 != 0
			lengths := []int{0, 1, int(size) - 1, int(size), 2*int(size) + 1 + r.IntN(int(size))}
			if size > lz4.Block64Kb {
				lengths = lengths[i%5 : i%5+1] // they take long
			}
			for _, n := range lengths {
				want := someBytes(r, n)
				options := []lz4.Option{
					lz4.BlockSizeOption(size), lz4.BlockChecksumOption(blockSum), lz4.ChecksumOption(contentSum),
					lz4.CompressionLevelOption([]lz4.CompressionLevel{lz4.Fast, lz4.Level1, lz4.CCompatFast}[r.IntN(3)]),
				}
				if stated {
					options = append(options, lz4.SizeOption(uint64(n)))
				}
				s := checkLZ4(t, r, on(t, frame(t, want, options...)), want)
				st := s.Stats()
				require.Equal(t, 1, st.Frames)
				if contentSum && n > 0 {
					require.EqualValues(t, 1, st.ContentVerified, "%v", st)
				} else {
					require.Zero(t, st.ContentVerified)
				}
				require.Zero(t, st.ContentUnverified)
			}
		}
	}
}

// Frames of every option of the lz4 program, alone and behind each other.
func TestLZ4Program(t *testing.T) {
	program, err := exec.LookPath("lz4")
	if err != nil {
		t.Skip("the lz4 program is not installed (Debian: lz4)")
	}
	r := rand.New(rand.NewPCG(2, 1))
	want := someBytes(r, 9_500_000)
	dir := t.TempDir()
	file := filepath.Join(dir, "content")
	require.NoError(t, os.WriteFile(file, want, 0o600))
	run := func(options ...string) []byte {
		out, err := exec.Command(program, append(options, "-q", "-c", file)...).Output()
		require.NoError(t, err)
		return out
	}
	for _, options := range []string{
		"", "-B4", "-B5 -BX", "-B6 --no-frame-crc", "-B7 -BI --content-size", "-BX --content-size --no-frame-crc", "-9 -B4 --content-size", "--fast=5",
	} {
		t.Run(options, func(t *testing.T) {
			checkLZ4(t, r, on(t, run(strings.Fields(options)...)), want)
		})
	}
	skip := append([]byte{0x53, 0x2a, 0x4d, 0x18, 5, 0, 0, 0}, "hello"...)
	three := bytes.Join([][]byte{skip, run("-B4"), skip, skip, run("--content-size"), frame(t, nil), run("-B5"), skip}, nil)
	s := checkLZ4(t, r, on(t, three), bytes.Repeat(want, 3))
	require.Equal(t, 4, s.Stats().Frames)
	require.EqualValues(t, 3, s.Stats().ContentVerified)

	for options, says := range map[string]string{
		"-BD":        "depend on each other",
		"-l":         "legacy",
		"-D " + file: "dictionary",
		"-B200000":   "not full",
	} {
		_, err := OpenLZ4(t.Context(), on(t, run(strings.Fields(options)...)), LZ4Config{})
		if options[:2] == "-D" && err == nil {
			continue // this lz4 does not say in the frame that it used one; decoding shows it
		}
		require.ErrorIs(t, err, errors.ErrUnsupported, options)
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "lz4 -B7 -BI --content-size")
	}
}

// lz4Parts makes frames by hand.
type lz4Parts struct {
	flg, bd byte
	content int // Content Size, where flg says so
	blocks  [][]byte
	stored  bool
}

func (p lz4Parts) bytes() []byte {
	b := binary.LittleEndian.AppendUint32(nil, lz4Frames)
	b = append(b, p.flg, p.bd)
	if p.flg&8 != 0 {
		b = binary.LittleEndian.AppendUint64(b, uint64(p.content))
	}
	if p.flg&1 != 0 {
		b = append(b, 1, 2, 3, 4)
	}
	b = append(b, byte(xxh32Of(b[4:])>>8))
	var all []byte
	for _, data := range p.blocks {
		all = append(all, data...)
		field := uint32(len(data)) | lz4Stored
		if !p.stored {
			out := make([]byte, lz4.CompressBlockBound(len(data)))
			n, err := new(lz4.Compressor).CompressBlock(data, out)
			if err != nil {
				panic(err)
			}
			if n < len(data) {
				data, field = out[:n], uint32(n)
			}
		}
		b = binary.LittleEndian.AppendUint32(b, field)
		b = append(b, data...)
		if p.flg&16 != 0 {
			b = binary.LittleEndian.AppendUint32(b, xxh32Of(data))
		}
	}
	b = append(b, 0, 0, 0, 0)
	if p.flg&4 != 0 {
		b = binary.LittleEndian.AppendUint32(b, xxh32Of(all))
	}
	return b
}

func TestLZ4Malformed(t *testing.T) {
	zeros := func(n int) []byte { return make([]byte, n) }
	const full = 64 << 10
	good := lz4Parts{flg: 0x7c, bd: 0x40, content: 2*full + 500, blocks: [][]byte{zeros(full), zeros(full), zeros(500)}}
	change := func(f func(p *lz4Parts)) []byte {
		p := good
		p.blocks = slices.Clone(good.blocks)
		f(&p)
		return p.bytes()
	}
	flip := func(at int, bits byte) []byte {
		b := good.bytes()
		if at < 0 {
			at += len(b)
		}
		b[at] ^= bits
		return b
	}
	field := func(v uint32) []byte {
		b := good.bytes()
		binary.LittleEndian.PutUint32(b[15:], v)
		return b
	}
	const header = 15
	whole := len(good.bytes())
	for name, c := range map[string]struct {
		b    []byte
		err  error
		says string
	}{
		"nothing":                   {nil, ErrNotShard, "no LZ4 frame"},
		"three bytes":               {good.bytes()[:3], ErrNotShard, ""},
		"another magic":             {flip(0, 1), ErrNotShard, ""},
		"skippable only":            {[]byte{0x50, 0x2a, 0x4d, 0x18, 0, 0, 0, 0}, ErrNotShard, ""},
		"skippable too long":        {[]byte{0x50, 0x2a, 0x4d, 0x18, 9, 0, 0, 0}, ErrTruncated, "frame 0, byte 0"},
		"skippable cut":             {[]byte{0x50, 0x2a, 0x4d, 0x18, 9}, ErrTruncated, ""},
		"header checksum":           {flip(header-1, 1), ErrLZ4, "header checksum"},
		"header":                    {flip(7, 1), ErrLZ4, "header checksum"},
		"version 0":                 {change(func(p *lz4Parts) { p.flg &^= 0xc0 }), ErrLZ4, "version 0"},
		"version 3":                 {change(func(p *lz4Parts) { p.flg |= 0xc0 }), ErrLZ4, "version 3"},
		"reserved bit in FLG":       {change(func(p *lz4Parts) { p.flg |= 2 }), ErrLZ4, "reserved"},
		"reserved bit in BD":        {change(func(p *lz4Parts) { p.bd |= 0x80 }), ErrLZ4, "reserved"},
		"more of them":              {change(func(p *lz4Parts) { p.bd |= 1 }), ErrLZ4, "reserved"},
		"block maximum":             {change(func(p *lz4Parts) { p.bd = 0x30 }), ErrLZ4, "MaxSize 3"},
		"linked":                    {change(func(p *lz4Parts) { p.flg &^= 0x20 }), errors.ErrUnsupported, "-BI"},
		"dictionary":                {change(func(p *lz4Parts) { p.flg |= 1 }), errors.ErrUnsupported, "dictionary"},
		"content size too small":    {change(func(p *lz4Parts) { p.content = 5 }), ErrLZ4, "cannot hold a Content Size of 5"},
		"content size too large":    {change(func(p *lz4Parts) { p.content = 1 << 30 }), ErrLZ4, "cannot hold"},
		"content size is monstrous": {change(func(p *lz4Parts) { p.content = -1 }), ErrLZ4, "Content Size 18446744073709551615"},
		"content size a bit off":    {change(func(p *lz4Parts) { p.content-- }), ErrLZ4, "block 2"},
		"content size of nothing":   {change(func(p *lz4Parts) { p.blocks = nil }), ErrLZ4, "cannot hold"},
		"block too large":           {field(full + 1), ErrLZ4, "block 0, byte 15"},
		"block behind the end":      {field(full), ErrTruncated, "block 0"},
		"stored block not full":     {change(func(p *lz4Parts) { p.blocks[0], p.stored = zeros(full-1), true }), errors.ErrUnsupported, "not full"},
		"empty block":               {change(func(p *lz4Parts) { p.blocks[0] = nil }), errors.ErrUnsupported, "not full"},
		"last block":                {flip(-14, 0xff), ErrLZ4, "block 2"},
		"last block's checksum":     {flip(-9, 1), ErrLZ4, "block 2"},
		"second frame's header":     {append(good.bytes(), flip(5, 0x20)...), ErrLZ4, "frame 1"},
		"second frame is legacy":    {append(good.bytes(), 2, 0x21, 0x4c, 0x18), errors.ErrUnsupported, "legacy"},
		"content checksum of nothing": {
			append(lz4Parts{flg: 0x64, bd: 0x40}.bytes()[:11], 1, 2, 3, 4), ErrLZ4, "no content has 0x02cc5d05",
		},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := OpenLZ4(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(c.b), Bytes: int64(len(c.b))}, LZ4Config{})
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "%!")
		})
	}
	for n := range whole { // cut anywhere
		if n < 4 {
			continue
		}
		_, err := OpenLZ4(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(good.bytes()[:n]), Bytes: int64(n)}, LZ4Config{})
		require.ErrorIs(t, err, ErrTruncated, "%d of %d bytes", n, whole)
	}
}

// What opening cannot see fails when it is read, and nothing wrong is delivered before.
func TestLZ4Damage(t *testing.T) {
	const full = 64 << 10
	r := rand.New(rand.NewPCG(3, 1))
	content := make([]byte, 5*full+77) // which compresses: what is stored has a length that all can see
	for i := range content {
		content[i] = byte(r.IntN(5))
	}
	blocks := func(sizes ...int) (b [][]byte) {
		rest := content
		for _, n := range sizes {
			b, rest = append(b, rest[:n]), rest[n:]
		}
		return append(b, rest)
	}
	even := blocks(full, full, full, full, full)
	plain := lz4Parts{flg: 0x60, bd: 0x40, blocks: even}.bytes()
	damage := func(flg byte, at int) []byte {
		b := lz4Parts{flg: flg, bd: 0x40, content: len(content), blocks: even}.bytes()
		if at < 0 {
			at += len(b)
		}
		b[at] ^= 0x10
		return b
	}
	for name, c := range map[string]struct {
		b     []byte
		err   error
		says  string
		feeds bool // only a Feed in order notices
	}{
		"block checksum":                   {damage(0x70, 1000), ErrLZ4, "block checksum", false},
		"content checksum":                 {damage(0x64, -1), ErrLZ4, "content checksum", true},
		"a content that is not its own":    {damage(0x64, len(plain)/2), ErrLZ4, "LZ4 frame 0, block", true},
		"short block, content not stated":  {lz4Parts{flg: 0x60, bd: 0x40, blocks: blocks(full, full-1, full, full, full)}.bytes(), errors.ErrUnsupported, "block 1", false},
		"short block, stated and balanced": {lz4Parts{flg: 0x68, bd: 0x40, content: len(content), blocks: blocks(full, full-1, full, full, full)}.bytes(), nil, "", false},
	} {
		t.Run(name, func(t *testing.T) {
			src := on(t, c.b)
			s, err := OpenLZ4(t.Context(), src, LZ4Config{Workers: 2})
			if c.err == nil {
				require.ErrorContains(t, err, "block 5")
				require.ErrorIs(t, err, ErrLZ4)
				return
			}
			require.NoError(t, err)
			// The damage may lie anywhere: whoever reads behind it gets an error or the right bytes.
			f := newReader(t, r, content)
			f.line(0, int(s.Size()), 10_000)
			f.mayFail = true
			f.damaged = c.feeds
			err = s.Feed(t.Context(), f)
			require.ErrorIs(t, err, c.err)
			require.ErrorContains(t, err, c.says)
			f.finished()
			require.Zero(t, s.Stats().ContentVerified)
			if c.feeds {
				return
			}
			for range 2 {
				p := make([]byte, 50)
				_, err = s.ReadAt(p, s.Size()-100)
				if name == "block checksum" {
					break // of another block
				}
				require.ErrorIs(t, err, c.err)
			}
			last := newReader(t, r, content)
			last.mayFail = true
			last.add(len(content)-200, 100)
			if err := s.Feed(t.Context(), last); name != "block checksum" {
				require.ErrorIs(t, err, c.err)
			}
			last.finished()
		})
	}
}

// Behind the frames and before the end of the source may be anything; a source larger than any index is refused in time.
func TestLZ4Bounds(t *testing.T) {
	many := bytes.Repeat(lz4Parts{flg: 0x60, bd: 0x40}.bytes(), lz4MaxFrames+1)
	_, err := OpenLZ4(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(many), Bytes: int64(len(many))}, LZ4Config{})
	require.ErrorContains(t, err, "more than 65536 frames")

	tiny := bytes.Repeat([]byte{1, 0, 0, 0, 0}, 100)
	b := append(lz4Parts{flg: 0x60, bd: 0x40}.bytes()[:7], tiny...)
	_, err = OpenLZ4(t.Context(), &ReaderSource{ReaderAt: bytes.NewReader(b), Bytes: int64(len(b))}, LZ4Config{})
	require.ErrorContains(t, err, "not full")

	good := on(t, frame(t, make([]byte, 1000)))
	for _, c := range []struct {
		cfg  LZ4Config
		src  Source
		says string
	}{
		{LZ4Config{Workers: -1}, good, "-1 workers"},
		{LZ4Config{Memory: -1}, good, "-1 bytes"},
		{LZ4Config{Workers: 3, Memory: 1 << 20}, good, "3 workers on blocks of 4194304 bytes need 29"},
		{LZ4Config{}, &device{}, "blocks of 0 bytes"},
		{LZ4Config{}, &device{t: t, data: good.data, block: 512, maxIO: 100}, "cannot hold a block of 512"},
	} {
		_, err := OpenLZ4(t.Context(), c.src, c.cfg)
		require.ErrorContains(t, err, c.says)
	}

	s, err := OpenLZ4(t.Context(), good, LZ4Config{})
	require.NoError(t, err)
	_, err = s.ReadAt(make([]byte, 1), -1)
	require.ErrorContains(t, err, "before the start")
	_, err = s.ReadAt(make([]byte, 1), 1<<62)
	require.Equal(t, io.EOF, err)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCause)
	_, err = OpenLZ4(ctx, good, LZ4Config{})
	require.ErrorIs(t, err, errCause)
	require.ErrorIs(t, s.Feed(ctx, newReader(t, nil, nil)), errCause)
}

func TestXXH32(t *testing.T) {
	for text, want := range map[string]uint32{
		"": 0x02cc5d05, "a": 0x550d7456, "abc": 0x32d153ff, "Nobody inspects the spammish repetition": 0xe2293b2f,
	} {
		require.Equal(t, want, xxh32Of([]byte(text)), text)
	}
	r := rand.New(rand.NewPCG(4, 1))
	b := someBytes(r, 5000)
	for range 100 {
		h := newXXH32()
		n := r.IntN(len(b))
		for rest := b[:n]; len(rest) > 0; {
			k := 1 + r.IntN(min(40, len(rest)))
			h.write(rest[:k])
			rest = rest[k:]
		}
		require.Equal(t, xxh32Of(b[:n]), h.sum())
	}
}

// The loader works on it as on anything else, over a network, too.
func TestLZ4Shard(t *testing.T) {
	shard := randomShard(t, "x", 5000, 0, 3<<20, 1, 70000, 2<<20)
	clear(shard[1<<20 : 2<<20]) // so that some of it compresses
	framed := frame(t, shard, lz4.BlockSizeOption(lz4.Block256Kb), lz4.SizeOption(uint64(len(shard))))
	require.Less(t, len(framed), len(shard)-(900<<10))
	target, srcs := connect(t, nvmetest.ModeNVMET, 4096, framed)
	src, err := OpenLZ4(t.Context(), srcs[0], LZ4Config{Workers: 2})
	require.NoError(t, err)
	s, err := OpenShard(t.Context(), src)
	require.NoError(t, err)
	l := &Loader{Pool: newPool(t, 6, 256<<10)}
	plan := s.Plan()
	for _, shuffled := range []bool{false, true} {
		if shuffled {
			plan[0], plan[5] = plan[5], plan[0]
		}
		n := 0
		for x, err := range l.Stream(t.Context(), plan, Host{}) {
			require.NoError(t, err)
			require.True(t, bytes.Equal(shard[s.DataOffset+x.Begin:s.DataOffset+x.End], x.Memory.Bytes()), x.Name)
			x.Release()
			n++
		}
		require.Equal(t, 6, n)
	}
	st := src.Stats()
	require.EqualValues(t, 1, st.ContentVerified)
	require.EqualValues(t, 1, st.ContentUnverified)
	require.NotEmpty(t, st.Bound())
	require.Contains(t, st.String(), "bound by "+st.Bound())
	require.Empty(t, target.Violations())
}

func ExampleOpenLZ4() {
	ctx := context.Background()
	// A shard in an LZ4 frame, as `lz4 -B7 -BI --content-size` would write it.
	shard := bytes.Repeat([]byte("weights "), 1<<20)
	var file bytes.Buffer
	w := lz4.NewWriter(&file)
	if err := w.Apply(lz4.BlockSizeOption(lz4.Block4Mb), lz4.SizeOption(uint64(len(shard)))); err != nil {
		panic(err)
	}
	if _, err := w.Write(shard); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}

	below := &ReaderSource{ReaderAt: bytes.NewReader(file.Bytes()), Bytes: int64(file.Len())} // or a namespace
	src, err := OpenLZ4(ctx, below, LZ4Config{})
	if err != nil {
		panic(err)
	}
	p := make([]byte, 7)
	_, err = src.ReadAt(p, 8_000_000)
	fmt.Println(src.Size(), string(p), err)
	// Output: 8388608 weights <nil>
}

// slow is a source on which each ReadAt takes a while. It knows how many there were at most at a time.
type slow struct {
	*device

	now, most atomic.Int64
}

func (s *slow) ReadAt(p []byte, off int64) (int, error) {
	n := s.now.Add(1)
	for m := s.most.Load(); n > m && !s.most.CompareAndSwap(m, n); m = s.most.Load() {
	}
	time.Sleep(time.Millisecond)
	defer s.now.Add(-1)
	return s.device.ReadAt(p, off)
}

// Where blocks are stored, their sizes are found several at a time, and about one read is needed for each; where they are
// not, nothing is read in vain.
func TestLZ4Index(t *testing.T) {
	const full, blocks = 64 << 10, 200
	noise := make([]byte, blocks*full+9)
	rand.NewChaCha8([32]byte{9}).Read(noise)
	mixed := bytes.Clone(noise)
	for i := range mixed {
		if i/full%8 > 3 {
			mixed[i] = byte(i >> 4)
		}
	}
	for name, c := range map[string]struct {
		content   []byte
		together  bool
		readsMost int64
	}{
		"noise":        {noise, true, blocks + 40},
		"mixed":        {mixed, true, 2 * blocks},
		"compressible": {make([]byte, len(noise)), false, 20},
	} {
		t.Run(name, func(t *testing.T) {
			for _, sums := range []bool{false, true} {
				src := &slow{device: on(t, frame(t, c.content, lz4.BlockSizeOption(lz4.Block64Kb), lz4.BlockChecksumOption(sums)))}
				s, err := OpenLZ4(t.Context(), src, LZ4Config{})
				require.NoError(t, err)
				st := s.Stats()
				require.Equal(t, blocks+1, st.Blocks)
				require.LessOrEqual(t, st.IndexReads, c.readsMost)
				require.Equal(t, c.together, src.most.Load() > 1)
				got := make([]byte, len(c.content))
				_, err = s.ReadAt(got, 0)
				require.NoError(t, err)
				require.True(t, bytes.Equal(c.content, got))
			}
		})
	}
}

// By default blocks of any size can be decoded, however many CPUs there are: fewer workers run where memory is short.
func TestLZ4DefaultWorkersFit(t *testing.T) {
	content := someBytes(rand.New(rand.NewPCG(1, 2)), 9<<20)
	file := frame(t, content, lz4.BlockSizeOption(lz4.Block4Mb), lz4.SizeOption(uint64(len(content))))
	for _, cpus := range []int{1, 16, 64} {
		was := runtime.GOMAXPROCS(cpus)
		s, err := OpenLZ4(t.Context(), on(t, file), LZ4Config{})
		runtime.GOMAXPROCS(was)
		require.NoError(t, err, "%d CPUs", cpus)
		got := make([]byte, len(content))
		_, err = s.ReadAt(got, 0)
		require.NoError(t, err)
		require.True(t, bytes.Equal(content, got))
	}
	_, err := OpenLZ4(t.Context(), on(t, file), LZ4Config{Workers: 8}) // asked for, so not reduced
	require.ErrorContains(t, err, "8 workers")
}
