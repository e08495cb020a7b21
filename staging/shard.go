package staging

import (
	"context"
	"fmt"
	"iter"
)

// Shard is one opened shard on a source.
type Shard struct {
	*Header

	src Source
}

// OpenShard recognises the shard at the start of src and reads its header. The source may be larger than the shard, as a
// namespace is. Errors match [ErrNotShard], [ErrHeader] or [ErrTruncated], or are the source's own.
func OpenShard(ctx context.Context, src Source) (*Shard, error) {
	if b := src.BlockSize(); b <= 0 || src.MaxIO() < 0 {
		return nil, fmt.Errorf("staging: source with blocks of %d bytes and reads of %d", b, src.MaxIO())
	}
	h, err := ReadHeader(ctx, src, src.Size(), TrailingBytes)
	if err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return &Shard{Header: h, src: src}, nil
}

// Plan is all tensors of the shard in file order.
func (s *Shard) Plan() Plan {
	p := make(Plan, len(s.Tensors))
	for i := range s.Tensors {
		p[i] = PlanTensor{Shard: s, TensorInfo: &s.Tensors[i]}
	}
	return p
}

// Stream streams all tensors of the shard into dev. It is [Loader.Stream] with the defaults.
func (s *Shard) Stream(ctx context.Context, pool *Pool, dev Device) iter.Seq2[*Tensor, error] {
	return (&Loader{Pool: pool}).Stream(ctx, s.Plan(), dev)
}

// Model is several shards that belong together.
type Model struct {
	Shards []*Shard
}

// OpenModel opens the shards on all sources. A tensor name that two of them have is an error.
func OpenModel(ctx context.Context, srcs ...Source) (*Model, error) {
	m := &Model{}
	seen := map[string]int{}
	for i, src := range srcs {
		s, err := OpenShard(ctx, src)
		if err != nil {
			return nil, fmt.Errorf("shard %d of %d: %w", i+1, len(srcs), err)
		}
		for k := range s.Tensors {
			name := s.Tensors[k].Name
			if first, ok := seen[name]; ok {
				return nil, fmt.Errorf("staging: tensor %s is in shard %d and in shard %d", quoted(name), first+1, i+1)
			}
			seen[name] = i
		}
		m.Shards = append(m.Shards, s)
	}
	return m, nil
}

// Plan is all tensors of the model, shard by shard in file order.
func (m *Model) Plan() Plan {
	var p Plan
	for _, s := range m.Shards {
		p = append(p, s.Plan()...)
	}
	return p
}

// Stream streams all tensors of the model into dev. It is [Loader.Stream] with the defaults.
func (m *Model) Stream(ctx context.Context, pool *Pool, dev Device) iter.Seq2[*Tensor, error] {
	return (&Loader{Pool: pool}).Stream(ctx, m.Plan(), dev)
}

// Plan is what to load, in the order in which it is to be delivered. Tensors that follow each other both here and on their
// source share reads, so file order needs the fewest.
type Plan []PlanTensor

// PlanTensor is one tensor of a plan.
type PlanTensor struct {
	*TensorInfo

	Shard *Shard
}

// Bytes is the sum of the tensors' data.
func (p Plan) Bytes() int64 {
	var n int64
	for _, t := range p {
		n += t.Bytes()
	}
	return n
}
