package staging

import (
	"fmt"
	"slices"
)

// Plan is what to load, in the order in which it is to be delivered. Tensors that follow each other both here and on their
// source share reads.
type Plan []PlanTensor

// PlanTensor is one tensor of a plan, or a slice of one (see [PlanTensor.Slice]).
type PlanTensor struct {
	// TensorInfo describes the tensor. Of a slice it has the slice's own shape, and Begin and End are where it lies: those of a strided
	// slice have other bytes between them, so that its size is what PlanTensor's Bytes says, not TensorInfo's.
	*TensorInfo

	Shard *Shard
	// Device, if not nil, is where Stream puts the tensor in place of its own device. A tensor that several entries of the plan, one after
	// the other, put on several devices is read once, and so are slices of one tensor along the same dimension.
	Device Device
	// Of is the whole tensor that this is a slice of: along Dim, beginning at index From. It is nil for a whole tensor.
	Of   *TensorInfo
	Dim  int
	From int64

	run, stride int64 // a strided slice: runs of so many bytes, that far apart; stride 0: one run
}

// Bytes is the size of the tensor, or of the slice.
func (t PlanTensor) Bytes() int64 {
	if t.stride == 0 {
		return t.End - t.Begin
	}
	return ((t.End-t.Begin-t.run)/t.stride + 1) * t.run
}

// Bytes is the sum of the tensors' sizes.
func (p Plan) Bytes() int64 {
	var n int64
	for _, t := range p {
		n += t.Bytes()
	}
	return n
}

// Filter is the tensors of p that keep wants, in the same order.
func (p Plan) Filter(keep func(PlanTensor) bool) Plan {
	var kept Plan
	for _, t := range p {
		if keep(t) {
			kept = append(kept, t)
		}
	}
	return kept
}

// To is p with all of its tensors to be put on dev.
func (p Plan) To(dev Device) Plan {
	p = slices.Clone(p)
	for i := range p {
		p[i].Device = dev
	}
	return p
}

// Order is the plan with the named tensors first, in the order of the names, and the others behind them as they were. A name that the plan
// does not have is an error, as is one that is given twice.
func (p Plan) Order(names ...string) (Plan, error) {
	at := make(map[string]int, len(names))
	for i, n := range names {
		if _, ok := at[n]; ok {
			return nil, fmt.Errorf("staging: order of a plan: tensor %s is named twice", quoted(n))
		}
		at[n] = i
	}
	named, rest := make([]Plan, len(names)), Plan(nil)
	for _, t := range p {
		if i, ok := at[t.Name]; ok {
			named[i] = append(named[i], t)
		} else {
			rest = append(rest, t)
		}
	}
	for i, n := range names {
		if len(named[i]) == 0 {
			return nil, fmt.Errorf("staging: order of a plan: there is no tensor %s in it", quoted(n))
		}
	}
	return append(slices.Concat(named...), rest...), nil
}

// ReadBytes is how many bytes are read for the plan: more than Bytes by the padding to whole blocks, and by the holes in strided slices that
// are too small to be worth leaving out. The ratio of both is the read amplification. It is exact for the sources and a pool of the default
// buffer size, and close for others.
func (p Plan) ReadBytes() (int64, error) {
	c := cutter{size: DefaultBufferSize}
	for i, t := range p {
		if err := c.add(i, t, true); err != nil {
			return 0, err
		}
	}
	c.admitted = len(p)
	var n int64
	var sl slot
	for c.cur < len(c.groups) {
		c.fill(&sl)
		for _, seg := range sl.segs {
			n += int64(seg.n)
		}
	}
	return n, nil
}
