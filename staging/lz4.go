package staging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"slices"
	"sort"
	"sync"
	"time"
)

// DefaultLZ4Memory is the default of [LZ4Config].Memory.
const DefaultLZ4Memory = 48 << 20

// LZ4Config configures [OpenLZ4]. The zero value works.
type LZ4Config struct {
	// Workers is the number of goroutines on which a Feed decodes. 0 means half of the CPUs that Go uses, at least 1 and
	// at most 8, and no more than Memory has room for: the other half belongs to the queues.
	Workers int
	// Memory bounds what one Feed takes for compressed and decoded blocks, in bytes. 0 means 48 MiB. It
	// has to hold 4 + Workers buffers, each a little larger than a block of the frame, which has at most 4 MiB. ReadAt takes up to two blocks besides.
	Memory int64
}

// LZ4Source is a [Source] that presents the decompressed bytes of the LZ4 frames on another. Whatever reads shards works on
// it as on an uncompressed one. All methods are safe for concurrent use.
//
// Feed is made for whole loads: it reads ahead of the decoders through the Feed of the source below, and decodes several
// blocks at once, into the reader's buffer where that takes the whole block. ReadAt reads and decodes on the caller's
// goroutine, keeps the last block, and lets one caller in at a time.
type LZ4Source struct {
	src     Source
	workers int
	memory  int64
	frames  []*lz4Frame // with content
	all     int         // frames
	size    int64
	stats   lz4Counters

	mu    sync.Mutex // of ReadAt
	frame *lz4Frame  // the block in data, or nil
	block int
	in    []byte
	data  []byte
}

var _ Source = (*LZ4Source)(nil)

// OpenLZ4 opens the LZ4 frames at the start of src, which may go on behind them, as a namespace does. Frames that follow
// each other are one content, and skippable ones are skipped.
//
// Opening finds all blocks: it follows the chain of their sizes, one small read per block, and decodes the last block of
// each frame. For 16 GiB in blocks of 4 MiB that is 4096 reads; small blocks make it slow. Block checksums are always
// verified. The content checksum is where a Feed has read a frame in order, see [LZ4Stats].
//
// Everything that
//
//	lz4 -B7 -BI -BX --content-size model.safetensors
//
// writes can be read, and the lz4 program's default is the same but without checksums of blocks and the content size. Without the latter, the place of a
// block is certain only when all blocks before it have been decoded, so that reads far behind the last one have those read
// and decoded, too: in file order it costs nothing. In Go, the Writer of github.com/pierrec/lz4/v4 does with
// Apply(lz4.SizeOption(size)).
//
// Not read, with an error that matches [errors.ErrUnsupported] and says what to do: blocks that depend on each other (-BD), blocks
// other than the last of a frame that are not full (a writer that was flushed), dictionaries, the legacy format. Other
// errors match [ErrNotShard], [ErrLZ4] or [ErrTruncated], or are the source's own.
func OpenLZ4(ctx context.Context, src Source, cfg LZ4Config) (*LZ4Source, error) {
	if b := src.BlockSize(); b <= 0 || b > 1<<20 || src.MaxIO() < 0 {
		return nil, fmt.Errorf("staging: source with blocks of %d bytes and reads of %d", b, src.MaxIO())
	}
	if cfg.Workers < 0 || cfg.Workers > 1024 || cfg.Memory < 0 {
		return nil, fmt.Errorf("staging: LZ4 with %d workers and %d bytes of memory", cfg.Workers, cfg.Memory)
	}
	s := &LZ4Source{src: src, workers: cfg.Workers, memory: cfg.Memory}
	if s.workers == 0 {
		s.workers = min(max(runtime.GOMAXPROCS(0)/2, 1), 8)
	}
	if s.memory == 0 {
		s.memory = DefaultLZ4Memory
	}
	begun := time.Now()
	w := &lz4Walker{ctx: ctx, src: src, size: src.Size()}
	frames, err := w.frames()
	if err != nil {
		return nil, err
	}
	s.all = len(frames)
	for _, f := range frames {
		f.dst = s.size
		if err := s.measure(ctx, f); err != nil {
			return nil, err
		}
		if s.size += f.size; f.size > 0 {
			s.frames = append(s.frames, f)
		}
	}
	s.stats.indexReads.Store(w.reads)
	s.stats.indexTime.Store(int64(time.Since(begun)))
	_, err = s.layout()
	for cfg.Workers == 0 && err != nil && s.workers > 1 { // it may be that fewer fit
		s.workers--
		_, err = s.layout()
	}
	if err != nil {
		return nil, err
	}
	return s, nil
}

// measure finds the size of a frame's content by that of its last block.
func (s *LZ4Source) measure(ctx context.Context, f *lz4Frame) error {
	last := len(f.blocks) - 1
	if last < 0 {
		return nil
	}
	full := int64(last) * f.blockMax
	var n int64
	if b := &f.blocks[last]; b.stored() {
		n = b.size()
	} else {
		in, err := s.compressed(ctx, f, last)
		if err != nil {
			return err
		}
		s.data = slices.Grow(s.data[:0], int(f.blockMax))[:f.blockMax]
		got, err := f.decode(last, in, s.data)
		if err != nil {
			return err
		}
		s.frame, s.block, s.data = f, last, s.data[:got]
		n = int64(got)
	}
	f.size = full + n
	if f.stated {
		if f.size != f.content {
			return f.fail(last, fmt.Errorf("%w: the last block has %d bytes, the Content Size %d asks for %d", ErrLZ4, n, f.content, f.content-full))
		}
		f.sure.Store(int64(last) + 1)
	}
	f.passStored()
	return nil
}

// compressed reads block k, with its checksum. The caller holds mu, or is alone.
func (s *LZ4Source) compressed(ctx context.Context, f *lz4Frame, k int) ([]byte, error) {
	start, end := f.span(k)
	s.in = slices.Grow(s.in[:0], int(end-start))[:end-start]
	if err := readFull(ctx, s.src, s.in, start, ""); err != nil {
		return nil, f.fail(k, err)
	}
	s.stats.compressed.Add(end - start)
	return s.in, nil
}

// load brings block k to data. The caller holds mu.
func (s *LZ4Source) load(ctx context.Context, f *lz4Frame, k int) error {
	if s.frame == f && s.block == k {
		return nil
	}
	in, err := s.compressed(ctx, f, k)
	if err != nil {
		return err
	}
	s.frame = nil
	n := f.length(k)
	s.data = slices.Grow(s.data[:0], n)[:n]
	if err := f.fill(k, in, s.data); err != nil {
		return err
	}
	f.settled(k)
	s.frame, s.block = f, k
	return nil
}

// locate finds the frame and the block that hold the byte at off, which is inside the source.
func (s *LZ4Source) locate(off int64) (f *lz4Frame, k int) {
	i := sort.Search(len(s.frames), func(i int) bool { return s.frames[i].dst > off }) - 1
	f = s.frames[i]
	return f, int((off - f.dst) / f.blockMax)
}

// Size is the number of decompressed bytes.
func (s *LZ4Source) Size() int64 { return s.size }

// BlockSize is 1: reads may begin and end anywhere.
func (s *LZ4Source) BlockSize() int { return 1 }

// MaxIO is 0: there is no limit.
func (s *LZ4Source) MaxIO() int { return 0 }

// ReadAt reads decompressed bytes as [io.ReaderAt] has it.
func (s *LZ4Source) ReadAt(p []byte, off int64) (int, error) {
	return s.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt that ends early when ctx does.
func (s *LZ4Source) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	if off < 0 {
		return 0, fmt.Errorf("staging: LZ4: read at %d, before the start", off)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	done := 0
	for done < len(p) {
		at := off + int64(done)
		if at >= s.size || at < 0 {
			return done, io.EOF
		}
		f, k := s.locate(at)
		for sure := int(f.sure.Load()); sure < k; sure = int(f.sure.Load()) {
			if err := s.load(ctx, f, sure); err != nil {
				return done, err
			}
			f.settled(sure) // also when it was loaded already
		}
		if err := s.load(ctx, f, k); err != nil {
			return done, err
		}
		n := copy(p[done:], s.data[at-f.dst-int64(k)*f.blockMax:])
		s.stats.bytes.Add(int64(n))
		done += n
	}
	return done, nil
}

// lz4Layout is how a Feed divides its memory: in buffers that hold any block with its checksum and its neighbours in the
// source's first and last block.
type lz4Layout struct {
	buffer  int   // bytes
	in, out int   // buffers for compressed and for decoded blocks
	chunk   int64 // longest read, whole blocks of the source
}

func (s *LZ4Source) layout() (l lz4Layout, err error) {
	const page = 4096
	block := int64(s.src.BlockSize())
	most := int64(0)
	for _, f := range s.frames {
		most = max(most, f.blockMax)
	}
	l.buffer = int((most + 4 + 2*block + page - 1) / page * page)
	l.out = s.workers + 2
	l.in = int(min(s.memory/int64(l.buffer), 1<<16)) - l.out
	if l.in < 2 {
		return l, fmt.Errorf("staging: LZ4: %d workers on blocks of %d bytes need %d bytes of memory, %d are allowed", s.workers, most, (l.out+2)*l.buffer, s.memory)
	}
	l.chunk = 1 << 20
	if m := int64(s.src.MaxIO()); m > 0 {
		l.chunk = min(l.chunk, m)
	}
	if l.chunk -= l.chunk % block; l.chunk == 0 {
		return l, fmt.Errorf("staging: LZ4: reads of at most %d bytes cannot hold a block of %d of the source", s.src.MaxIO(), block)
	}
	return l, nil
}

var errLZ4ReadOnly = errors.New("staging: an LZ4 source cannot be written")
