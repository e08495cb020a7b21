package queue

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/nvstage/nvstage/pdu"
)

// Queue is one NVMe queue pair over one TCP connection. Its methods may be called from any goroutine.
type Queue struct {
	cfg  Config
	info Info

	submitted atomic.Pointer[Command] // newest first; &dead once the queue has ended
	attention atomic.Bool             // ctl, a cancel, or a Wake wants to be looked at
	sleeping  atomic.Bool             // the goroutine is, or is about to be, in driver.wait
	dead      Command                 // its address marks the end of submitted
	drv       driver

	mu    sync.Mutex
	ctl   []func(*engine) // to be run on the queue's goroutine
	ended bool
	err   error

	stats published
	done  chan struct{}
}

// New initialises the connection (ICReq, ICResp) and starts the queue. conn is an established
// connection to a controller; New owns it from here on, and closes it when it fails. Connect, the first
// command, is the caller's affair.
func New(ctx context.Context, conn net.Conn, cfg Config) (*Queue, error) {
	addr := conn.RemoteAddr().String()
	fail := func(op string, err error) (*Queue, error) {
		conn.Close()
		return nil, &Error{QID: cfg.QID, Addr: addr, Op: op, Err: err}
	}
	if err := cfg.setDefaults(); err != nil {
		return fail("configuration", err)
	}
	resp, err := initialize(ctx, conn, &cfg)
	if err != nil {
		return fail("initialize connection", err)
	}
	q := &Queue{cfg: cfg, done: make(chan struct{})}
	q.info = Info{
		QID: cfg.QID, Depth: cfg.Depth, Digests: resp.DGST, CPDA: resp.CPDA, MAXH2CDATA: resp.MAXH2CDATA,
		RemoteAddr: addr, LocalAddr: conn.LocalAddr().String(),
	}
	started := make(chan error)
	go q.run(conn, started)
	if err := <-started; err != nil {
		return fail("start", err)
	}
	cfg.Logger.Debug("queue is up", "qid", cfg.QID, "addr", addr, "driver", q.info.Driver, "digests", resp.DGST.String(),
		"cpda", resp.CPDA, "maxh2cdata", resp.MAXH2CDATA, "depth", cfg.Depth, "notes", q.info.Notes)
	return q, nil
}

func (c *Config) setDefaults() error {
	if c.Depth == 0 {
		c.Depth = DefaultDepth
	}
	if c.Depth < 1 || c.Depth > MaxDepth {
		return fmt.Errorf("depth %d, want 1 to %d", c.Depth, MaxDepth)
	}
	if c.HPDA > pdu.MaxAlign {
		return fmt.Errorf("HPDA %d, want 0 to %d", c.HPDA, pdu.MaxAlign)
	}
	if c.MaxR2T > maxMaxR2T {
		return fmt.Errorf("MaxR2T %d, want 0 to %d", c.MaxR2T, maxMaxR2T)
	}
	if c.Spin == 0 {
		c.Spin = DefaultSpin
	}
	if c.ICTimeout <= 0 {
		c.ICTimeout = DefaultICTimeout
	}
	if c.CommandTimeout == 0 {
		c.CommandTimeout = DefaultCommandTimeout
	}
	if c.Linger <= 0 {
		c.Linger = DefaultLinger
	}
	if c.Logger == nil {
		c.Logger = slog.New(slog.DiscardHandler)
	}
	return nil
}

var errNoThread = errors.New("the net.Conn driver keeps to no thread")

// run is the queue's goroutine.
func (q *Queue) run(conn net.Conn, started chan<- error) {
	// An io_uring belongs to a thread, and so does affinity. While it is locked the thread ends with the queue.
	runtime.LockOSThread()
	o, err := open(conn, &q.cfg)
	if err != nil {
		started <- err
		return
	}
	pinErr := errNoThread
	if q.cfg.Pin && o.spins {
		pinErr = pin(q.cfg.CPU)
	}
	if q.cfg.Pin && pinErr != nil {
		o.notes = append(o.notes, fmt.Sprintf("not pinned to CPU %d: %v", q.cfg.CPU, pinErr))
	}
	if o.kind != DriverURing && pinErr != nil {
		runtime.UnlockOSThread() // which makes the way to and from callers shorter
	}
	q.drv = o.driver
	q.info.Driver = o.kind
	q.info.CPU = -1
	if pinErr == nil {
		q.info.CPU = q.cfg.CPU
	}
	q.info.Notes = o.notes
	e := newEngine(q, o)
	started <- nil
	e.loop()
	close(q.done)
}

// Submit hands commands to the queue, in order, with one wake-up at most. Each completes exactly once
// through its Done: on the queue's goroutine, or before Submit returns if the queue has ended.
func (q *Queue) Submit(cmds ...*Command) {
	if len(cmds) == 0 {
		return
	}
	for i, c := range cmds {
		c.reset()
		if i > 0 {
			c.next = cmds[i-1]
		}
	}
	for {
		head := q.submitted.Load()
		if head == &q.dead {
			break
		}
		cmds[0].next = head
		if q.submitted.CompareAndSwap(head, cmds[len(cmds)-1]) {
			q.rouse()
			return
		}
	}
	err := q.Err()
	for _, c := range cmds {
		c.next = nil
		c.Err = err
		c.Done(c)
	}
}

// rouse wakes the queue's goroutine if it sleeps.
func (q *Queue) rouse() {
	if q.sleeping.Load() && q.sleeping.CompareAndSwap(true, false) {
		q.drv.wake()
	}
}

// waiter lets one goroutine wait for one command.
type waiter struct{ ch chan struct{} }

var waiters = sync.Pool{New: func() any { return &waiter{make(chan struct{}, 1)} }}

// Do submits c and waits for its completion; it returns c.Err. It uses c.Done and c.User itself.
//
// When ctx ends first, Do gives up: the buffers of a read are taken back from the queue at once, and data
// that still arrives for it is thrown away. A write whose data the controller may still ask for gets a short
// grace, then the queue is ended. In every case c and its buffers belong to the caller again when Do returns.
func (q *Queue) Do(ctx context.Context, c *Command) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	w := waiters.Get().(*waiter)
	c.User = w
	c.Done = signal
	q.Submit(c)
	select {
	case <-w.ch:
	default:
		select {
		case <-w.ch:
		case <-ctx.Done():
			q.Cancel(c)
			<-w.ch
		}
	}
	c.User = nil
	waiters.Put(w)
	if cause := context.Cause(ctx); cause != nil && errors.Is(c.Err, context.Canceled) {
		c.Err = cause
	}
	return c.Err
}

func signal(c *Command) { c.User.(*waiter).ch <- struct{}{} }

// Cancel makes c complete with context.Canceled as soon as its buffers are free, unless it completes by
// itself first. See Do for what that means. c must have been submitted and not have completed yet.
func (q *Queue) Cancel(c *Command) {
	c.cancelled.Store(true)
	q.post(func(e *engine) { e.cancelMarked() })
}

// Attach makes the queue pull commands from f, next to what is submitted. When the queue has ended, f.Closed
// is called before Attach returns. f must be comparable, as a pointer is.
func (q *Queue) Attach(f Feed) {
	s := &feedState{Feed: f}
	if !q.post(func(e *engine) { e.feeds = append(e.feeds, s) }) {
		f.Closed(q.Err())
	}
}

// Detach ends what Attach began: f.Next is not called any more, and f.Closed(nil) is when the last of
// its commands has completed.
func (q *Queue) Detach(f Feed) {
	q.post(func(e *engine) {
		for _, s := range e.feeds {
			if s.Feed == f {
				s.leaving = true
			}
		}
		e.dropFeeds()
	})
}

// Wake makes the queue ask feeds again that had nothing.
func (q *Queue) Wake() {
	q.attention.Store(true)
	q.rouse()
}

// post runs f on the queue's goroutine, unless the queue has ended.
func (q *Queue) post(f func(*engine)) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.ended {
		return false
	}
	q.ctl = append(q.ctl, f)
	q.attention.Store(true)
	q.rouse()
	return true
}

// Info tells what the queue negotiated and how it runs.
func (q *Queue) Info() Info { return q.info }

// Stats returns the counters; they may be a millisecond old.
func (q *Queue) Stats() Stats { return q.stats.load() }

// Err is nil while the queue lives, and then says why it ended: an *Error.
func (q *Queue) Err() error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.err
}

// Done is closed when the queue has ended and every command has completed.
func (q *Queue) Done() <-chan struct{} { return q.done }

// Close ends the queue. Outstanding commands fail with ErrClosed. It returns when everything is released,
// so it must not be called from a completion. Closing again does nothing.
func (q *Queue) Close() error {
	q.end("close", ErrClosed)
	<-q.done
	return nil
}

// Fail ends the queue with a cause that was found elsewhere. It does not wait.
func (q *Queue) Fail(err error) { q.end("association", err) }

func (q *Queue) end(op string, err error) {
	q.post(func(e *engine) {
		if e.fatal == nil {
			e.fatal = e.failure(op, err)
		}
	})
}
