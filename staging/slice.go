package staging

import (
	"fmt"
	"slices"
	"strings"
)

// Slice is the part of the tensor with the indices from ≤ i < to of dimension dim. Of dimension 0 it is one range of bytes; of others it is a
// run of bytes in each row: what is read for it is whole blocks, none of them twice, and rows as a whole where the runs are close together.
// Either way it is delivered as a tensor of its own, without holes.
//
// Packed and quantized elements must be cut where bytes and blocks end (see [DType.Block]); anything else is an error. So is a slice of a slice.
func (t PlanTensor) Slice(dim int, from, to int64) (PlanTensor, error) {
	fail := func(format string, args ...any) (PlanTensor, error) {
		return PlanTensor{}, fmt.Errorf("staging: slice [%d,%d) along dimension %d of tensor %s, %s %v: %s",
			from, to, dim, quoted(t.Name), t.DType, t.Shape, fmt.Sprintf(format, args...))
	}
	switch {
	case t.Of != nil:
		return fail("it is a slice already")
	case dim < 0 || dim >= len(t.Shape):
		return fail("there is no such dimension")
	case from < 0 || to < from || to > t.Shape[dim]:
		return fail("outside of the dimension")
	}
	s := t
	info := *t.TensorInfo
	info.Shape = slices.Clone(t.Shape)
	info.Shape[dim] = to - from
	s.TensorInfo, s.Of, s.Dim, s.From = &info, t.TensorInfo, dim, from
	if t.Bytes() == 0 {
		return s, nil
	}
	inner, outer := product(t.Shape[dim+1:]), product(t.Shape[:dim])
	e, b := t.DType.Block()
	elements, bytes := int64(e), int64(b)
	row := t.Shape[dim] * inner
	for _, n := range []int64{from * inner, to * inner, row} {
		if n%elements != 0 && (n != row || outer > 1) {
			return fail("%s can only be cut every %d elements, which %d is not a multiple of", t.DType, elements, n)
		}
	}
	offset, size, stride := from*inner/elements*bytes, (to-from)*inner/elements*bytes, row/elements*bytes
	info.Begin += offset
	info.End = info.Begin + size
	if outer > 1 && size > 0 {
		info.End += (outer - 1) * stride
		if size < stride {
			s.run, s.stride = size, stride
		}
	}
	return s, nil
}

// product is of dimensions whose product is known not to overflow.
func product(shape []int64) int64 {
	n := int64(1)
	for _, d := range shape {
		n *= d
	}
	return n
}

// SliceRule says along which dimension a tensor is split between tensor-parallel ranks; negative means that every rank has all of it.
type SliceRule func(t PlanTensor) (dim int)

// Slice is what rank, counted from 0, of ranks loads: of every tensor its share along the dimension that the rule names, the shares being as
// equal as the dimension allows and in the order of the ranks.
func (p Plan) Slice(rank, ranks int, rule SliceRule) (Plan, error) {
	if ranks < 1 || rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("staging: slices for rank %d of %d: ranks are counted from 0", rank, ranks)
	}
	out := make(Plan, 0, len(p))
	for _, t := range p {
		if dim := rule(t); dim >= 0 && ranks > 1 {
			from, to := int64(0), int64(0)
			if dim < len(t.Shape) {
				from, to = share(t, dim, rank, ranks)
			}
			var err error
			if t, err = t.Slice(dim, from, to); err != nil {
				return nil, err
			}
		}
		out = append(out, t)
	}
	return out, nil
}

// share cuts dimension dim where the type allows it.
func share(t PlanTensor, dim, rank, ranks int) (from, to int64) {
	unit := int64(1)
	if e, _ := t.DType.Block(); e > 1 && t.Bytes() > 0 {
		unit = int64(e) / gcd(product(t.Shape[dim+1:]), int64(e))
	}
	size := t.Shape[dim]
	each, more := size/unit/int64(ranks), size/unit%int64(ranks)
	begin := func(r int) int64 { return (int64(r)*each + min(int64(r), more)) * unit }
	return begin(rank), begin(rank + 1)
}

func gcd(a, b int64) int64 {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// SliceBySuffix is a rule by the ends of names, in whole components: {"q_proj.weight": 0, "o_proj.weight": 1}. The longest one that fits counts; a tensor that
// none fits is not split.
func SliceBySuffix(dims map[string]int) SliceRule {
	return func(t PlanTensor) int {
		for name := t.Name; ; {
			if dim, ok := dims[name]; ok {
				return dim
			}
			_, rest, ok := strings.Cut(name, ".")
			if !ok {
				return -1
			}
			name = rest
		}
	}
}

// TensorParallel is the usual rule for decoders named as by Hugging Face or in GGUF: projections into the heads and into the
// feed-forward network by rows (dimension 0), projections out of them by columns (dimension 1), embeddings and head by the vocabulary. Norms, and what it
// does not know, are not split. Where the ranks outnumber the key/value heads, split those by a rule of your own.
func TensorParallel(t PlanTensor) int { return tensorParallel(t) }

var tensorParallel = SliceBySuffix(map[string]int{
	"embed_tokens.weight": 0, "lm_head.weight": 0,
	"q_proj.weight": 0, "k_proj.weight": 0, "v_proj.weight": 0, "q_proj.bias": 0, "k_proj.bias": 0, "v_proj.bias": 0, "o_proj.weight": 1,
	"gate_proj.weight": 0, "up_proj.weight": 0, "gate_proj.bias": 0, "up_proj.bias": 0, "down_proj.weight": 1,

	"token_embd.weight": 0, "output.weight": 0,
	"attn_q.weight": 0, "attn_k.weight": 0, "attn_v.weight": 0, "attn_q.bias": 0, "attn_k.bias": 0, "attn_v.bias": 0, "attn_output.weight": 1,
	"ffn_gate.weight": 0, "ffn_up.weight": 0, "ffn_gate.bias": 0, "ffn_up.bias": 0, "ffn_down.weight": 1,
})
