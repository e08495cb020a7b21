package staging

import (
	"errors"
	"fmt"
)

// ErrSplit: the parts of a split GGUF model are not all there, or not in order, or not of one model.
var ErrSplit = errors.New("incomplete split model")

const (
	splitNoKey      = "split.no"
	splitCountKey   = "split.count"
	splitTensorsKey = "split.tensors.count"
)

// checkSplit checks that the shards of a model, if one of them is a part of a split GGUF model, are all parts of it in order.
func checkSplit(shards []*Shard) error {
	count := int64(1)
	for _, s := range shards {
		if n, ok := s.splitCount(); ok {
			count = n
			break
		}
	}
	if count == 1 {
		return nil
	}
	if int64(len(shards)) != count {
		return fmt.Errorf("%w: it has %d parts, and there are %d shards", ErrSplit, count, len(shards))
	}
	tensors := 0
	for i, s := range shards {
		n, ok := s.splitCount()
		if !ok || n != count {
			return fmt.Errorf("%w: shard %d of %d is not a part of it, or of another one: its %s is %d", ErrSplit, i+1, count, splitCountKey, n)
		}
		if no, ok := s.GGUF.Int(splitNoKey); !ok || no != int64(i) {
			return fmt.Errorf("%w: shard %d of %d has %s %d, want %d: give the parts in their order", ErrSplit, i+1, count, splitNoKey, no, i)
		}
		tensors += len(s.Tensors)
	}
	for i, s := range shards {
		if want, ok := s.GGUF.Int(splitTensorsKey); ok && want != int64(tensors) {
			return fmt.Errorf("%w: %s of shard %d is %d, and the parts have %d tensors", ErrSplit, splitTensorsKey, i+1, want, tensors)
		}
	}
	return nil
}

// splitCount is in how many parts the model of a GGUF shard was split. ok is false if it was not.
func (s *Shard) splitCount() (n int64, ok bool) {
	if s.GGUF == nil {
		return 0, false
	}
	n, ok = s.GGUF.Int(splitCountKey)
	return n, ok && n != 1
}
