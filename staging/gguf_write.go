package staging

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"reflect"
	"slices"
)

// NewGGUF lays out a GGUF file, version 3, of these tensors, one behind the other in this order: it sets Begin and End of copies of them, at
// multiples of general.alignment, which is 32 where metadata does not have it. What [ReadGGUF] would refuse is an error.
func NewGGUF(tensors []TensorInfo, metadata []GGUFPair) (*GGUF, error) {
	g := &GGUF{Header: &Header{Tensors: slices.Clone(tensors)}, Version: 3, Alignment: ggufAlignment, Metadata: metadata}
	for _, p := range metadata {
		if a, ok := p.Value.(uint32); ok && p.Key == alignmentKey && a > 0 {
			g.Alignment = a
		}
	}
	end := int64(0)
	for i := range g.Tensors {
		t := &g.Tensors[i]
		size, err := t.size()
		if err != nil {
			return nil, fmt.Errorf("staging: tensor %s: %w", quoted(t.Name), err)
		}
		t.Begin, t.End = end, end+size
		if end = t.End + g.pad(t.End); end < t.Begin {
			return nil, fmt.Errorf("staging: tensor %s: the file's length overflows", quoted(t.Name))
		}
	}
	text, err := g.Append(nil)
	if err != nil {
		return nil, err
	}
	size := int64(len(text)) + end
	if size < end {
		return nil, fmt.Errorf("staging: the file's length overflows")
	}
	// What the scanner accepts is right, and so the rules are written down once.
	if g, err = parseGGUF(bytes.NewReader(text), size, NoTrailing); err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return g, nil
}

// Append appends the encoded header to dst, padded with zeros to where the data begins.
func (g *GGUF) Append(dst []byte) ([]byte, error) {
	start := len(dst)
	le := binary.LittleEndian
	dst = le.AppendUint32(append(dst, ggufMagic...), g.Version)
	dst = le.AppendUint64(dst, uint64(len(g.Tensors)))
	dst = le.AppendUint64(dst, uint64(len(g.Metadata)))
	var err error
	for _, p := range g.Metadata {
		if dst, err = appendGGUFValue(appendGGUFString(dst, p.Key), p.Value); err != nil {
			return dst[:start], fmt.Errorf("staging: key %s: %w", quoted(p.Key), err)
		}
	}
	for i := range g.Tensors {
		t := &g.Tensors[i]
		dst = le.AppendUint32(appendGGUFString(dst, t.Name), uint32(len(t.Shape)))
		for _, d := range slices.Backward(t.Shape) {
			dst = le.AppendUint64(dst, uint64(d))
		}
		n := t.DType.ggml()
		if n < 0 {
			return dst[:start], fmt.Errorf("staging: tensor %s: GGUF has no type %s", quoted(t.Name), t.DType)
		}
		dst = le.AppendUint64(le.AppendUint32(dst, uint32(n)), uint64(t.Begin))
	}
	if len(g.Tensors) > 0 {
		dst = append(dst, make([]byte, g.pad(int64(len(dst)-start)))...)
	}
	return dst, nil
}

// pad is how many bytes are missing at an offset to the next multiple of the alignment.
func (g *GGUF) pad(at int64) int64 { return -at & (int64(g.Alignment) - 1) }

// WriteGGUF writes a whole GGUF file: the header, then the data of each tensor in the header's order, and zeros between. data returns a reader
// of exactly the tensor's bytes.
func WriteGGUF(w io.Writer, g *GGUF, data func(t *TensorInfo) io.Reader) error {
	text, err := g.Append(nil)
	if err != nil {
		return err
	}
	return writeShard(w, text, g.Header, data)
}

func appendGGUFString(dst []byte, s string) []byte {
	return append(binary.LittleEndian.AppendUint64(dst, uint64(len(s))), s...)
}

// appendGGUFValue appends a value's type and the value.
func appendGGUFValue(dst []byte, v any) ([]byte, error) {
	t, isArray := ggufType(v)
	switch {
	case t == ggufNone:
		return dst, fmt.Errorf("GGUF has no type for a %T", v)
	case isArray:
		return appendGGUFArray(binary.LittleEndian.AppendUint32(dst, ggufArray), t, v)
	}
	dst = binary.LittleEndian.AppendUint32(dst, t)
	if s, ok := v.(string); ok {
		return appendGGUFString(dst, s), nil
	}
	return binary.Append(dst, binary.LittleEndian, v)
}

// appendGGUFArray appends the type of an array's elements, their number, and the elements.
func appendGGUFArray(dst []byte, t uint32, v any) ([]byte, error) {
	dst = binary.LittleEndian.AppendUint32(dst, t)
	dst = binary.LittleEndian.AppendUint64(dst, uint64(reflect.ValueOf(v).Len()))
	switch v := v.(type) {
	case []string:
		for _, s := range v {
			dst = appendGGUFString(dst, s)
		}
		return dst, nil
	case []any:
		for _, a := range v {
			t, isArray := ggufType(a)
			if t == ggufNone || !isArray {
				return dst, fmt.Errorf("a %T in an array of arrays", a)
			}
			var err error
			if dst, err = appendGGUFArray(dst, t, a); err != nil {
				return dst, err
			}
		}
		return dst, nil
	}
	return binary.Append(dst, binary.LittleEndian, v)
}

const ggufNone = math.MaxUint32 // no type of a value

// ggufType is the type of a value, or of the elements of an array.
func ggufType(v any) (t uint32, isArray bool) {
	switch v.(type) {
	case uint8:
		return ggufUint8, false
	case int8:
		return ggufInt8, false
	case uint16:
		return ggufUint16, false
	case int16:
		return ggufInt16, false
	case uint32:
		return ggufUint32, false
	case int32:
		return ggufInt32, false
	case float32:
		return ggufFloat32, false
	case bool:
		return ggufBool, false
	case string:
		return ggufString, false
	case uint64:
		return ggufUint64, false
	case int64:
		return ggufInt64, false
	case float64:
		return ggufFloat64, false
	case []uint8:
		return ggufUint8, true
	case []int8:
		return ggufInt8, true
	case []uint16:
		return ggufUint16, true
	case []int16:
		return ggufInt16, true
	case []uint32:
		return ggufUint32, true
	case []int32:
		return ggufInt32, true
	case []float32:
		return ggufFloat32, true
	case []bool:
		return ggufBool, true
	case []string:
		return ggufString, true
	case []any:
		return ggufArray, true
	case []uint64:
		return ggufUint64, true
	case []int64:
		return ggufInt64, true
	case []float64:
		return ggufFloat64, true
	}
	return ggufNone, false
}
