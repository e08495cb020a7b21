package staging

import (
	"context"
	"fmt"
	"hash"
	"runtime"
	"sync"
	"sync/atomic"
)

// stream is one run of a loader.
//
// Buffers are filled strictly in the order of the plan, by reads that the feeds of all shards hand out: one buffer after
// the other, and one read after the other. With a device, an allocator starts tensors ahead of the reads, and workers take the
// buffers that are complete, the first in the plan first, close the holes in slices, copy to the device, and compute checksums.
// Without one, the consumer gets the buffers in order.
type stream struct {
	cutter // under mu

	ctx    context.Context
	loader *Loader
	pool   *Pool
	dev    Device // nil: pieces
	sum    func() hash.Hash
	ahead  int64
	slots  []slot // by buffer index
	marks  *marks

	unhook  func()
	unwatch func() bool
	reading sync.WaitGroup // running feeds
	helpers sync.WaitGroup // allocator and workers

	mu       sync.Mutex
	err      error // the first one
	stopping bool  // nothing new is begun
	drained  bool  // no feed runs any more
	open     *slot // the buffer whose reads are being handed out
	seq      int64 // buffers that were filled
	reads    map[*Read]*slot
	idle     []*Read // of reads, those that are not in flight
	due      int     // the item that is delivered next
	lead     int64   // bytes of admitted items that are not handed out yet
	waiting  int64   // bytes handed out of items that are not delivered yet
	copying  int     // slots that workers and the device have
	queue    ring    // complete slots for the workers; without a device, slots in order for the consumer

	consumer, worker, allocator sync.Cond // worker: for several waiters, the others for one
}

// slot is one buffer in use. There are as many as the pool has buffers, so getting one never fails.
type slot struct {
	buf     Buffer
	feed    *feed
	seq     int64
	segs    []segment
	parts   []part
	gathers bool // parts have holes

	seg, pos    int // the next read begins pos bytes into segs[seg]
	outstanding int // reads
	failed      bool
	ready       bool         // complete, without an error
	refs        atomic.Int32 // copies, checksums or pieces that still need the buffer
	done        func(error)  // told by the device of each copy; made once
}

func newStream(ctx context.Context, l *Loader, dev Device, sum func() hash.Hash) *stream {
	s := &stream{ctx: ctx, loader: l, pool: l.Pool, dev: dev, sum: sum, ahead: l.Ahead, reads: map[*Read]*slot{}}
	if s.ahead <= 0 {
		s.ahead = s.pool.info.Bytes
	}
	s.size = s.pool.info.BufferSize
	s.slots = make([]slot, s.pool.info.Buffers)
	if dev != nil {
		for i := range s.slots {
			sl := &s.slots[i]
			sl.done = func(err error) { s.copied(sl, err) }
		}
	}
	s.queue.slots = make([]*slot, len(s.slots))
	s.consumer.L, s.worker.L, s.allocator.L = &s.mu, &s.mu, &s.mu
	return s
}

func (s *stream) run() {
	s.marks = newMarks(s.loader, s.items)
	s.unhook = s.pool.OnRelease(s.wakeHungry)
	s.unwatch = context.AfterFunc(s.ctx, func() { s.fail(context.Cause(s.ctx)) })
	if s.dev != nil {
		s.helpers.Go(s.allocate)
		// A single one cannot copy to host memory, or compute checksums, as fast as queues read.
		workers := runtime.GOMAXPROCS(0)
		if s.sum == nil {
			workers = min(workers, 4)
		}
		for range workers {
			s.helpers.Go(s.work)
		}
	}
	s.mu.Lock()
	if s.dev == nil {
		s.admitted = len(s.items)
		s.turn()
	}
	s.mu.Unlock()
}

// head is the feed whose turn it is, or nil when all is handed out. The caller holds mu.
func (s *stream) head() *feed {
	switch {
	case s.open != nil:
		return s.open.feed
	case s.cur < len(s.groups):
		return s.groups[s.cur].feed
	}
	return nil
}

// turn starts the feed whose turn it is, if there is something for it, and returns how to wake it if it had nothing to hand out when it was asked
// last. The caller holds mu.
func (s *stream) turn() (wake func()) {
	f := s.head()
	if f == nil || s.open == nil && !s.ready() {
		return nil
	}
	f.start()
	return f.rouse()
}

// cut makes the next buffer the open one, if there is one. The caller holds mu.
func (s *stream) cut() {
	buf, ok := s.pool.TryGet()
	if !ok {
		return
	}
	sl := &s.slots[buf.index]
	sl.buf, sl.seq, sl.seg, sl.pos, sl.failed, sl.ready = buf, s.seq, 0, 0, false, false
	s.seq++
	s.fill(sl)
	s.open = sl
	if s.dev == nil {
		s.queue.push(sl)
		return
	}
	for k := range sl.parts {
		s.lead -= sl.parts[k].n
		s.waiting += sl.parts[k].n
	}
}

// read is the next read into the open buffer. The caller holds mu.
func (s *stream) read() *Read {
	var r *Read
	if n := len(s.idle); n > 0 {
		r, s.idle = s.idle[n-1], s.idle[:n-1]
	} else {
		r = new(Read)
	}
	sl := s.open
	seg := &sl.segs[sl.seg]
	n := min(seg.n-sl.pos, int(sl.feed.io))
	at := seg.at + sl.pos
	r.Off, r.Buf, r.Err, r.Latency = seg.off+int64(sl.pos), sl.buf.Bytes()[at:at+n:at+n], nil, 0
	s.reads[r] = sl
	sl.outstanding++
	sl.feed.outstanding++
	if sl.pos += n; sl.pos == seg.n {
		if sl.seg, sl.pos = sl.seg+1, 0; sl.seg == len(sl.segs) {
			s.open = nil
		}
	}
	return r
}

// complete is called when all of a slot has come. The caller holds mu.
func (s *stream) complete(sl *slot) {
	sl.ready = true
	if s.dev != nil {
		s.queue.insert(sl)
		s.worker.Signal()
	} else if s.queue.first() == sl {
		s.consumer.Signal()
	}
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
	s.worker.Broadcast()
	s.allocator.Broadcast()
	for _, f := range s.feeds {
		s.mu.Lock()
		wake := f.rouse()
		s.mu.Unlock()
		if wake != nil {
			wake()
		}
	}
}

// wakeHungry has the feed whose turn it is asked again.
func (s *stream) wakeHungry() {
	s.mu.Lock()
	wake := s.turn()
	s.mu.Unlock()
	if wake != nil {
		wake()
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
	open := s.open
	s.mu.Unlock()
	s.worker.Broadcast()
	s.helpers.Wait()
	for _, it := range s.items {
		for _, p := range it.sum.parked {
			s.unref(p.slot)
		}
	}
	s.mu.Lock()
	for s.copying > 0 {
		s.consumer.Wait()
	}
	s.mu.Unlock()
	s.unhook()
	if open != nil && open.outstanding == 0 {
		open.buf.Release() // some of its reads were never handed out
	}
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

// tensor waits for item i to be whole and hands it over.
func (s *stream) tensor(i int) (*Tensor, error) {
	it := s.items[i]
	s.mu.Lock()
	s.due = i
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
	if s.sum != nil {
		t.Sum = it.sum.result(s.sum)
	}
	s.allocator.Signal()
	return t, nil
}

// allocate starts tensors ahead of the reads.
func (s *stream) allocate() {
	for i, it := range s.items {
		s.mu.Lock()
		// The tensor that is due does not count as waiting: however large, it must not keep the next one from starting. Nor may
		// half of those wait that are read together.
		for !s.stopping && !it.joins && (s.lead >= s.ahead || s.waiting-s.items[s.due].Bytes() >= s.ahead) {
			s.allocator.Wait()
		}
		stopping := s.stopping
		s.mu.Unlock()
		if stopping {
			return
		}
		if it.dev = it.Device; it.dev == nil {
			it.dev = s.dev
		}
		mem, err := it.dev.Alloc(it.Bytes())
		if err != nil {
			s.fail(fmt.Errorf("staging: tensor %s: %w", quoted(it.Name), err))
			return
		}
		s.mu.Lock()
		it.mem = mem // if the stream is stopping, drain frees it
		s.admitted = i + 1
		s.lead += it.Bytes()
		s.mu.Unlock()
		if it.Bytes() == 0 {
			s.consumer.Signal()
		} else {
			s.wakeHungry()
		}
	}
}

// work moves complete buffers to the device until the stream is drained.
func (s *stream) work() {
	var scratch []byte
	for {
		s.mu.Lock()
		for s.queue.n == 0 && !s.drained {
			s.worker.Wait()
		}
		sl := s.queue.pop()
		stopping := s.stopping
		if sl != nil && !stopping {
			s.copying++
		}
		s.mu.Unlock()
		switch {
		case sl == nil:
			return
		case stopping:
			sl.buf.Release()
		default:
			scratch = sl.gather(scratch)
			s.move(sl)
		}
	}
}

// move copies all parts of a slot to the device, and has their checksums computed.
func (s *stream) move(sl *slot) {
	count := len(sl.parts) // the slot is somebody else's after the last of them
	if s.sum == nil {
		sl.refs.Store(int32(count))
	} else {
		sl.refs.Store(int32(2 * count))
	}
	for k := range count {
		p := &sl.parts[k]
		p.item.dev.CopyIn(p.item.mem, p.off, sl.data(p), sl.done)
		if s.sum != nil {
			s.hash(sl, k)
		}
	}
}

// copied is told of each copy out of sl.
func (s *stream) copied(sl *slot, err error) {
	if err != nil {
		s.fail(fmt.Errorf("staging: copying to a device: %w", err))
	}
	s.unref(sl)
}

// unref takes away one of the references of move. The last one frees the buffer.
func (s *stream) unref(sl *slot) {
	if sl.refs.Add(-1) > 0 {
		return
	}
	s.mu.Lock()
	if s.err == nil { // after a failed copy nothing counts
		for k := range sl.parts {
			sl.parts[k].item.missing -= sl.parts[k].n
		}
	}
	s.mu.Unlock()
	sl.buf.Release()
	s.mu.Lock()
	s.copying--
	wanted := s.drained || s.due < len(s.items) && s.items[s.due].missing == 0
	s.mu.Unlock()
	if wanted {
		s.consumer.Signal()
	}
}

// next waits for the slot that is next in order, and hands it over with a reference for each of its pieces. It returns nil after the last one.
func (s *stream) next() (*slot, error) {
	s.mu.Lock()
	for s.err == nil && (s.queue.n == 0 || !s.queue.first().ready) {
		if s.queue.n == 0 && s.head() == nil {
			s.mu.Unlock()
			return nil, nil
		}
		s.consumer.Wait()
	}
	if s.err != nil {
		defer s.mu.Unlock()
		return nil, s.err
	}
	sl := s.queue.pop()
	s.mu.Unlock()
	sl.gather(nil) // there is no group of several
	sl.refs.Store(int32(len(sl.parts)))
	return sl, nil
}

// data is the bytes of a part, after gather.
func (sl *slot) data(p *part) []byte {
	end := p.at + int(p.n)
	return sl.buf.Bytes()[p.at:end:end]
}

// tensorAt is the first tensor that needs some of the n bytes at off.
func (sl *slot) tensorAt(off int64, n int) string {
	for k := range sl.parts {
		if it := sl.parts[k].item; it.start < off+int64(n) && it.end > off {
			return it.Name
		}
	}
	return ""
}

func (sl *slot) piece(k int) *Piece {
	p := &sl.parts[k]
	return &Piece{PlanTensor: p.item.PlanTensor, Off: p.off, Data: sl.data(p), Last: p.off+p.n == p.item.Bytes(), slot: sl}
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

func (r *ring) place(i int) *(*slot) { return &r.slots[(r.at+i)%len(r.slots)] }

func (r *ring) push(sl *slot) {
	*r.place(r.n) = sl
	r.n++
}

// insert puts sl where it belongs by its seq: nearly always at the end, or close to it.
func (r *ring) insert(sl *slot) {
	r.push(sl)
	for i := r.n - 1; i > 0 && (*r.place(i - 1)).seq > sl.seq; i-- {
		*r.place(i), *r.place(i - 1) = *r.place(i - 1), sl
	}
}

// first is the slot that pop takes, nil if there is none.
func (r *ring) first() *slot {
	if r.n == 0 {
		return nil
	}
	return r.slots[r.at]
}

func (r *ring) pop() *slot {
	sl := r.first()
	if sl != nil {
		r.at = (r.at + 1) % len(r.slots)
		r.n--
	}
	return sl
}
