package staging

import (
	"context"
	"errors"
	"fmt"
	"hash"
	"iter"
	"sync/atomic"
)

// Loader streams tensors from their sources through a pool. Only Pool is needed. A loader may run several streams, also
// at once; it must not be copied after the first.
type Loader struct {
	// Pool holds the staging buffers. Reads are cut to its BufferSize and the source's MaxIO; how many are in flight is
	// bounded by its number of buffers.
	Pool *Pool
	// Ahead bounds what Stream allocates on the device beyond the tensors that were delivered: it starts another one only
	// while less than Ahead bytes wait to be read, and less than Ahead bytes behind the tensor that is due wait to be
	// delivered. So a slow consumer finds at most twice Ahead and two tensors there. Entries that
	// are read together, because they overlap, count as one tensor. 0 means the size of the pool.
	Ahead int64
	// OnRead, if not nil, sees each completed read (its Latency, its Err), on the queues' threads and several at once. It
	// must be quick and keep nothing of r.
	OnRead func(r *Read)
	// OnProgress, if not nil, is told of each whole tensor, before it is delivered, on the consumer's goroutine.
	OnProgress func(p Progress)
	// Hash, if not nil, makes the state of a checksum, and Stream computes that of each tensor while it loads. It may be called on several
	// goroutines at once.
	Hash func() hash.Hash

	stats counters
}

// Tensor is one whole tensor on a device.
type Tensor struct {
	PlanTensor

	// Memory holds the tensor's bytes and nothing else. It is the consumer's until Release.
	Memory Memory
	// Sum is the checksum of the tensor's bytes, if the loader has a Hash.
	Sum []byte

	released atomic.Bool
}

// Release frees the tensor's memory. Releasing twice panics.
func (t *Tensor) Release() {
	if t.released.Swap(true) {
		panic("staging: tensor " + quoted(t.Name) + " released twice")
	}
	t.Memory.Free()
}

// Piece is a part of a tensor in a staging buffer. Pieces end where buffers end, which need not be between two elements.
type Piece struct {
	PlanTensor

	// Off is where in the tensor Data belongs, in bytes. Data is the consumer's to read until Release; it is empty only
	// for a tensor without bytes.
	Off  int64
	Data []byte
	// Last is set on the piece that ends the tensor.
	Last bool

	slot     *slot // nil for a tensor without bytes
	released atomic.Bool
}

// Release gives the piece's buffer back to the pool, once all pieces in it are released. Releasing twice panics.
func (p *Piece) Release() {
	if p.released.Swap(true) {
		panic("staging: piece of " + quoted(p.Name) + " released twice")
	}
	if p.slot != nil {
		p.slot.unref(1)
	}
}

// ReadError is a read that failed. It unwraps to the source's error.
type ReadError struct {
	Tensor string // the tensor that was to be read, or the first of several
	Off    int64  // bytes, on the source
	Len    int    // bytes
	Err    error
}

func (e *ReadError) Error() string {
	return fmt.Sprintf("staging: reading tensor %s, %d bytes at %d of its source: %v", quoted(e.Tensor), e.Len, e.Off, e.Err)
}

func (e *ReadError) Unwrap() error { return e.Err }

// Stream loads the tensors of plan into memory of dev and yields them in the plan's order, each as soon as it and all before
// it are whole. The consumer owns a tensor until it calls Release, and may keep it for as long as it likes: the staging
// buffers are free again by then.
//
// After an error, which is yielded once with a nil tensor, the sequence ends. When it has ended, however it did (the
// loop was left, ctx ended, a read failed), no read and no copy is in flight, all buffers are back in the pool, and
// the memory of tensors that were not delivered is freed. Leaving the loop waits for the reads in flight; end ctx to cut them short.
func (l *Loader) Stream(ctx context.Context, plan Plan, dev Device) iter.Seq2[*Tensor, error] {
	return l.stream(ctx, plan, dev, l.Hash)
}

func (l *Loader) stream(ctx context.Context, plan Plan, dev Device, sum func() hash.Hash) iter.Seq2[*Tensor, error] {
	return func(yield func(*Tensor, error) bool) {
		if dev == nil {
			yield(nil, errors.New("staging: Stream needs a device, such as Host; without one there is Pieces"))
			return
		}
		s, err := l.start(ctx, plan, dev, sum)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.drain()
		for i := range s.items {
			t, err := s.tensor(i)
			if err != nil {
				yield(nil, err)
				return
			}
			s.marks.deliver(i, t.Bytes(), true, t.Name)
			if !yield(t, nil) {
				return
			}
		}
		s.drain()
		if err := s.failure(); err != nil {
			yield(nil, err)
		}
	}
}

// Pieces loads the tensors of plan without a device: it yields the parts of each tensor in order, tensor after tensor, in
// the staging buffers themselves. So memory is bounded by the pool even when a tensor is larger than it. The consumer
// calls Release on every piece, also on the one at which it leaves the loop; while it holds all buffers of the pool,
// the next piece does not come. A tensor without bytes has one empty piece.
//
// Errors and the end are as with [Loader.Stream]; pieces that the consumer still holds stay its own.
func (l *Loader) Pieces(ctx context.Context, plan Plan) iter.Seq2[*Piece, error] {
	return func(yield func(*Piece, error) bool) {
		s, err := l.start(ctx, plan, nil, nil)
		if err != nil {
			yield(nil, err)
			return
		}
		defer s.drain()
		next := 0 // the first tensor of the plan that is not fully delivered
		empty := func(until int) bool {
			for ; next < until; next++ {
				it := s.items[next]
				s.marks.deliver(next, 0, true, it.Name)
				if !yield(&Piece{PlanTensor: it.PlanTensor, Last: true}, nil) {
					return false
				}
			}
			return true
		}
		for {
			sl, err := s.next()
			if err != nil {
				yield(nil, err)
				return
			}
			if sl == nil {
				break
			}
			count := len(sl.parts) // the slot is somebody else's after the last Release
			for k := range count {
				i := sl.parts[k].item.index
				if !empty(i) {
					sl.unref(count - k)
					return
				}
				p := sl.piece(k)
				s.marks.deliver(i, int64(len(p.Data)), p.Last, p.Name)
				if p.Last {
					next = i + 1
				}
				if !yield(p, nil) {
					sl.unref(count - k - 1)
					return
				}
			}
		}
		if !empty(len(s.items)) {
			return
		}
		s.drain()
		if err := s.failure(); err != nil {
			yield(nil, err)
		}
	}
}

// start checks the plan and begins to read it: into dev, or for Pieces if dev is nil.
func (l *Loader) start(ctx context.Context, plan Plan, dev Device, sum func() hash.Hash) (*stream, error) {
	if l.Pool == nil {
		return nil, errors.New("staging: the loader has no pool")
	}
	s := newStream(ctx, l, dev, sum)
	for i, t := range plan {
		if err := s.add(i, t, dev != nil); err != nil {
			return nil, err
		}
	}
	for _, f := range s.feeds {
		f.s = s
	}
	s.run()
	return s, nil
}
