package staging

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"slices"
	"strings"
	"unicode/utf8"
)

// GGUF is the header of a GGUF file, of version 2 or 3 and little-endian: valid as read by [ReadGGUF] or as laid out by [NewGGUF].
//
// Shapes are as everywhere in this package, the slowest dimension first: in the reverse of the file's order.
type GGUF struct {
	// Header is where the tensors are. Size includes the padding behind the last one, as far as the source has it.
	*Header

	Version uint32
	// Alignment is what the beginning of the data and of each tensor is a multiple of, in bytes: general.alignment.
	Alignment uint32
	// Metadata is the key-value pairs in the order of the file.
	Metadata []GGUFPair

	keys map[string]int
}

// GGUFPair is one pair of metadata. Value is a uint8, int8, uint16, int16, uint32, int32, float32, bool, string, uint64, int64 or float64, or
// a slice of one of these for an array, or []any for an array of arrays.
type GGUFPair struct {
	Key   string
	Value any
}

// Value is the value of a key, nil if there is none.
func (g *GGUF) Value(key string) any {
	i, ok := g.keys[key]
	if !ok {
		return nil
	}
	return g.Metadata[i].Value
}

// Int is the value of a key that holds an integer of any type: writers differ in which they take. ok is false if there is none, or it is
// above the largest int64.
func (g *GGUF) Int(key string) (v int64, ok bool) {
	switch v := g.Value(key).(type) {
	case uint8:
		return int64(v), true
	case int8:
		return int64(v), true
	case uint16:
		return int64(v), true
	case int16:
		return int64(v), true
	case uint32:
		return int64(v), true
	case int32:
		return int64(v), true
	case uint64:
		return int64(v), v <= math.MaxInt64
	case int64:
		return v, true
	}
	return 0, false
}

const (
	ggufMagic     = "GGUF"
	ggufMagicBig  = "FUGG"
	ggufAlignment = 32 // where general.alignment is not given
	maxGGUFRank   = 4  // GGML_MAX_DIMS
	maxGGUFKey    = 1<<16 - 1
	// maxGGUFName is the longest name of a tensor: GGML has 63 bytes, or 127 as stable-diffusion.cpp builds it.
	maxGGUFName = 127
	// maxGGUFDepth bounds arrays in arrays. GGML has no reader for any.
	maxGGUFDepth = 8

	alignmentKey = "general.alignment"
)

// The types of values (gguf_metadata_value_type).
const (
	ggufUint8 = iota
	ggufInt8
	ggufUint16
	ggufInt16
	ggufUint32
	ggufInt32
	ggufFloat32
	ggufBool
	ggufString
	ggufArray
	ggufUint64
	ggufInt64
	ggufFloat64
)

// ReadGGUF reads and validates the GGUF header at the start of r, which holds size bytes. It reads little more than the header, and at most
// [MaxHeader] bytes. Errors match [ErrNotShard], [ErrHeader], [ErrTruncated] or [ErrTrailing].
//
// What GGML refuses is refused, too, but for two things which the format's text allows: tensors whose data is not in the order of the table,
// or has more than padding between it; and arrays of arrays. Also refused are names that are not UTF-8 or have a NUL, and bools above 1.
func ReadGGUF(ctx context.Context, r io.ReaderAt, size int64, trailing Trailing) (*GGUF, error) {
	first, err := readStart(ctx, r, size)
	if err != nil {
		return nil, err
	}
	return readGGUF(ctx, r, size, trailing, first)
}

// readGGUF is ReadGGUF with what readStart has read.
func readGGUF(ctx context.Context, r io.ReaderAt, size int64, trailing Trailing, first []byte) (*GGUF, error) {
	rest := &rangeReader{ctx: ctx, r: r, off: int64(len(first)), end: size}
	return parseGGUF(io.MultiReader(bytes.NewReader(first), rest), size, trailing)
}

// rangeReader reads a part of r, as long as ctx lasts.
type rangeReader struct {
	ctx      context.Context
	r        io.ReaderAt
	off, end int64
}

func (r *rangeReader) Read(p []byte) (int, error) {
	p = p[:min(int64(len(p)), r.end-r.off)]
	if len(p) == 0 {
		return 0, io.EOF
	}
	if err := readFull(r.ctx, r.r, p, r.off, shardHeader); err != nil {
		return 0, err
	}
	r.off += int64(len(p))
	return len(p), nil
}

// parseGGUF reads a header from a source of size bytes.
func parseGGUF(r io.Reader, size int64, trailing Trailing) (*GGUF, error) {
	c := &ggufScanner{r: bufio.NewReaderSize(r, int(min(max(size, minGGUFBuffer), maxGGUFBuffer))), size: size}
	g := c.header()
	if c.err != nil {
		return nil, c.err
	}
	if err := g.checkTrailing(size, trailing); err != nil {
		return nil, err
	}
	return g, nil
}

// Sizes of the scanner's buffer, in bytes: what is taken at once fits, and a header of many MB needs few reads.
const (
	minGGUFBuffer = 4 << 10
	maxGGUFBuffer = 1 << 20
)

// ggufScanner takes a header apart. After the first error it gives zeros. Nothing is allocated for a count or a length before there are as
// many bytes left, and only what takes all of these bytes is allocated at once: so memory is in proportion to the bytes that have been read.
type ggufScanner struct {
	r    *bufio.Reader
	pos  int64 // of the next byte
	size int64 // of the source
	err  error // the first one
}

func (c *ggufScanner) fail(format string, args ...any) {
	if c.err == nil {
		c.err = fmt.Errorf("%w: byte %d: %s", ErrHeader, c.pos, fmt.Sprintf(format, args...))
	}
}

// in says where in the header an error came up.
func (c *ggufScanner) in(what, name string) {
	if c.err != nil {
		c.err = fmt.Errorf("%s %s: %w", what, quoted(name), c.err)
	}
}

// need reports whether the header can have n more things of at least size bytes each.
func (c *ggufScanner) need(n uint64, size int, what string) bool {
	left := max(0, min(c.size, MaxHeader)-c.pos)
	if c.err == nil && n > uint64(left)/uint64(size) {
		if c.size <= MaxHeader {
			c.err = fmt.Errorf("%w: header byte %d: %d %s, and the source has %d bytes left", ErrTruncated, c.pos, n, what, left)
		} else {
			c.fail("%d %s do not fit in a header of %d bytes", n, what, MaxHeader)
		}
	}
	return c.err == nil
}

// take takes n bytes, at most minGGUFBuffer. They are valid until the next call. It returns nil after an error.
func (c *ggufScanner) take(n int) []byte {
	if !c.need(uint64(n), 1, "bytes are due") {
		return nil
	}
	b, err := c.r.Peek(n)
	if err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		c.err = err
		return nil
	}
	_, _ = c.r.Discard(n)
	c.pos += int64(n)
	return b
}

type ggufNumber interface {
	uint8 | int8 | uint16 | int16 | uint32 | int32 | float32 | uint64 | int64 | float64
}

func ggufScalar[T ggufNumber](c *ggufScanner) (v T) {
	if b := c.take(binary.Size(v)); b != nil {
		_, _ = binary.Decode(b, binary.LittleEndian, &v) // fails for a wrong size only
	}
	return v
}

func (c *ggufScanner) u32() uint32 {
	if b := c.take(4); b != nil {
		return binary.LittleEndian.Uint32(b)
	}
	return 0
}

// u64 is not ggufScalar, which is slower: there are hundreds of thousands of strings, each with its length.
func (c *ggufScanner) u64() uint64 {
	if b := c.take(8); b != nil {
		return binary.LittleEndian.Uint64(b)
	}
	return 0
}

// str takes a string of at most limit bytes.
func (c *ggufScanner) str(limit uint64) string {
	n := c.u64()
	if !c.need(n, 1, "bytes of a string") {
		return ""
	}
	if n > limit {
		c.fail("a name of %d bytes, more than %d", n, limit)
		return ""
	}
	if n <= minGGUFBuffer {
		return string(c.take(int(n)))
	}
	return string(ggufNumbers[uint8](c, n))
}

// name takes a string that names something.
func (c *ggufScanner) name(limit uint64) string {
	s := c.str(limit)
	if c.err == nil && (!utf8.ValidString(s) || strings.Contains(s, "\x00")) { // GGML would cut it at the NUL
		c.fail("the name %s is not UTF-8, or has a NUL", quoted(s))
	}
	return s
}

func ggufNumbers[T ggufNumber](c *ggufScanner, n uint64) []T {
	var one T
	size := binary.Size(one)
	if !c.need(n, size, "elements of an array") {
		return nil
	}
	all := make([]T, n)
	for rest := all; len(rest) > 0; {
		part := rest[:min(len(rest), minGGUFBuffer/size)]
		b := c.take(len(part) * size)
		if b == nil {
			return nil
		}
		_, _ = binary.Decode(b, binary.LittleEndian, part)
		rest = rest[len(part):]
	}
	return all
}

func (c *ggufScanner) boolean(b uint8) bool {
	if b > 1 {
		c.fail("a bool of %d", b)
	}
	return b == 1
}

func (c *ggufScanner) booleans(bytes []uint8) []bool {
	all := make([]bool, len(bytes))
	for i, b := range bytes {
		all[i] = c.boolean(b)
	}
	return all
}

// ggufList takes n elements of at least size bytes each. They need not have as many bytes as there are left, so the list grows with them.
func ggufList[T any](c *ggufScanner, n uint64, size int, element func() T) []T {
	all := []T{}
	for i := uint64(0); i < n && c.need(n-i, size, "elements of an array"); i++ {
		all = append(all, element())
	}
	return all
}

func (c *ggufScanner) value() any {
	switch t := c.u32(); t {
	case ggufUint8:
		return ggufScalar[uint8](c)
	case ggufInt8:
		return ggufScalar[int8](c)
	case ggufUint16:
		return ggufScalar[uint16](c)
	case ggufInt16:
		return ggufScalar[int16](c)
	case ggufUint32:
		return ggufScalar[uint32](c)
	case ggufInt32:
		return ggufScalar[int32](c)
	case ggufFloat32:
		return ggufScalar[float32](c)
	case ggufBool:
		return c.boolean(ggufScalar[uint8](c))
	case ggufString:
		return c.str(MaxHeader)
	case ggufArray:
		return c.array(1)
	case ggufUint64:
		return ggufScalar[uint64](c)
	case ggufInt64:
		return ggufScalar[int64](c)
	case ggufFloat64:
		return ggufScalar[float64](c)
	default:
		c.fail("unknown type %d of a value", t)
		return nil
	}
}

func (c *ggufScanner) array(depth int) any {
	t, n := c.u32(), c.u64()
	switch t {
	case ggufUint8:
		return ggufNumbers[uint8](c, n)
	case ggufInt8:
		return ggufNumbers[int8](c, n)
	case ggufUint16:
		return ggufNumbers[uint16](c, n)
	case ggufInt16:
		return ggufNumbers[int16](c, n)
	case ggufUint32:
		return ggufNumbers[uint32](c, n)
	case ggufInt32:
		return ggufNumbers[int32](c, n)
	case ggufFloat32:
		return ggufNumbers[float32](c, n)
	case ggufBool:
		return c.booleans(ggufNumbers[uint8](c, n))
	case ggufString:
		return ggufList(c, n, 8, func() string { return c.str(MaxHeader) })
	case ggufArray:
		if depth == maxGGUFDepth {
			c.fail("arrays nested more than %d deep", maxGGUFDepth)
			return nil
		}
		return ggufList(c, n, 4+8, func() any { return c.array(depth + 1) })
	case ggufUint64:
		return ggufNumbers[uint64](c, n)
	case ggufInt64:
		return ggufNumbers[int64](c, n)
	case ggufFloat64:
		return ggufNumbers[float64](c, n)
	default:
		c.fail("unknown type %d of an array's elements", t)
		return nil
	}
}

// header takes the whole header.
func (c *ggufScanner) header() *GGUF {
	g := &GGUF{Header: &Header{index: map[string]int{}}, keys: map[string]int{}, Alignment: ggufAlignment}
	g.Version = c.start()
	tensors, pairs := c.u64(), c.u64()
	c.need(tensors, 8+4+4+8, "tensors")
	c.need(pairs, 8+1+4+1, "pairs of metadata")
	for i := uint64(0); i < pairs && c.err == nil; i++ {
		c.pair(g)
	}
	c.alignment(g)
	for i := uint64(0); i < tensors && c.err == nil; i++ {
		c.tensor(g)
	}
	if c.err == nil {
		c.layout(g)
	}
	return g
}

// start takes magic and version.
func (c *ggufScanner) start() uint32 {
	magic := string(c.take(len(ggufMagic)))
	if magic != ggufMagic && magic != ggufMagicBig {
		if c.err == nil || errors.Is(c.err, ErrTruncated) {
			c.err = fmt.Errorf("%w: a GGUF file begins with %q, here is %q", ErrNotShard, ggufMagic, magic)
		}
		return 0
	}
	v := c.u32()
	switch {
	case c.err != nil:
	case magic == ggufMagicBig || v&0xffff == 0:
		c.fail("a big-endian GGUF file: convert it to little-endian (gguf_convert_endian.py of llama.cpp does)")
	case v == 1:
		c.fail("GGUF of version 1, which nobody reads any more: convert the original model again")
	case v != 2 && v != 3:
		c.fail("GGUF of version %d: only 2 and 3 are known", v)
	}
	return v
}

func (c *ggufScanner) pair(g *GGUF) {
	key := c.name(maxGGUFKey)
	if _, ok := g.keys[key]; ok || key == "" {
		c.fail("key %s is a duplicate or empty", quoted(key))
		return
	}
	g.keys[key] = len(g.Metadata)
	g.Metadata = append(g.Metadata, GGUFPair{key, c.value()})
	c.in("key", key)
}

func (c *ggufScanner) alignment(g *GGUF) {
	v := g.Value(alignmentKey)
	if v == nil {
		return
	}
	a, ok := v.(uint32)
	if !ok || bits.OnesCount32(a) != 1 {
		c.fail("%s is %v (%T): want a power of two (uint32)", alignmentKey, v, v)
		return
	}
	g.Alignment = a
}

func (c *ggufScanner) tensor(g *GGUF) {
	t := TensorInfo{Name: c.name(maxGGUFName)}
	if _, ok := g.index[t.Name]; ok {
		c.fail("duplicate tensor name %s", quoted(t.Name))
		return
	}
	g.index[t.Name] = 0
	rank := c.u32()
	if rank > maxGGUFRank {
		c.fail("%d dimensions, more than %d", rank, maxGGUFRank)
	} else {
		t.Shape = make([]int64, rank)
	}
	for i := range t.Shape {
		d := c.u64()
		if d > math.MaxInt64 {
			c.fail("a dimension of %d", d)
		}
		t.Shape[len(t.Shape)-1-i] = int64(d)
	}
	if n := c.u32(); n < uint32(len(ggmlTypes)) && ggmlTypes[n] != 0 {
		t.DType = ggmlTypes[n]
	} else {
		c.fail("GGML type %d is not known, or not in files any more", n)
	}
	if off := c.u64(); c.err == nil {
		c.place(&t, off, g.Alignment)
	}
	c.in("tensor", t.Name)
	g.Tensors = append(g.Tensors, t)
}

// place sets where the tensor is.
func (c *ggufScanner) place(t *TensorInfo, off uint64, alignment uint32) {
	size, err := t.size()
	switch {
	case err != nil:
		c.fail("%v", err)
	case off%uint64(alignment) != 0:
		c.fail("offset %d is not a multiple of the alignment, %d", off, alignment)
	case off > uint64(c.size) || size > c.size-int64(off):
		c.err = fmt.Errorf("%w: %d bytes at %d of the data, source of %d", ErrTruncated, size, off, c.size)
	default:
		t.Begin, t.End = int64(off), int64(off)+size
	}
}

// layout sorts the tensors by their data, checks that they do not overlap, and finds the end.
func (c *ggufScanner) layout(g *GGUF) {
	slices.SortStableFunc(g.Tensors, func(a, b TensorInfo) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	end := int64(0)
	for i := range g.Tensors {
		t := &g.Tensors[i]
		g.index[t.Name] = i
		if t.Begin < end {
			c.fail("tensor %s begins at %d of the data, before the end of tensor %s at %d", quoted(t.Name), t.Begin, quoted(g.Tensors[i-1].Name), end)
			return
		}
		end = t.End
	}
	g.DataOffset = c.pos
	if len(g.Tensors) > 0 {
		g.DataOffset += g.pad(c.pos)
	}
	if end > c.size-g.DataOffset {
		c.err = fmt.Errorf("%w: %d bytes of data at %d, source of %d", ErrTruncated, end, g.DataOffset, c.size)
		return
	}
	g.Size = g.DataOffset + end
	g.Size += min(g.pad(g.Size), c.size-g.Size)
}
