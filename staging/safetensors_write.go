package staging

import (
	"encoding/binary"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"unicode/utf8"
)

// NewHeader lays out a shard of these tensors, one behind the other in this order: it sets Begin and End of copies of
// them. Names must be unique valid UTF-8. Data is aligned to 8 bytes as a whole; put types of larger elements first to
// have each tensor aligned, as the reference implementation does.
func NewHeader(tensors []TensorInfo, metadata map[string]string) (*Header, error) {
	h := &Header{Tensors: slices.Clone(tensors), Metadata: maps.Clone(metadata), index: make(map[string]int, len(tensors))}
	end := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		t.Shape = slices.Clone(t.Shape)
		if _, ok := h.index[t.Name]; ok || t.Name == metadataKey || !utf8.ValidString(t.Name) {
			return nil, fmt.Errorf("staging: tensor name %s is a duplicate, reserved or not UTF-8", quoted(t.Name))
		}
		h.index[t.Name] = i
		if len(t.Shape) > maxRank {
			return nil, fmt.Errorf("staging: tensor %s: more than %d dimensions", quoted(t.Name), maxRank)
		}
		size, err := t.size()
		if err == nil && !t.DType.safetensors() {
			err = fmt.Errorf("safetensors has no dtype %s", t.DType)
		}
		if err != nil {
			return nil, fmt.Errorf("staging: tensor %s: %w", quoted(t.Name), err)
		}
		t.Begin, t.End = end, end+size
		if end = t.End; end < t.Begin {
			return nil, fmt.Errorf("staging: tensor %s: the shard's length overflows", quoted(t.Name))
		}
	}
	for k, v := range metadata {
		if !utf8.ValidString(k) || !utf8.ValidString(v) {
			return nil, fmt.Errorf("staging: metadata %s is not UTF-8", quoted(k))
		}
	}
	text, err := h.Append(nil)
	if err != nil {
		return nil, err
	}
	h.DataOffset = int64(len(text))
	if h.Size = h.DataOffset + end; h.Size < end {
		return nil, fmt.Errorf("staging: the shard's length overflows")
	}
	return h, nil
}

// Append appends the encoded header to dst: 8 bytes of length and the JSON, padded with spaces to a multiple of 8 bytes.
// The shard's data follows it. Tensors that safetensors cannot have, in their type or with holes between them, are an error.
func (h *Header) Append(dst []byte) ([]byte, error) {
	start, end := len(dst), int64(0)
	dst = append(dst, 0, 0, 0, 0, 0, 0, 0, 0, '{')
	if h.Metadata != nil {
		dst = append(dst, `"`+metadataKey+`":{`...)
		for i, k := range slices.Sorted(maps.Keys(h.Metadata)) {
			if i > 0 {
				dst = append(dst, ',')
			}
			dst = append(appendJSONString(dst, k), ':')
			dst = appendJSONString(dst, h.Metadata[k])
		}
		dst = append(dst, '}')
	}
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if !t.DType.safetensors() || t.Begin != end {
			return dst[:start], fmt.Errorf("staging: tensor %s, %s at %d, cannot be in safetensors: its dtype is not known there, or there is a hole before it", quoted(t.Name), t.DType, t.Begin)
		}
		end = t.End
		if i > 0 || h.Metadata != nil {
			dst = append(dst, ',')
		}
		dst = appendJSONString(dst, t.Name)
		dst = append(dst, `:{"dtype":"`+t.DType.String()+`","shape":[`...)
		for k, d := range t.Shape {
			if k > 0 {
				dst = append(dst, ',')
			}
			dst = strconv.AppendInt(dst, d, 10)
		}
		dst = append(dst, `],"data_offsets":[`...)
		dst = append(strconv.AppendInt(dst, t.Begin, 10), ',')
		dst = append(strconv.AppendInt(dst, t.End, 10), `]}`...)
	}
	dst = append(dst, '}')
	for (len(dst)-start)%8 != 0 {
		dst = append(dst, ' ')
	}
	n := len(dst) - start - 8
	if n > MaxHeader {
		return dst[:start], fmt.Errorf("staging: a header of %d bytes, more than %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(dst[start:], uint64(n))
	return dst, nil
}

func appendJSONString(dst []byte, s string) []byte {
	const digits = "0123456789abcdef"
	dst = append(dst, '"')
	for _, c := range []byte(s) {
		switch {
		case c == '"' || c == '\\':
			dst = append(dst, '\\', c)
		case c < 0x20:
			dst = append(dst, '\\', 'u', '0', '0', digits[c>>4], digits[c&15])
		default:
			dst = append(dst, c)
		}
	}
	return append(dst, '"')
}

// WriteShard writes a whole safetensors shard: the header, then the data of each tensor in the header's order. data returns a reader of
// exactly the tensor's bytes.
func WriteShard(w io.Writer, h *Header, data func(t *TensorInfo) io.Reader) error {
	text, err := h.Append(nil)
	if err != nil {
		return err
	}
	return writeShard(w, text, h, data)
}

// writeShard writes a header, and the data behind it with zeros in its holes.
func writeShard(w io.Writer, text []byte, h *Header, data func(t *TensorInfo) io.Reader) error {
	if _, err := w.Write(text); err != nil {
		return err
	}
	end := int64(0)
	for i := range h.Tensors {
		t := &h.Tensors[i]
		if _, err := io.CopyN(w, zeros{}, t.Begin-end); err != nil {
			return err
		}
		end = t.End
		r := data(t)
		if _, err := io.CopyN(w, r, t.Bytes()); err != nil {
			return fmt.Errorf("staging: writing tensor %s: %w", quoted(t.Name), err)
		}
		if n, _ := r.Read(make([]byte, 1)); n != 0 {
			return fmt.Errorf("staging: writing tensor %s: its data is longer than %d bytes", quoted(t.Name), t.Bytes())
		}
	}
	_, err := io.CopyN(w, zeros{}, h.Size-h.DataOffset-end)
	return err
}

// zeros is a reader of zeros without end.
type zeros struct{}

func (zeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}
