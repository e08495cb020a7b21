package staging

import (
	"errors"
	"fmt"
	"unicode/utf8"
)

// Range is a byte range of a source that is a tensor.
type Range struct {
	Name string
	// Off and Len are where it is on the source, in bytes.
	Off, Len int64
	// DType and Shape say what the bytes are. Without DType they are bytes: U8, of shape [Len].
	DType DType
	Shape []int64
}

// RawShard makes a shard of byte ranges of src: for data that has no header, or one that nothing here can read. Its tensors are in the order of
// ranges, which may be any, with holes and overlaps. Nothing is read.
func RawShard(src Source, ranges []Range) (*Shard, error) {
	if err := usable(src); err != nil {
		return nil, err
	}
	h := &Header{Tensors: make([]TensorInfo, len(ranges)), index: make(map[string]int, len(ranges))}
	for i, r := range ranges {
		t, err := r.tensor(src.Size())
		if _, ok := h.index[r.Name]; ok || !utf8.ValidString(r.Name) {
			err = errors.New("the name is a duplicate or not UTF-8")
		}
		if err != nil {
			return nil, fmt.Errorf("staging: range %s: %w", quoted(r.Name), err)
		}
		h.index[r.Name], h.Tensors[i] = i, t
		h.Size = max(h.Size, t.End)
	}
	return &Shard{Header: h, Format: FormatRaw, src: src}, nil
}

func (r *Range) tensor(source int64) (TensorInfo, error) {
	t := TensorInfo{Name: r.Name, DType: r.DType, Shape: r.Shape, Begin: r.Off, End: r.Off + r.Len}
	if r.Off < 0 || r.Len < 0 || r.Off > source || r.Len > source-r.Off {
		return t, fmt.Errorf("%w: %d bytes at %d, source of %d", ErrTruncated, r.Len, r.Off, source)
	}
	if r.DType == 0 && r.Shape == nil {
		t.DType, t.Shape = U8, []int64{r.Len}
	}
	size, err := t.size()
	if err == nil && size != r.Len {
		err = fmt.Errorf("shape %v of %s is %d bytes, not %d", t.Shape, t.DType, size, r.Len)
	}
	return t, err
}
