package staging

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// stream is one run of a loader.
//
// Reads go out in the order of the plan, one feed per shard. With a device, several feeds may read at once, a copier
// moves each completed buffer to the device and frees it, and an allocator starts tensors ahead of the reads. Without
// one, only the feed that is first in the plan reads: otherwise buffers that are not due yet could fill the pool, and
// the one that is due would never get any.
type stream struct {
	ctx    context.Context
	loader *Loader
	pool   *Pool
	dev    Device // nil: pieces
	ahead  int64
	begun  time.Time
	items  []*item // the plan
	feeds  []*feed
	slots  []slot // by buffer index
	bySlot map[*Read]*slot

	unhook  func()
	unwatch func() bool
	reading sync.WaitGroup // running feeds
	helpers sync.WaitGroup // allocator and copier

	mu       sync.Mutex
	err      error // the first one
	stopping bool  // nothing new is begun
	drained  bool  // no feed runs any more
	admitted int   // items that have been started
	due      int   // the item that is delivered next
	lead     int64 // bytes of admitted items that are not handed out yet
	waiting  int64 // bytes handed out of items that are not delivered yet
	copying  int   // slots that the device is reading
	queue    ring  // completed slots for the copier; without a device, slots in order for the consumer

	consumer, copier, allocator sync.Cond // each for one waiter
}

// item is one tensor of the plan.
type item struct {
	PlanTensor

	start, end int64 // on the source
	mem        Memory
	missing    int64 // bytes that have not reached mem
}

// slot is one buffer in use. There are as many as the pool has buffers, so getting one never fails.
type slot struct {
	read  Read
	buf   Buffer
	feed  *feed
	first int // the tensors in it: feed.items[first : first+count]
	count int
	ready bool         // completed without an error
	refs  atomic.Int32 // copies or pieces that still need the buffer
	done  func(error)  // told by the device of each copy; made once
}

func newStream(ctx context.Context, l *Loader, dev Device) *stream {
	s := &stream{ctx: ctx, loader: l, pool: l.Pool, dev: dev, ahead: l.Ahead, begun: time.Now()}
	if s.ahead <= 0 {
		s.ahead = s.pool.info.Bytes
	}
	s.slots = make([]slot, s.pool.info.Buffers)
	s.bySlot = make(map[*Read]*slot, len(s.slots))
	for i := range s.slots {
		sl := &s.slots[i]
		s.bySlot[&sl.read] = sl
		if dev != nil {
			sl.done = func(err error) { s.copied(sl, err) }
		}
	}
	s.queue.slots = make([]*slot, len(s.slots))
	s.consumer.L, s.copier.L, s.allocator.L = &s.mu, &s.mu, &s.mu
	return s
}

// add appends a tensor to the plan.
func (s *stream) add(t PlanTensor) error {
	it := &item{PlanTensor: t, missing: t.Bytes(), start: t.Shard.DataOffset + t.Begin, end: t.Shard.DataOffset + t.End}
	if size := t.Shard.src.Size(); it.end > size {
		return fmt.Errorf("staging: tensor %s ends at %d: %w of now %d bytes", quoted(t.Name), it.end, ErrTruncated, size)
	}
	s.items = append(s.items, it)
	if it.missing == 0 {
		return nil
	}
	for _, f := range s.feeds {
		if f.shard == t.Shard {
			f.items = append(f.items, len(s.items)-1)
			return nil
		}
	}
	f := &feed{s: s, shard: t.Shard, size: t.Shard.src.Size(), block: int64(t.Shard.src.BlockSize()), items: []int{len(s.items) - 1}, pos: -1}
	f.chunk = int64(s.pool.info.BufferSize)
	if m := t.Shard.src.MaxIO(); m > 0 {
		f.chunk = min(f.chunk, int64(m))
	}
	if f.chunk -= f.chunk % f.block; f.chunk == 0 {
		return fmt.Errorf("staging: buffers of %d bytes and reads of at most %d cannot hold a block of %d", s.pool.info.BufferSize, t.Shard.src.MaxIO(), f.block)
	}
	s.feeds = append(s.feeds, f)
	return nil
}

func (s *stream) run() {
	s.loader.stats.first.Store(0)
	s.unhook = s.pool.OnRelease(s.wakeHungry)
	s.unwatch = context.AfterFunc(s.ctx, func() { s.fail(context.Cause(s.ctx)) })
	if s.dev != nil {
		s.helpers.Go(s.allocate)
		s.helpers.Go(s.copy)
		return
	}
	s.mu.Lock()
	s.admitted = len(s.items)
	if f := s.head(); f != nil {
		f.start()
	}
	s.mu.Unlock()
}

// head is the feed whose next tensor is the first in the plan, or nil when all is handed out. The caller holds mu.
func (s *stream) head() *feed {
	var h *feed
	for _, f := range s.feeds {
		if f.cur < len(f.items) && (h == nil || f.items[f.cur] < h.items[h.cur]) {
			h = f
		}
	}
	return h
}

// fail records the first error and stops the stream. An error caused by the end of ctx is the cause of that.
func (s *stream) fail(err error) {
	s.mu.Lock()
	if s.err == nil {
		s.err = err
		if cause := context.Cause(s.ctx); cause != nil {
			s.err = cause
		}
	}
	s.mu.Unlock()
	s.stop()
}

// stop makes everybody finish what is in flight and begin nothing.
func (s *stream) stop() {
	s.mu.Lock()
	s.stopping = true
	s.mu.Unlock()
	s.consumer.Broadcast()
	s.copier.Broadcast()
	s.allocator.Broadcast()
	s.wakeHungry()
}

// wakeHungry wakes the feeds that had nothing to hand out when they were asked last.
func (s *stream) wakeHungry() {
	for _, f := range s.feeds {
		s.mu.Lock()
		hungry := f.hungry
		f.hungry = false
		s.mu.Unlock()
		if hungry {
			f.wake()
		}
	}
}

// failure is the first error.
func (s *stream) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// drain ends the stream: it returns when nothing is in flight, and gives everything back that was not delivered.
func (s *stream) drain() {
	if s.drained {
		return
	}
	s.unwatch()
	s.stop()
	s.reading.Wait()
	s.mu.Lock()
	s.drained = true
	s.mu.Unlock()
	s.copier.Broadcast()
	s.helpers.Wait()
	s.unhook()
	if s.dev == nil {
		for sl := s.queue.pop(); sl != nil; sl = s.queue.pop() {
			if sl.ready {
				sl.buf.Release()
			}
		}
		return
	}
	for _, it := range s.items {
		if it.mem != nil {
			it.mem.Free()
			it.mem = nil
		}
	}
}

// count adds a delivery to the statistics.
func (s *stream) count(n int64, whole bool) {
	s.loader.stats.bytes.Add(n)
	if whole {
		s.loader.stats.tensors.Add(1)
		s.loader.stats.first.CompareAndSwap(0, int64(time.Since(s.begun)))
	}
}

// tensor waits for item i to be whole and hands it over.
func (s *stream) tensor(i int) (*Tensor, error) {
	it := s.items[i]
	s.mu.Lock()
	for s.err == nil && (i >= s.admitted || it.missing > 0) {
		s.consumer.Wait()
	}
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	t := &Tensor{PlanTensor: it.PlanTensor, Memory: it.mem}
	it.mem = nil
	s.due = i + 1
	s.waiting -= it.Bytes()
	s.mu.Unlock()
	s.allocator.Signal()
	s.count(it.Bytes(), true)
	return t, nil
}

// allocate starts tensors ahead of the reads.
func (s *stream) allocate() {
	for i, it := range s.items {
		s.mu.Lock()
		// The tensor that is due does not count as waiting: however large, it must not keep the next one from starting.
		for !s.stopping && (s.lead >= s.ahead || s.waiting-s.items[s.due].Bytes() >= s.ahead) {
			s.allocator.Wait()
		}
		stopping := s.stopping
		s.mu.Unlock()
		if stopping {
			return
		}
		mem, err := s.dev.Alloc(it.Bytes())
		if err != nil {
			s.fail(fmt.Errorf("staging: tensor %s: %w", quoted(it.Name), err))
			return
		}
		s.mu.Lock()
		it.mem = mem // if the stream is stopping, drain frees it
		s.admitted = i + 1
		s.lead += it.Bytes()
		for _, f := range s.feeds {
			if f.shard == it.Shard && it.missing > 0 {
				f.start()
			}
		}
		s.mu.Unlock()
		if it.Bytes() == 0 {
			s.consumer.Signal()
		} else {
			s.wakeHungry()
		}
	}
}

// copy moves completed reads to the device until the stream is drained.
func (s *stream) copy() {
	for {
		s.mu.Lock()
		for s.queue.n == 0 && !s.drained {
			s.copier.Wait()
		}
		sl := s.queue.pop()
		if sl == nil {
			for s.copying > 0 {
				s.copier.Wait()
			}
			s.mu.Unlock()
			return
		}
		stopping := s.stopping
		if !stopping {
			s.copying++
		}
		s.mu.Unlock()
		if stopping {
			sl.buf.Release()
			continue
		}
		sl.refs.Store(int32(sl.count))
		count := sl.count // the slot is somebody else's after the last copy
		for k := range count {
			it, off, data := sl.part(k)
			s.dev.CopyIn(it.mem, off, data, sl.done)
		}
	}
}

// copied is told of each copy out of sl. The last one frees the buffer.
func (s *stream) copied(sl *slot, err error) {
	if err != nil {
		s.fail(fmt.Errorf("staging: copying to %s: %w", s.dev.Name(), err))
	}
	if sl.refs.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	if s.err == nil { // after a failed copy nothing counts
		for k := range sl.count {
			it, _, data := sl.part(k)
			it.missing -= int64(len(data))
		}
	}
	s.mu.Unlock()
	sl.buf.Release()
	s.mu.Lock()
	s.copying--
	drained := s.drained
	s.mu.Unlock()
	s.consumer.Signal()
	if drained {
		s.copier.Signal()
	}
}

// next waits for the slot that is next in order, and hands it over with a reference for each of its pieces. It returns nil after the last one.
func (s *stream) next() (*slot, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for s.err == nil && !(s.queue.n > 0 && s.queue.slots[s.queue.at].ready) {
		if s.queue.n == 0 && s.head() == nil {
			return nil, nil
		}
		s.consumer.Wait()
	}
	if s.err != nil {
		return nil, s.err
	}
	sl := s.queue.pop()
	sl.refs.Store(int32(sl.count))
	return sl, nil
}

// part is the k-th tensor in the slot, where in the tensor the slot's bytes belong, and these.
func (sl *slot) part(k int) (it *item, off int64, data []byte) {
	it = sl.feed.s.items[sl.feed.items[sl.first+k]]
	from := max(it.start, sl.read.Off)
	to := min(it.end, sl.read.Off+int64(len(sl.read.Buf)))
	a, b := from-sl.read.Off, to-sl.read.Off
	return it, from - it.start, sl.read.Buf[a:b:b]
}

func (sl *slot) piece(k int) *Piece {
	it, off, data := sl.part(k)
	return &Piece{PlanTensor: it.PlanTensor, Off: off, Data: data, Last: off+int64(len(data)) == it.Bytes(), slot: sl}
}

// unref drops n references of pieces, and frees the buffer with the last one.
func (sl *slot) unref(n int) {
	if n > 0 && sl.refs.Add(int32(-n)) == 0 {
		sl.buf.Release()
	}
}

// ring is a queue of slots that never holds more than there are.
type ring struct {
	slots []*slot
	at, n int
}

func (r *ring) push(sl *slot) {
	r.slots[(r.at+r.n)%len(r.slots)] = sl
	r.n++
}

func (r *ring) pop() *slot {
	if r.n == 0 {
		return nil
	}
	sl := r.slots[r.at]
	r.at = (r.at + 1) % len(r.slots)
	r.n--
	return sl
}
