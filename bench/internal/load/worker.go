package load

import (
	"context"
	"time"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/nvmetcp"
)

// worker does a share of the I/Os: one queue's feed, or one goroutine.
type worker interface {
	// run does left I/Os, or with a negative left as many as there is time for.
	run(ctx context.Context, left int64) error
	result() *tally
}

// tally is what one worker counted. Nobody else looks at it before the worker is done.
type tally struct {
	win *measure.Window
	ops int64
	lat *measure.Latencies // nil where the window never opens
	err error              // of the first I/O that failed
	cpu time.Duration      // of the worker's thread
}

// done counts n I/Os, if they count.
func (t *tally) done(n int64, d time.Duration) {
	if t.win.Open() {
		t.ops += n
		t.lat.AddN(d, n)
	}
}

func (t *tally) result() *tally { return t }

// source is the feed of a queue. It needs no lock, because the queue is the only one of its association.
type source struct {
	tally
	ns     *nvmetcp.Namespace
	gen    *generator
	free   []*nvmetcp.Read // last in, first out: the buffer that is handed out is still in the cache
	left   int64
	pinned bool
	began  bool // cpu is what the thread had used before the window opened
	ended  bool // cpu is the difference
}

func (s *source) run(ctx context.Context, left int64) error {
	s.left = left
	if err := s.ns.Feed(ctx, s); err != nil && s.err == nil {
		s.err = err
	}
	return s.err
}

func (s *source) Attach(func()) {}

func (s *source) Next() (*nvmetcp.Read, bool) {
	if s.left == 0 || s.err != nil || s.win.Over() {
		return nil, true
	}
	n := len(s.free) - 1
	if n < 0 {
		return nil, false
	}
	r := s.free[n]
	s.free = s.free[:n]
	s.left--
	r.Off, r.Write = s.gen.next()
	return r, false
}

func (s *source) Complete(r *nvmetcp.Read) {
	s.free = append(s.free, r)
	if r.Err != nil {
		if s.err == nil {
			s.err = r.Err
		}
		return
	}
	s.done(1, r.Latency)
	if s.pinned {
		s.clock()
	}
}

// clock takes the thread's CPU time at both ends of the window.
func (s *source) clock() {
	switch {
	case !s.began && s.win.Open():
		s.cpu, s.began = measure.ThreadCPU()
	case s.began && !s.ended && s.win.Over():
		var now time.Duration
		now, s.ended = measure.ThreadCPU()
		s.cpu = now - s.cpu
	}
}

// caller is a goroutine that calls ReadAt and WriteAt.
type caller struct {
	tally
	ns  *nvmetcp.Namespace
	gen *generator
	buf []byte
}

func (c *caller) run(ctx context.Context, left int64) error {
	for ; left != 0 && !c.win.Over() && c.err == nil; left-- {
		off, write := c.gen.next()
		t := time.Now()
		if write {
			_, c.err = c.ns.WriteAtContext(ctx, c.buf, off)
		} else {
			_, c.err = c.ns.ReadAtContext(ctx, c.buf, off)
		}
		if c.err == nil {
			c.done(1, time.Since(t))
		}
	}
	return c.err
}

// batcher is a goroutine that calls ReadBatch. Each read counts with the time that the whole call took,
// since that is what its caller waits.
type batcher struct {
	tally
	ns    *nvmetcp.Namespace
	gen   *generator
	reads []*nvmetcp.Read
}

func (b *batcher) run(ctx context.Context, left int64) error {
	for left != 0 && !b.win.Over() && b.err == nil {
		list := b.reads
		if left > 0 {
			list = list[:min(left, int64(len(list)))]
		}
		left -= int64(len(list))
		for _, r := range list {
			r.Off, _ = b.gen.next()
		}
		t := time.Now()
		if b.err = b.ns.ReadBatch(ctx, list); b.err == nil {
			b.done(int64(len(list)), time.Since(t))
		}
	}
	return b.err
}
