package staging

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/bits"
	"slices"
	"unicode/utf8"
)

// MaxHeader is the longest header, in bytes, that is read or written: the limit of safetensors' reference implementation, and ours for
// GGUF, whose headers hold the tokenizer and have some 10 MB.
const MaxHeader = 100_000_000

// maxRank bounds a shape, so that a hostile header cannot blow up in memory. NumPy's and PyTorch's limits are 64.
const maxRank = 64

const metadataKey = "__metadata__"

// What is wrong with a shard: errors.Is tells them apart.
var (
	// ErrNotShard: the source does not begin as the format that was asked for, or as any that is known here.
	ErrNotShard = errors.New("not a shard")
	// ErrHeader: it begins like a shard, but the header breaks a rule of the format.
	ErrHeader = errors.New("corrupt shard header")
	// ErrTruncated: the header is fine, but the shard is larger than the source that holds it.
	ErrTruncated = errors.New("shard is larger than its source")
	// ErrTrailing: there are bytes behind the last tensor, and the caller did not allow them.
	ErrTrailing = errors.New("bytes after the end of the shard")
)

// TensorInfo describes one tensor of a shard.
type TensorInfo struct {
	Name  string
	DType DType
	// Shape is the size of each dimension, in elements, the slowest first. An empty shape is a scalar.
	Shape []int64
	// Begin and End are the tensor's bytes, relative to the shard's data (safetensors: data_offsets; GGUF: offset).
	Begin, End int64
}

// Bytes is the size of the tensor's data.
func (t *TensorInfo) Bytes() int64 { return t.End - t.Begin }

// size computes the bytes that the shape and the type ask for.
func (t *TensorInfo) size() (int64, error) {
	elements, bytes := t.DType.Block()
	if elements == 0 {
		return 0, fmt.Errorf("unknown dtype %s", t.DType)
	}
	n := uint64(1)
	mul := func(by uint64) error {
		hi, lo := bits.Mul64(n, by)
		if n = lo; hi != 0 {
			return fmt.Errorf("shape %v of %s overflows", t.Shape, t.DType)
		}
		return nil
	}
	row := int64(1)
	for _, row = range t.Shape {
		if row < 0 {
			return 0, fmt.Errorf("negative dimension in shape %v", t.Shape)
		}
		if err := mul(uint64(row)); err != nil {
			return 0, err
		}
	}
	if !t.DType.safetensors() && row%int64(elements) != 0 {
		return 0, fmt.Errorf("shape %v of %s: rows of %d elements are not whole blocks of %d", t.Shape, t.DType, row, elements)
	}
	if n%uint64(elements) != 0 {
		return 0, fmt.Errorf("shape %v of %s is not a whole number of bytes", t.Shape, t.DType)
	}
	n /= uint64(elements)
	if err := mul(uint64(bytes) * 8); err != nil { // the reference implementation counts bits
		return 0, err
	}
	return int64(n / 8), nil
}

// Header says what tensors a shard has, and where. It is that of a safetensors shard, valid as parsed by [ReadHeader] or [ParseHeader] or
// as laid out by [NewHeader], or part of a [GGUF], or of a [RawShard].
type Header struct {
	// Tensors in the order of their data (of a raw shard: in the caller's order). In safetensors they cover it without holes and overlaps;
	// between those of other formats there may be holes.
	Tensors []TensorInfo
	// Metadata is the free-form __metadata__ map of safetensors, nil if there is none.
	Metadata map[string]string
	// DataOffset is where the data begins: behind the header, in bytes. Size is the length of the whole shard.
	DataOffset, Size int64

	index map[string]int
}

// Tensor returns the tensor of that name, or nil.
func (h *Header) Tensor(name string) *TensorInfo {
	i, ok := h.index[name]
	if !ok {
		return nil
	}
	return &h.Tensors[i]
}

// Trailing says what may follow the last tensor.
type Trailing bool

// A file is exactly its shard; a namespace is usually larger.
const (
	NoTrailing    Trailing = false
	TrailingBytes Trailing = true
)

// ReadHeader reads and validates the safetensors header at the start of r, which holds size bytes. It reads no more than
// the header, and at most [MaxHeader] bytes. Errors match [ErrNotShard], [ErrHeader], [ErrTruncated] or [ErrTrailing].
func ReadHeader(ctx context.Context, r io.ReaderAt, size int64, trailing Trailing) (*Header, error) {
	first, err := readStart(ctx, r, size)
	if err != nil {
		return nil, err
	}
	return readHeader(ctx, r, size, trailing, first)
}

// readHeader is ReadHeader with what readStart has read.
func readHeader(ctx context.Context, r io.ReaderAt, size int64, trailing Trailing, first []byte) (*Header, error) {
	if size < 8+2 {
		return nil, fmt.Errorf("%w: %d bytes cannot hold a safetensors header", ErrNotShard, size)
	}
	n := binary.LittleEndian.Uint64(first)
	switch {
	case n > MaxHeader || n < 2:
		return nil, fmt.Errorf("%w: a safetensors header has 2 to %d bytes, the first 8 bytes say %d", ErrNotShard, MaxHeader, n)
	case first[8] != '{':
		return nil, fmt.Errorf("%w: a safetensors header begins with '{', here is %q", ErrNotShard, first[8])
	case int64(n) > size-8:
		return nil, fmt.Errorf("%w: header of %d bytes, source of %d", ErrTruncated, n, size)
	}
	text := make([]byte, n)
	have := copy(text, first[8:])
	for have < len(text) { // in pieces, so that ctx is looked at
		end := min(have+4<<20, len(text))
		if err := readFull(ctx, r, text[have:end], int64(8+have), shardHeader); err != nil {
			return nil, err
		}
		have = end
	}
	h, err := ParseHeader(text)
	if err != nil {
		return nil, err
	}
	if h.Size > size {
		return nil, fmt.Errorf("%w: shard of %d bytes, source of %d", ErrTruncated, h.Size, size)
	}
	if err := h.checkTrailing(size, trailing); err != nil {
		return nil, err
	}
	return h, nil
}

func (h *Header) checkTrailing(size int64, trailing Trailing) error {
	if h.Size < size && trailing == NoTrailing {
		return fmt.Errorf("%w: shard of %d bytes, source of %d", ErrTrailing, h.Size, size)
	}
	return nil
}

// readStart reads the start of a source: enough to recognise the format, and most headers, in one read, so that garbage is refused before
// anything is allocated for it.
func readStart(ctx context.Context, r io.ReaderAt, size int64) ([]byte, error) {
	first := make([]byte, min(max(size, 0), 64<<10))
	return first, readFull(ctx, r, first, 0, shardHeader)
}

// contextReader is what namespaces offer beyond io.ReaderAt.
type contextReader interface {
	ReadAtContext(ctx context.Context, p []byte, off int64) (int, error)
}

const shardHeader = "the shard header, "

// readFull fills p, which is inside the source. what goes into the error: what it is that is read, with a comma.
func readFull(ctx context.Context, r io.ReaderAt, p []byte, off int64, what string) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	read := r.ReadAt
	if c, ok := r.(contextReader); ok {
		read = func(p []byte, off int64) (int, error) { return c.ReadAtContext(ctx, p, off) }
	}
	if n, err := read(p, off); n < len(p) {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("reading %s%d bytes at %d: %w", what, len(p), off, err)
	}
	return nil
}

// ParseHeader parses and validates the JSON of a safetensors header, without the 8 bytes of length before it. It is as
// strict as the reference implementation, and stricter where the format's text is: duplicate keys are refused
// everywhere, and the header begins with '{'. Errors match [ErrHeader].
func ParseHeader(text []byte) (*Header, error) {
	h, err := parseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrHeader, err)
	}
	return h, nil
}

func parseHeader(text []byte) (*Header, error) {
	if len(text) > MaxHeader {
		return nil, fmt.Errorf("%d bytes, more than %d", len(text), MaxHeader)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8")
	}
	j := &jsonScanner{s: string(text)}
	if len(j.s) == 0 || j.s[0] != '{' {
		return nil, errors.New("does not begin with '{'")
	}
	h := &Header{index: map[string]int{}}
	err := j.object(func(key string) error {
		if key == metadataKey {
			if h.Metadata != nil {
				return j.errorf("duplicate key %s", metadataKey)
			}
			return h.parseMetadata(j)
		}
		if _, ok := h.index[key]; ok {
			return j.errorf("duplicate tensor name %s", quoted(key))
		}
		h.index[key] = 0
		t := TensorInfo{Name: key}
		if err := t.parse(j); err != nil {
			return fmt.Errorf("tensor %s: %w", quoted(key), err)
		}
		h.Tensors = append(h.Tensors, t)
		return nil
	})
	if err != nil {
		return nil, err
	}
	if j.peek(); j.i != len(j.s) {
		return nil, j.errorf("%q after the end of the JSON", j.s[j.i])
	}
	h.DataOffset = 8 + int64(len(text))
	return h, h.validate()
}

func (h *Header) parseMetadata(j *jsonScanner) error {
	h.Metadata = map[string]string{}
	return j.object(func(key string) error {
		if _, ok := h.Metadata[key]; ok {
			return j.errorf("duplicate key %s in %s", quoted(key), metadataKey)
		}
		v, err := j.str()
		h.Metadata[key] = v
		return err
	})
}

func (t *TensorInfo) parse(j *jsonScanner) error {
	var dtype, shape, offsets bool
	var others map[string]bool
	once := func(seen *bool, key string) error {
		if *seen {
			return j.errorf("duplicate key %s", quoted(key))
		}
		*seen = true
		return nil
	}
	err := j.object(func(key string) error {
		switch key {
		case "dtype":
			if err := once(&dtype, key); err != nil {
				return err
			}
			name, err := j.str()
			if err != nil {
				return err
			}
			if t.DType, err = ParseDType(name); err == nil && !t.DType.safetensors() {
				err = fmt.Errorf("%s is not a dtype of safetensors", t.DType)
			}
			if err != nil {
				return j.errorf("%v", err)
			}
			return nil
		case "shape":
			if err := once(&shape, key); err != nil {
				return err
			}
			return j.array(func() error {
				if len(t.Shape) == maxRank {
					return j.errorf("more than %d dimensions", maxRank)
				}
				d, err := j.int()
				t.Shape = append(t.Shape, d)
				return err
			})
		case "data_offsets":
			if err := once(&offsets, key); err != nil {
				return err
			}
			return t.parseOffsets(j)
		}
		// The reference implementation ignores keys that it does not know.
		if others[key] {
			return j.errorf("duplicate key %s", quoted(key))
		}
		if others == nil {
			others = map[string]bool{}
		}
		others[key] = true
		return j.skip(3)
	})
	if err == nil && !(dtype && shape && offsets) {
		err = j.errorf("one of dtype, shape and data_offsets is missing")
	}
	return err
}

func (t *TensorInfo) parseOffsets(j *jsonScanner) error {
	n := 0
	err := j.array(func() error {
		v, err := j.int()
		switch n++; n {
		case 1:
			t.Begin = v
		case 2:
			t.End = v
		default:
			return j.errorf("data_offsets are more than two")
		}
		return err
	})
	if err == nil && n != 2 {
		err = j.errorf("data_offsets are not two")
	}
	return err
}

// validate sorts the tensors by their data and checks what the format demands of them.
func (h *Header) validate() error {
	slices.SortStableFunc(h.Tensors, func(a, b TensorInfo) int {
		return cmp.Or(cmp.Compare(a.Begin, b.Begin), cmp.Compare(a.End, b.End))
	})
	end := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		h.index[t.Name] = i
		if t.End < t.Begin {
			return fmt.Errorf("tensor %s: data_offsets [%d,%d] end before they begin", quoted(t.Name), t.Begin, t.End)
		}
		if t.Begin != end {
			return fmt.Errorf("tensor %s: data_offsets [%d,%d] leave a hole or overlap: %d is where the tensor before ends", quoted(t.Name), t.Begin, t.End, end)
		}
		size, err := t.size()
		if err != nil {
			return fmt.Errorf("tensor %s: %w", quoted(t.Name), err)
		}
		if size != t.Bytes() {
			return fmt.Errorf("tensor %s: shape %v of %s is %d bytes, data_offsets [%d,%d] say %d", quoted(t.Name), t.Shape, t.DType, size, t.Begin, t.End, t.Bytes())
		}
		end = t.End
	}
	if h.Size = h.DataOffset + end; h.Size < end {
		return errors.New("the shard's length overflows")
	}
	return nil
}
