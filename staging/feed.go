package staging

import "fmt"

// feed hands out the reads of one shard. It implements [Feed]; all fields but the first ones are under the stream's mu.
type feed struct {
	s           *stream
	shard       *Shard
	size        int64 // of the source
	block       int64
	chunk       int64 // longest read, whole blocks
	items       []int // the shard's tensors with bytes, as indices of the plan
	wake        func()
	running     bool
	hungry      bool  // it had nothing when it was asked last
	cur         int   // the next tensor: items[cur]
	pos         int64 // where its next read begins on the source, -1 at its start
	outstanding int
}

// start runs the feed if it does not run yet. The caller holds mu.
func (f *feed) start() {
	if f.running || f.s.stopping {
		return
	}
	f.running = true
	f.s.reading.Go(f.run)
}

func (f *feed) run() {
	s := f.s
	err := f.shard.src.Feed(s.ctx, f)
	s.mu.Lock()
	f.hungry = false // nobody to wake
	switch {
	case err != nil:
	case f.outstanding > 0:
		// Their buffers may still be written to, so they are lost to the pool rather than used again.
		err = fmt.Errorf("staging: the source returned with %d reads in flight", f.outstanding)
	case f.cur < len(f.items) && !s.stopping:
		err = fmt.Errorf("staging: the source returned before everything was read")
	}
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
}

// Attach keeps wake. See [Feed].
func (f *feed) Attach(wake func()) {
	f.s.mu.Lock()
	f.wake = wake
	f.s.mu.Unlock()
}

// Next hands out the next read of the shard. See [Feed].
func (f *feed) Next() (r *Read, done bool) {
	s := f.s
	s.mu.Lock()
	if s.stopping || f.cur == len(f.items) {
		s.mu.Unlock()
		return nil, true
	}
	if f.items[f.cur] >= s.admitted || s.dev == nil && s.head() != f {
		f.hungry = true
		s.mu.Unlock()
		return nil, false
	}
	buf, ok := s.pool.TryGet()
	if !ok {
		f.hungry = true
		s.mu.Unlock()
		return nil, false
	}
	sl := f.cut(buf)
	f.outstanding++
	var wake func()
	if s.dev == nil {
		s.queue.push(sl)
		if h := s.head(); h != nil && h != f {
			h.start()
			if h.hungry {
				h.hungry, wake = false, h.wake
			}
		}
	}
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
	if s.dev != nil {
		s.allocator.Signal()
	}
	return &sl.read, false
}

// cut makes the next read of the shard, into buf: up to chunk bytes in whole blocks, over as many tensors as follow each
// other in the plan and on the source. The caller holds mu.
func (f *feed) cut(buf Buffer) *slot {
	s := f.s
	it := s.items[f.items[f.cur]]
	if f.pos < 0 {
		f.pos = it.start - it.start%f.block
	}
	limit := f.pos + f.chunk
	end, last := it.end, f.cur
	for end < limit && last+1 < len(f.items) {
		i := f.items[last+1]
		if i != f.items[last]+1 || i >= s.admitted || s.items[i].start != end {
			break
		}
		last++
		end = s.items[i].end
	}
	stop := min(limit, f.size)
	if end < stop {
		stop = min(stop, (end+f.block-1)/f.block*f.block)
	}

	sl := &s.slots[buf.index]
	sl.buf, sl.feed, sl.first, sl.count, sl.ready = buf, f, f.cur, last-f.cur+1, false
	n := stop - f.pos
	sl.read.Off, sl.read.Buf, sl.read.Err, sl.read.Latency = f.pos, buf.Bytes()[:n:n], nil, 0

	bytes := min(end, stop) - max(it.start, f.pos)
	s.lead -= bytes
	s.waiting += bytes
	if f.cur, f.pos = last, stop; end <= stop {
		f.cur, f.pos = last+1, -1
	}
	return sl
}

// Complete takes a read back. See [Feed].
func (f *feed) Complete(r *Read) {
	s := f.s
	sl := s.bySlot[r]
	if s.loader.OnRead != nil {
		s.loader.OnRead(r)
	}
	if r.Err == nil {
		s.loader.stats.reads.Add(1)
		s.loader.stats.readBytes.Add(int64(len(r.Buf)))
		s.mu.Lock()
		f.outstanding--
		sl.ready = true
		if s.dev != nil {
			s.queue.push(sl)
		}
		s.mu.Unlock()
		if s.dev != nil {
			s.copier.Signal()
		} else {
			s.consumer.Signal()
		}
		return
	}
	it := s.items[f.items[sl.first]]
	err := &ReadError{Tensor: it.Name, Off: r.Off, Len: len(r.Buf), Err: r.Err}
	s.mu.Lock()
	f.outstanding--
	s.mu.Unlock()
	s.fail(err)
	sl.buf.Release()
}
