package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"net/http"

	"github.com/nvstage/nvstage/staging"
)

// infer is a toy: a tensor, as a matrix whose columns are its last dimension, times a vector. A request that began with a model ends with
// it, whatever is swapped meanwhile, and the answer says which model that was.
func (s *server) infer(w http.ResponseWriter, r *http.Request) error {
	var ask struct {
		Tensor string    `json:"tensor"`
		Input  []float64 `json:"input"`
	}
	if err := readJSON(w, r, maxInferBody, &ask, `{"tensor": "model.norm.weight", "input": [1, 0.5, …]} with a number for each column`); err != nil {
		return err
	}
	m, err := s.use()
	if err != nil {
		return err
	}
	defer m.release()
	t, err := m.tensor(ask.Tensor)
	if err != nil {
		return err
	}
	done, err := s.work(r.Context())
	if err != nil {
		return err
	}
	defer done()
	size, number := numbers(t.DType)
	if size == 0 {
		return &problem{http.StatusUnprocessableEntity, fmt.Sprintf("tensor %q is of type %v", t.Name, t.DType), "this toy knows F64, F32, F16 and BF16"}
	}
	columns := int64(1)
	if n := len(t.Shape); n > 0 {
		columns = t.Shape[n-1]
	}
	if int64(len(ask.Input)) != columns || columns == 0 {
		return &problem{http.StatusUnprocessableEntity, fmt.Sprintf("tensor %q of shape %v times a vector of %d", t.Name, t.Shape, len(ask.Input)), fmt.Sprintf("give %d numbers", columns)}
	}
	output := make([]float64, t.Memory.Len()/int64(size)/columns)
	row, column := 0, 0
	err = m.read(r.Context(), t, func(b []byte) {
		for ; len(b) > 0; b = b[size:] {
			output[row] += number(b) * ask.Input[column]
			if column++; column == len(ask.Input) {
				row, column = row+1, 0
			}
		}
	})
	if err != nil {
		return err
	}
	for i, v := range output {
		if math.IsNaN(v) || math.IsInf(v, 0) { // which JSON does not have
			return &problem{http.StatusUnprocessableEntity, fmt.Sprintf("output %d is %v", i, v), "give smaller numbers, or look at the tensor's"}
		}
	}
	return writeJSON(w, http.StatusOK, map[string]any{"model": m.id, "tensor": t.Name, "output": output})
}

// numbers returns the size of a type's elements in bytes, and what reads one; 0 for types that are not numbers of their own.
func numbers(d staging.DType) (size int, number func(b []byte) float64) {
	switch d {
	case staging.F64:
		return 8, func(b []byte) float64 { return math.Float64frombits(binary.LittleEndian.Uint64(b)) }
	case staging.F32:
		return 4, func(b []byte) float64 { return float64(math.Float32frombits(binary.LittleEndian.Uint32(b))) }
	case staging.BF16:
		return 2, func(b []byte) float64 {
			return float64(math.Float32frombits(uint32(binary.LittleEndian.Uint16(b)) << 16))
		}
	case staging.F16:
		return 2, func(b []byte) float64 { return half(binary.LittleEndian.Uint16(b)) }
	}
	return 0, nil
}

// half is the number with these bits in IEEE 754's binary16.
func half(bits uint16) float64 {
	sign, exponent, fraction := 1.0, int(bits>>10&0x1F), float64(bits&0x3FF)
	if bits>>15 != 0 {
		sign = -1
	}
	switch exponent {
	case 0:
		return sign * math.Ldexp(fraction, -24)
	case 0x1F:
		if fraction != 0 {
			return math.NaN()
		}
		return math.Inf(int(sign))
	}
	return sign * math.Ldexp(1024+fraction, exponent-25)
}
