package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/nvstage/nvstage/queue"
)

// maxOps is how many ops of one call are outstanding at most.
const maxOps = 512

// request is one call of ReadAt, WriteAt and the like: its ops, and how they went. It is used again,
// with the memory that it has, so that a call allocates nothing.
type request struct {
	ns      *Namespace
	ops     []*op
	n       int // ops in use
	cmds    []*queue.Command
	one     [1][]byte    // list of buffers of a call that has one
	left    atomic.Int32 // ops that have not completed
	done    chan struct{}
	stopped atomic.Bool // the context has ended

	moved int64 // bytes from the start of the range that were moved without a gap
	err   error // the first
}

func newRequest(n *Namespace) *request { return &request{ns: n, done: make(chan struct{}, 1)} }

func (n *Namespace) request() *request { return n.requests.Get().(*request) }

// put gives the request back. One that was stopped is left to the garbage collector, because a
// cancellation may still be on its way to a queue.
func (r *request) put() {
	r.moved, r.err = 0, nil
	r.one[0] = nil
	if !r.stopped.Load() {
		r.ns.requests.Put(r)
	}
}

// add cuts a range of n bytes at off into ops. read is what they are for, or nil.
func (r *request) add(ctx context.Context, write bool, off, n int64, cur *cursor, read *Read) {
	limit := int64(r.ns.maxRead)
	if write {
		limit = int64(r.ns.maxWrite)
	}
	for n > 0 {
		if r.n == maxOps {
			r.flush(ctx)
			if r.err != nil && read == nil {
				return
			}
		}
		if r.n == len(r.ops) {
			r.ops = append(r.ops, &op{ns: r.ns, req: r, stop: &r.stopped})
			r.cmds = append(r.cmds, nil)
		}
		o := r.ops[r.n]
		r.n++
		m := min(n, limit-off%r.ns.block)
		o.read = read
		o.aim(write, off, int(m), cur)
		off += m
		n -= m
	}
}

// flush runs the ops that were added, and waits until all have completed.
func (r *request) flush(ctx context.Context) {
	ops := r.ops[:r.n]
	r.n = 0
	c, err := r.ns.sub.path()
	if err == nil && ctx.Err() != nil {
		err = ended(ctx)
	}
	switch {
	case err != nil:
		for _, o := range ops {
			o.q, o.cmd.Err = nil, err
		}
	case len(ops) == 1:
		r.runOne(ctx, c, ops[0])
	case len(ops) > 1:
		r.runAll(ctx, c, ops)
	}
	for _, o := range ops {
		r.settle(ctx, o)
	}
}

// runOne lets the queue do what it can for a lone command.
func (r *request) runOne(ctx context.Context, c *controller, o *op) {
	o.q = c.pick()
	o.q.outstanding.Add(1)
	for {
		o.cmd.Err = o.q.Do(ctx, &o.cmd)
		if ctx.Err() != nil {
			r.stopped.Store(true)
			if o.cmd.Err != nil && errors.Is(o.cmd.Err, context.Cause(ctx)) {
				o.cmd.Err = context.Canceled
			}
		}
		if !o.again() {
			break
		}
	}
	o.q.outstanding.Add(-1)
}

// runAll spreads the ops over the queues, neighbours together, with one wake-up for each queue.
func (r *request) runAll(ctx context.Context, c *controller, ops []*op) {
	r.left.Store(int32(len(ops)))
	first := c.pick()
	at := int(first.Info().QID) - 1
	queues := min(len(c.io), len(ops))
	for g := range queues {
		q := c.io[(at+g)%len(c.io)]
		lo, hi := g*len(ops)/queues, (g+1)*len(ops)/queues
		q.outstanding.Add(int32(hi - lo))
		for i := lo; i < hi; i++ {
			o := ops[i]
			o.q = q
			o.cmd.Done, o.cmd.User = opDone, o
			r.cmds[i] = &o.cmd
		}
		q.Submit(r.cmds[lo:hi]...)
	}
	select {
	case <-r.done:
		return
	case <-ctx.Done():
	}
	r.stopped.Store(true)
	for _, o := range ops {
		o.q.Cancel(&o.cmd)
	}
	<-r.done
}

// opDone is called by the queue when the command of an op of runAll has completed.
func opDone(c *queue.Command) {
	o := c.User.(*op)
	q, stop := o.q, o.stop
	if o.again() {
		q.Submit(c)
		if stop.Load() { // set after again looked, so runAll may have cancelled what was not submitted
			q.Cancel(c)
		}
		return
	}
	q.outstanding.Add(-1)
	if r := o.req; r.left.Add(-1) == 0 {
		r.done <- struct{}{}
	}
}

// settle takes an op's result.
func (r *request) settle(ctx context.Context, o *op) {
	err := o.cmd.Err
	if err != nil {
		if errors.Is(err, context.Canceled) && r.stopped.Load() {
			err = ended(ctx)
		}
		err = o.failure(err)
	}
	if read := o.read; read != nil {
		read.Latency = max(read.Latency, o.latency)
		if read.Err == nil {
			read.Err = err
		}
	}
	if r.err == nil {
		if r.err = err; err == nil {
			r.moved += int64(o.n)
		}
	}
	o.release()
}

// ended says why ctx has ended: its error, and the cause if that is another.
func ended(ctx context.Context) error {
	err, cause := ctx.Err(), context.Cause(ctx)
	if errors.Is(cause, err) {
		return cause
	}
	return fmt.Errorf("%w: %w", err, cause)
}
