package staging

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/pierrec/lz4/v4"
)

// The magic numbers of the LZ4 frame format, little-endian.
const (
	lz4Frames    = 0x184D2204
	lz4Skippable = 0x184D2A50 // and the 15 after it
	lz4Legacy    = 0x184C2102
)

// Bounds on what an index may hold, whatever the source says: 4 Mi blocks are 16 TiB in blocks of 4 MiB.
const (
	lz4MaxFrames = 1 << 16
	lz4MaxBlocks = 1 << 22
)

const lz4Stored = 1 << 31 // in a Block Size: the data is not compressed

const lz4Advice = "write it with lz4 -B7 -BI --content-size"

// ErrLZ4 is a frame that breaks a rule of the LZ4 frame format, or data that does not match its checksum.
var ErrLZ4 = errors.New("corrupt LZ4 frame")

// LZ4Error says where in an LZ4 source something is wrong. It unwraps to [ErrLZ4], [ErrTruncated], [errors.ErrUnsupported]
// for what the format allows and this package does not read, or the error of the source below.
type LZ4Error struct {
	Frame int   // counted from 0, skippable frames included
	Block int   // counted from 0 in its frame; -1 when it is not about a block
	Off   int64 // bytes, on the source of the compressed bytes
	Err   error
}

func (e *LZ4Error) Error() string {
	if e.Block < 0 {
		return fmt.Sprintf("staging: LZ4 frame %d, byte %d of its source: %v", e.Frame, e.Off, e.Err)
	}
	return fmt.Sprintf("staging: LZ4 frame %d, block %d, byte %d of its source: %v", e.Frame, e.Block, e.Off, e.Err)
}

func (e *LZ4Error) Unwrap() error { return e.Err }

// lz4Descriptor is the Frame Descriptor.
type lz4Descriptor struct {
	blockMax   int64 // Block MaxSize
	blockSums  bool  // B.Checksum
	contentSum bool  // C.Checksum
	stated     bool  // C.Size
	content    int64 // Content Size
}

// lz4DescriptorLen is the length of the descriptor that begins with flg.
func lz4DescriptorLen(flg byte) int {
	n := 3
	if flg&(1<<3) != 0 {
		n += 8
	}
	if flg&1 != 0 {
		n += 4
	}
	return n
}

// parseLZ4Descriptor parses the lz4DescriptorLen(b[0]) bytes of b.
func parseLZ4Descriptor(b []byte) (d lz4Descriptor, err error) {
	flg, bd := b[0], b[1]
	if v := flg >> 6; v != 1 {
		return d, fmt.Errorf("%w: version %d, only 1 is known", ErrLZ4, v)
	}
	if flg&(1<<1) != 0 || bd&0x8f != 0 {
		return d, fmt.Errorf("%w: reserved bits are set: FLG %#02x, BD %#02x", ErrLZ4, flg, bd)
	}
	last := len(b) - 1
	if hc := byte(xxh32Of(b[:last]) >> 8); hc != b[last] {
		return d, fmt.Errorf("%w: header checksum %#02x, the header has %#02x", ErrLZ4, b[last], hc)
	}
	size := bd >> 4
	if size < 4 {
		return d, fmt.Errorf("%w: Block MaxSize %d, want 4 to 7", ErrLZ4, size)
	}
	d.blockMax = 1 << (8 + 2*size)
	d.blockSums = flg&(1<<4) != 0
	d.contentSum = flg&(1<<2) != 0
	if d.stated = flg&(1<<3) != 0; d.stated {
		c := binary.LittleEndian.Uint64(b[2:])
		if c > lz4MaxBlocks*uint64(d.blockMax) {
			return d, fmt.Errorf("%w: Content Size %d, at most %d blocks of %d bytes are read here", ErrLZ4, c, lz4MaxBlocks, d.blockMax)
		}
		d.content = int64(c)
	}
	switch {
	case flg&1 != 0:
		return d, fmt.Errorf("%w: it needs a dictionary: %s and without -D", errors.ErrUnsupported, lz4Advice)
	case flg&(1<<5) == 0:
		return d, fmt.Errorf("%w: its blocks depend on each other, so that they cannot be decoded in parallel: %s", errors.ErrUnsupported, lz4Advice)
	}
	return d, nil
}

// lz4Frame is one frame and the index of its blocks. All blocks but the last hold blockMax bytes; a frame where that is
// not so is refused as soon as it is seen.
//
// Where a frame states its content size, the lengths of that and of the last block prove it. Where it does not, block k
// is known to be where the index says only when all before it have been decoded. sure is how many blocks that holds for.
type lz4Frame struct {
	lz4Descriptor

	number int
	dst    int64 // where its content begins
	size   int64 // of its content
	blocks []lz4Block
	sum    uint32 // Content Checksum
	sure   atomic.Int64
}

// lz4Block is one data block.
type lz4Block struct {
	src   int64  // where its data begins
	field uint32 // its Block Size
}

func (b *lz4Block) stored() bool { return b.field&lz4Stored != 0 }
func (b *lz4Block) size() int64  { return int64(b.field &^ lz4Stored) }

// span is the bytes of block k on the source, with its checksum.
func (f *lz4Frame) span(k int) (start, end int64) {
	b := &f.blocks[k]
	start, end = b.src, b.src+b.size()
	if f.blockSums {
		end += 4
	}
	return start, end
}

// length is the number of bytes that block k holds.
func (f *lz4Frame) length(k int) int {
	return int(min(f.blockMax, f.size-int64(k)*f.blockMax))
}

func (f *lz4Frame) fail(k int, err error) error {
	return &LZ4Error{Frame: f.number, Block: k, Off: f.blocks[k].src, Err: err}
}

// check compares the data of block k with its checksum, and returns it without that.
func (f *lz4Frame) check(k int, in []byte) ([]byte, error) {
	if !f.blockSums {
		return in, nil
	}
	n := len(in) - 4
	if want, sum := binary.LittleEndian.Uint32(in[n:]), xxh32Of(in[:n]); sum != want {
		return nil, f.fail(k, fmt.Errorf("%w: block checksum %#08x, the data has %#08x", ErrLZ4, want, sum))
	}
	return in[:n], nil
}

// decode verifies block k and decodes it into dst, which is large enough for what it may hold.
func (f *lz4Frame) decode(k int, in, dst []byte) (int, error) {
	in, err := f.check(k, in)
	if err != nil {
		return 0, err
	}
	if f.blocks[k].stored() {
		return copy(dst, in), nil
	}
	n, err := lz4.UncompressBlock(in, dst)
	if err != nil {
		return 0, f.fail(k, fmt.Errorf("%w: the data does not decode to at most %d bytes: %w", ErrLZ4, len(dst), err))
	}
	return n, nil
}

// fill is decode where the length is known: that of dst.
func (f *lz4Frame) fill(k int, in, dst []byte) error {
	n, err := f.decode(k, in, dst)
	switch {
	case err != nil || n == len(dst):
		return err
	case k < len(f.blocks)-1:
		return f.fail(k, fmt.Errorf("%w: a block of %d bytes, where all but the last must be full (%d): %s, from a file", errors.ErrUnsupported, n, len(dst), lz4Advice))
	}
	return f.fail(k, fmt.Errorf("%w: the last block has %d bytes now, %d when it was read first", ErrLZ4, n, len(dst)))
}

// settled notes that block k has been decoded.
func (f *lz4Frame) settled(k int) {
	if f.sure.CompareAndSwap(int64(k), int64(k)+1) {
		f.passStored()
	}
}

// passStored moves sure over blocks whose length needs no decoding.
func (f *lz4Frame) passStored() {
	for k := f.sure.Load(); k < int64(len(f.blocks)) && f.blocks[k].stored(); k++ {
		f.sure.CompareAndSwap(k, k+1)
	}
}

// lz4Walker finds the frames and blocks on a source by following the chain of sizes, one small read for each that lies
// beyond the read before. Weights hardly compress, so that most blocks are stored, and of one size: the more of these have
// followed each other, the more of the next ones' sizes are read at once, where they will be if it goes on like this.
type lz4Walker struct {
	ctx    context.Context
	src    Source
	size   int64
	frame  int // the number of the next frame
	blocks int
	reads  int64

	window []byte
	at     int64 // of the window
	run    int   // full stored blocks in a row
	ahead  []lz4Ahead
}

// lz4Ahead is a window that was read ahead, in case.
type lz4Ahead struct {
	at     int64
	window []byte
}

// bytes returns n bytes at off, few enough for the window. They are valid until the next call.
func (w *lz4Walker) bytes(off int64, n int) ([]byte, error) {
	if off > w.size-int64(n) {
		return nil, ErrTruncated
	}
	if i := off - w.at; i >= 0 && i+int64(n) <= int64(len(w.window)) {
		return w.window[i : i+int64(n)], nil
	}
	for len(w.ahead) > 0 && w.ahead[0].at <= off {
		w.at, w.window, w.ahead = w.ahead[0].at, w.ahead[0].window, w.ahead[1:]
		if i := off - w.at; i+int64(n) <= int64(len(w.window)) {
			return w.window[i : i+int64(n)], nil
		}
	}
	var end int64
	w.at, end = w.pages(off, n)
	w.window = make([]byte, end-w.at)
	w.reads++
	if err := readFull(w.ctx, w.src, w.window, w.at, ""); err != nil {
		w.window = nil
		return nil, err
	}
	i := off - w.at
	return w.window[i : i+int64(n)], nil
}

// pages is the part of the source to be read for n bytes at off.
func (w *lz4Walker) pages(off int64, n int) (start, end int64) {
	const page = 4096
	return off - off%page, min((off+int64(n)+page-1)/page*page, w.size)
}

// guess reads ahead at off and every stride after it. What fails is read again if it is needed.
func (w *lz4Walker) guess(off, stride int64) {
	const most = 32
	if len(w.ahead) > 0 || w.run < 2 {
		return
	}
	var wg sync.WaitGroup
	for ; off <= w.size-4 && len(w.ahead) < min(w.run, most); off += stride {
		start, end := w.pages(off, 4)
		w.ahead = append(w.ahead, lz4Ahead{start, make([]byte, end-start)})
	}
	for i := range w.ahead {
		a := &w.ahead[i]
		wg.Go(func() {
			if readFull(w.ctx, w.src, a.window, a.at, "") != nil {
				a.window = nil
			}
		})
	}
	wg.Wait()
	w.reads += int64(len(w.ahead))
}

func (w *lz4Walker) number(off int64) (uint32, error) {
	b, err := w.bytes(off, 4)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// frames finds all frames that follow each other from the source's start. What comes after the last one does not matter,
// as long as it does not begin as a frame.
func (w *lz4Walker) frames() (frames []*lz4Frame, err error) {
	for off := int64(0); ; w.frame++ {
		fail := func(err error) error { return &LZ4Error{Frame: w.frame, Block: -1, Off: off, Err: err} }
		if w.size-off < 4 {
			break
		}
		magic, err := w.number(off)
		if err != nil {
			return nil, fail(err)
		}
		if magic == lz4Legacy {
			return nil, fail(fmt.Errorf("%w: a frame of the legacy format: %s", errors.ErrUnsupported, lz4Advice))
		}
		skippable := magic&^0xf == lz4Skippable
		if magic != lz4Frames && !skippable {
			break
		}
		if w.frame == lz4MaxFrames {
			return nil, fail(fmt.Errorf("%w: more than %d frames", errors.ErrUnsupported, lz4MaxFrames))
		}
		if skippable {
			n, err := w.number(off + 4)
			if err == nil && int64(n) > w.size-off-8 {
				err = ErrTruncated
			}
			if err != nil {
				return nil, fail(err)
			}
			off += 8 + int64(n)
			continue
		}
		f := &lz4Frame{number: w.frame}
		if off, err = w.one(f, off); err != nil {
			return nil, err
		}
		frames = append(frames, f)
	}
	if len(frames) == 0 {
		return nil, fmt.Errorf("staging: %w: no LZ4 frame at the start of the source", ErrNotShard)
	}
	return frames, nil
}

// one indexes the frame at off, and returns where it ends.
func (w *lz4Walker) one(f *lz4Frame, off int64) (end int64, err error) {
	fail := func(err error) error { return &LZ4Error{Frame: f.number, Block: -1, Off: off, Err: err} }
	b, err := w.bytes(off+4, 1)
	if err == nil {
		b, err = w.bytes(off+4, lz4DescriptorLen(b[0]))
	}
	if err == nil {
		f.lz4Descriptor, err = parseLZ4Descriptor(b)
	}
	if err != nil {
		return 0, fail(err)
	}
	off += 4 + int64(len(b))
	for {
		field, err := w.number(off)
		if err != nil {
			return 0, fail(err)
		}
		off += 4
		if field == 0 {
			break
		}
		if err := w.block(f, lz4Block{src: off, field: field}); err != nil {
			return 0, &LZ4Error{Frame: f.number, Block: len(f.blocks), Off: off - 4, Err: err}
		}
		start, end := f.span(len(f.blocks) - 1)
		if off = end; field == lz4Stored|uint32(f.blockMax) {
			w.run++
			w.guess(off, 4+end-start)
		} else {
			w.run = 0
		}
	}
	if f.contentSum {
		if f.sum, err = w.number(off); err != nil {
			return 0, fail(err)
		}
		if sum := newXXH32().sum(); len(f.blocks) == 0 && f.sum != sum {
			return 0, fail(fmt.Errorf("%w: content checksum %#08x, no content has %#08x", ErrLZ4, f.sum, sum))
		}
		off += 4
	}
	if n := int64(len(f.blocks)); f.stated && (f.content > n*f.blockMax || f.content < (n-1)*f.blockMax) {
		return 0, fail(fmt.Errorf("%w: %d blocks of %d bytes cannot hold a Content Size of %d", ErrLZ4, n, f.blockMax, f.content))
	}
	return off, nil
}

// block appends b to the index of f.
func (w *lz4Walker) block(f *lz4Frame, b lz4Block) error {
	if b.size() > f.blockMax {
		return fmt.Errorf("%w: Block Size %d is more than the maximum %d", ErrLZ4, b.size(), f.blockMax)
	}
	// The block before is not the last one, so it must be full. (A byte of compressed data makes at most 255.)
	if n := len(f.blocks); n > 0 {
		p := &f.blocks[n-1]
		if p.stored() && p.size() < f.blockMax || p.size()*255 < f.blockMax {
			return fmt.Errorf("%w: the block before is not full, as all but the last must be (%d bytes): %s, from a file", errors.ErrUnsupported, f.blockMax, lz4Advice)
		}
	}
	if w.blocks++; w.blocks > lz4MaxBlocks {
		return fmt.Errorf("%w: more than %d blocks", errors.ErrUnsupported, lz4MaxBlocks)
	}
	f.blocks = append(f.blocks, b)
	if _, end := f.span(len(f.blocks) - 1); end > w.size {
		f.blocks = f.blocks[:len(f.blocks)-1]
		return ErrTruncated
	}
	return nil
}
