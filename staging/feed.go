package staging

import "fmt"

// feed hands out the reads of one shard. It implements [Feed]; all fields but the first ones are under the stream's mu.
type feed struct {
	s           *stream
	shard       *Shard
	size        int64 // of the source
	block       int64
	io          int64 // longest read, whole blocks
	wake        func()
	running     bool
	hungry      bool // it had nothing when it was asked last
	left        int  // groups that are not cut yet
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
	case !f.spent() && !s.stopping:
		err = fmt.Errorf("staging: the source returned before everything was read")
	}
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
}

// spent reports whether everything has been handed out. The caller holds mu.
func (f *feed) spent() bool { return f.left == 0 && (f.s.open == nil || f.s.open.feed != f) }

// rouse takes hungry back and returns how to wake the feed, nil if it was not hungry. The caller holds mu.
func (f *feed) rouse() (wake func()) {
	if f.hungry {
		f.hungry, wake = false, f.wake
	}
	return wake
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
	if s.stopping || f.spent() {
		s.mu.Unlock()
		return nil, true
	}
	if s.open == nil && s.head() == f && s.ready() {
		s.cut()
	}
	if s.open == nil || s.open.feed != f {
		f.hungry = true
		s.mu.Unlock()
		return nil, false
	}
	r = s.read()
	var wake func()
	if s.open == nil && s.head() != f {
		wake = s.turn()
	}
	s.mu.Unlock()
	if wake != nil {
		wake()
	}
	s.allocator.Signal()
	return r, false
}

// Complete takes a read back. See [Feed].
func (f *feed) Complete(r *Read) {
	s := f.s
	if s.loader.OnRead != nil {
		s.loader.OnRead(r)
	}
	err := r.Err
	if err == nil {
		s.loader.stats.reads.Add(1)
		s.loader.stats.readBytes.Add(int64(len(r.Buf)))
	}
	s.mu.Lock()
	sl := s.reads[r]
	if err != nil {
		err = &ReadError{Tensor: sl.tensorAt(r.Off, len(r.Buf)), Off: r.Off, Len: len(r.Buf), Err: err}
		sl.failed = true
	}
	f.outstanding--
	sl.outstanding--
	s.idle = append(s.idle, r)
	whole, failed := sl.outstanding == 0 && s.open != sl, sl.failed
	if whole && !failed {
		s.complete(sl)
	}
	s.mu.Unlock()
	if err != nil {
		s.fail(err)
	}
	if whole && failed {
		sl.buf.Release()
	}
}
