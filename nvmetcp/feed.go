package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/queue"
)

// Feed is a source of reads for [Namespace.Feed], and of writes. The queues pull from it whenever they
// have room, so that no time passes between the end of one read and the start of the next.
type Feed interface {
	// Next returns the next read. A nil Read with done false means that there is none now: the queue
	// asks again when one of its reads has completed, and when wake is called. done means that this is
	// the last read, or with nil that there are no more; after that nobody asks any more.
	//
	// Next is called on the queues' own threads, several at once, and must not block.
	Next() (r *Read, done bool)
	// Complete hands back a read whose data, or Err, has come. It is called on the queues' own
	// threads, several at once, and must not block.
	Complete(r *Read)
	// Attach is called once, before anything else, with the function that makes all queues ask Next
	// again. wake may be called at any time, from anywhere, and does not block.
	Attach(wake func())
}

// cancelEvery is how often what is still outstanding after the end of the context is cancelled.
const cancelEvery = 20 * time.Millisecond

// Feed reads what f hands out over all queues, and returns when f says that it is done and every read
// has completed. Each read has its own Err; none of them ends the feed. A read longer than MaxIO is an
// ErrTooLarge, and one that goes past the end of the namespace is an ErrRange.
// With data digests, a write may have no more than the controller's MAXH2CDATA either.
//
// When ctx ends, Feed stops asking, takes back what is outstanding, and returns the context's error once
// no buffer is in use any more. When the association is lost it returns that error, likewise. In both
// cases every read that was handed out has been completed, with an Err.
func (n *Namespace) Feed(ctx context.Context, f Feed) error {
	c, err := n.sub.path()
	if err == nil && ctx.Err() != nil {
		err = ended(ctx)
	}
	if err != nil {
		return c.wrap("feed", 0, err)
	}
	run := &feedRun{ns: n, src: f, idle: make(chan struct{}), closed: make(chan struct{})}
	for _, q := range c.io {
		run.parts = append(run.parts, newFeedPart(run, q))
	}
	run.open.Store(int64(len(run.parts)))
	f.Attach(run.wake)
	for _, p := range run.parts {
		p.q.Attach(p)
	}
	select {
	case <-run.idle:
	case <-run.closed:
	case <-ctx.Done():
		return run.cancel(ctx)
	}
	for _, p := range run.parts {
		p.q.Detach(p)
	}
	<-run.closed
	if run.finished() {
		return nil
	}
	return c.wrap("feed", 0, run.err)
}

// feedRun is one call of Namespace.Feed.
type feedRun struct {
	ns    *Namespace
	src   Feed
	parts []*feedPart

	done    atomic.Bool  // Next has said so
	pending atomic.Int64 // reads that have not completed, and calls of Next that have not returned
	idle    chan struct{}
	onIdle  sync.Once // idle is closed: done, and nothing pending

	stop  atomic.Bool // issue no more
	cause error       // why; set before stop

	open   atomic.Int64 // parts that have not been closed
	closed chan struct{}
	mu     sync.Mutex
	err    error // that ended a queue first
}

func (run *feedRun) wake() {
	for _, p := range run.parts {
		p.q.Wake()
	}
}

// leave ends a call of Next or a read.
func (run *feedRun) leave() {
	if run.pending.Add(-1) == 0 && run.done.Load() {
		run.onIdle.Do(func() { close(run.idle) })
	}
}

func (run *feedRun) finished() bool {
	select {
	case <-run.idle:
		return true
	default:
		return false
	}
}

// cancel ends the run because ctx has. A command may be on its way into its queue while it is cancelled,
// so that is done until all are back.
func (run *feedRun) cancel(ctx context.Context) error {
	run.cause = ended(ctx)
	run.stop.Store(true)
	for _, p := range run.parts {
		p.q.Detach(p)
	}
	t := time.NewTicker(cancelEvery)
	defer t.Stop()
	for {
		for _, p := range run.parts {
			p.cancel()
		}
		select {
		case <-run.closed:
			return run.cause
		case <-t.C:
		}
	}
}

// feedPart feeds one queue. Its methods run on the queue's goroutine, except cancel.
type feedPart struct {
	run  *feedRun
	q    *ioQueue
	ops  []op
	free []*op
	redo []*op // to be issued again
}

func newFeedPart(run *feedRun, q *ioQueue) *feedPart {
	depth := q.Info().Depth
	p := &feedPart{run: run, q: q, ops: make([]op, depth), free: make([]*op, 0, depth), redo: make([]*op, 0, depth)}
	for i := range p.ops {
		o := &p.ops[i]
		o.ns, o.q, o.stop, o.cmd.User = run.ns, q, &run.stop, o
		o.scatter = make([][]byte, 0, 3)
		p.free = append(p.free, o)
	}
	return p
}

// Next is the queue's question for a command.
func (p *feedPart) Next() *queue.Command {
	if n := len(p.redo); n > 0 {
		o := p.redo[n-1]
		p.redo = p.redo[:n-1]
		return &o.cmd
	}
	for len(p.free) > 0 && !p.run.stop.Load() && !p.run.done.Load() {
		p.run.pending.Add(1)
		r, done := p.run.src.Next()
		if done {
			p.run.done.Store(true)
		}
		if r == nil {
			p.run.leave()
			return nil
		}
		r.Latency = 0
		if r.Err = p.run.ns.feedable(r); r.Err != nil || len(r.Buf) == 0 {
			p.run.src.Complete(r)
			p.run.leave()
			continue
		}
		o := p.free[len(p.free)-1]
		p.free = p.free[:len(p.free)-1]
		o.read = r
		o.busy.Store(true)
		one := [1][]byte{r.Buf}
		o.aim(r.Write, r.Off, len(r.Buf), &cursor{bufs: one[:]})
		return &o.cmd
	}
	return nil
}

// feedable refuses reads and writes that cannot be one command.
func (n *Namespace) feedable(r *Read) error {
	verb, limit := "read", n.maxRead
	if r.Write {
		verb, limit = "write", n.maxWrite
	}
	if err := n.inside(verb, int64(len(r.Buf)), r.Off); err != nil {
		return err
	}
	if len(r.Buf) > limit {
		return n.opError(verb, int64(len(r.Buf)), r.Off, fmt.Errorf("%w: one %s of a feed has at most %d bytes", ErrTooLarge, verb, limit))
	}
	if r.Write {
		return n.aligned(int64(len(r.Buf)), r.Off)
	}
	return nil
}

// Complete is the queue's report of a command.
func (p *feedPart) Complete(c *queue.Command) {
	o := c.User.(*op)
	if o.again() {
		p.redo = append(p.redo, o)
		return
	}
	p.finish(o, c.Err)
}

func (p *feedPart) finish(o *op, err error) {
	r := o.read
	if err != nil {
		if p.run.stop.Load() && errors.Is(err, context.Canceled) {
			err = p.run.cause
		}
		err = o.failure(err)
	}
	r.Err, r.Latency = err, o.latency
	o.release()
	o.busy.Store(false)
	p.free = append(p.free, o)
	p.run.src.Complete(r)
	p.run.leave()
}

// Closed is the queue's farewell. What was to be issued again never will be.
func (p *feedPart) Closed(err error) {
	for _, o := range p.redo {
		if err != nil {
			p.finish(o, err)
		} else {
			p.finish(o, context.Canceled)
		}
	}
	p.redo = nil
	p.run.mu.Lock()
	if p.run.err == nil {
		p.run.err = err
	}
	p.run.mu.Unlock()
	if p.run.open.Add(-1) == 0 {
		close(p.run.closed)
	}
}

// cancel takes back what the queue has.
func (p *feedPart) cancel() {
	for i := range p.ops {
		if o := &p.ops[i]; o.busy.Load() {
			p.q.Cancel(&o.cmd)
		}
	}
}
