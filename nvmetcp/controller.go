package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// controller is one association: a controller with its admin queue and I/O queues. It lives until
// any of them is lost or it is closed, and is never revived.
type controller struct {
	id     identity
	target Target
	opts   *Options
	addr   string // where the admin queue is connected to, and the I/O queues go
	kato   time.Duration

	discovery bool // of a discovery subsystem

	cntlid   uint16
	cap      fabrics.CAP
	vs       fabrics.VS
	cc       fabrics.CC
	identify nvme.IdentifyController

	admin   *queue.Queue
	io      []*ioQueue
	pinning Pinning
	notes   map[uint16][]string // of the queues by QID, besides what a queue says itself

	closing atomic.Bool   // queues that end now are no surprise
	ended   chan struct{} // closed when the association is over
	mu      sync.Mutex
	err     error          // why
	tasks   sync.WaitGroup // the goroutines that watch
	rtt     atomic.Int64   // of the last Keep Alive, ns
}

// ioQueue is an I/O queue with the counters of what went through it.
type ioQueue struct {
	*queue.Queue
	retryWrites bool
	outstanding atomic.Int32  // commands of calls, for choosing a queue
	asked       atomic.Uint64 // bytes that readers wanted
	read        atomic.Uint64 // bytes that were read for them
	written     atomic.Uint64
	retries     atomic.Uint64
	_           [64]byte // apart from the next queue's
}

// Limits of RTD3E, the time that a controller wants for a shutdown; Linux has the same.
const (
	minShutdown = 5 * time.Second
	maxShutdown = 60 * time.Second
)

// connect makes an association with a new controller, once.
func connect(ctx context.Context, id identity, t Target, o *Options) (*controller, error) {
	c := newController(id, t, o, o.KeepAlive)
	if err := c.establish(ctx); err != nil {
		c.abandon()
		return nil, err
	}
	return c, nil
}

// establish makes all queues.
func (c *controller) establish(ctx context.Context) error {
	if err := c.enable(ctx); err != nil {
		return err
	}
	if err := c.checkIO(); err != nil {
		return c.wrap("connect", 0, err)
	}
	c.watch(c.admin)
	c.keepAlive()
	return c.connectIO(ctx)
}

func newController(id identity, t Target, o *Options, kato time.Duration) *controller {
	return &controller{id: id, target: t, opts: o, addr: t.Addr, kato: max(kato, 0), notes: map[uint16][]string{}, ended: make(chan struct{})}
}

// enable makes the admin queue and brings the controller to where it takes all admin commands.
func (c *controller) enable(ctx context.Context) error {
	q, resp, err := c.open(ctx, 0, fabrics.CNTLIDDynamic, c.target.Addr)
	if err != nil {
		return err
	}
	c.admin = q
	c.addr = q.Info().RemoteAddr
	c.cntlid = resp.CNTLID
	if err := c.start(ctx); err != nil {
		return err
	}
	b := make([]byte, nvme.IdentifyLen)
	if _, err := c.do(ctx, "identify controller", nvme.Identify(nvme.CNSController, 0, 0), b); err != nil {
		return err
	}
	if err := c.identify.Decode(b); err != nil {
		return c.wrap("identify controller", 0, err)
	}
	if c.identify.CNTLID != c.cntlid {
		return c.wrap("identify controller", 0, fmt.Errorf("%w: Connect said CNTLID %d, Identify says %d", ErrController, c.cntlid, c.identify.CNTLID))
	}
	return nil
}

// open dials and makes the connection the queue qid of the controller cntlid.
func (c *controller) open(ctx context.Context, qid, cntlid uint16, addr string) (*queue.Queue, fabrics.ConnectResponse, error) {
	var (
		op   = "connect"
		none fabrics.ConnectResponse
		o    = c.opts
		cfg  = queue.Config{
			QID: qid, Depth: queue.DefaultDepth, Driver: o.Driver, Spin: -1, Logger: o.Logger,
			Digests:   pdu.Digests{Header: o.HeaderDigest, Data: o.DataDigest},
			ICTimeout: o.ICTimeout, CommandTimeout: o.CommandTimeout,
		}
		cmd = fabrics.Connect{QID: qid, SQSIZE: queue.DefaultDepth, KATO: uint32(c.kato / time.Millisecond)}
	)
	if qid != 0 {
		depth := c.depth()
		cfg.Depth, cfg.Spin, cfg.MaxInCapsule = depth, o.Spin, c.identify.InCapsuleBytes()
		if cpu := c.pinning.CPUs[qid-1]; cpu >= 0 {
			cfg.Pin, cfg.CPU = true, cpu
		}
		cmd.SQSIZE, cmd.KATO = uint16(depth), 0
	}
	if o.DisableSQFlow {
		cmd.CATTR = fabrics.CATTRDisableSQFlowControl
	}
	conn, notes, err := c.target.dial(ctx, addr, o)
	if err != nil {
		return nil, none, c.wrap(op, qid, dialError(ctx, o, err))
	}
	c.note(qid, notes...)
	q, err := queue.New(ctx, conn, cfg)
	if err != nil {
		return nil, none, c.wrap(op, qid, err)
	}
	resp, err := c.sendConnect(ctx, q, &cmd, cntlid)
	if err != nil {
		q.Close()
		return nil, none, c.wrap(op, qid, err)
	}
	return q, resp, nil
}

// dialError says by which limit a dial ended.
func dialError(ctx context.Context, o *Options, err error) error {
	var ne net.Error
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("%w before there was a TCP connection: %w", context.Cause(ctx), err)
	case errors.As(err, &ne) && ne.Timeout():
		return fmt.Errorf("%w: no TCP connection in %v: %w", ErrTimeout, o.DialTimeout, err)
	}
	return err
}

func (c *controller) sendConnect(ctx context.Context, q *queue.Queue, cmd *fabrics.Connect, cntlid uint16) (fabrics.ConnectResponse, error) {
	var resp fabrics.ConnectResponse
	data := fabrics.ConnectData{HostID: c.id.id, CNTLID: cntlid, SubNQN: c.target.NQN, HostNQN: c.id.nqn}
	b, err := data.Append(nil)
	if err != nil {
		return resp, err
	}
	qc := queue.Command{SQE: cmd.SQE()}
	qc.SetData(b)
	if err := c.submit(ctx, q, &qc); err != nil && !errors.As(err, new(nvme.Status)) {
		return resp, err
	}
	if err := resp.DecodeCQE(&qc.CQE); err != nil {
		return resp, err
	}
	if resp.ATR || resp.ASCR {
		return resp, ErrAuth
	}
	if cmd.QID != 0 && resp.CNTLID != cntlid {
		return resp, fmt.Errorf("%w: an I/O queue of CNTLID %d was answered with CNTLID %d", ErrController, cntlid, resp.CNTLID)
	}
	return resp, nil
}

// submit runs a command of the initialisation, or another admin command, within ConnectTimeout.
func (c *controller) submit(ctx context.Context, q *queue.Queue, cmd *queue.Command) error {
	limit := c.opts.ConnectTimeout
	ctx, cancel := context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: no answer in %v", ErrTimeout, limit))
	defer cancel()
	return q.Do(ctx, cmd)
}

// do runs an admin command with data, which may be nil.
func (c *controller) do(ctx context.Context, op string, sqe nvme.SQE, data []byte) (nvme.CQE, error) {
	cmd := queue.Command{SQE: sqe}
	cmd.SetData(data)
	err := c.submit(ctx, c.admin, &cmd)
	return cmd.CQE, c.wrap(op, 0, err)
}

// depth is how many commands may be outstanding on an I/O queue: one less than its entries, which is
// what SQSIZE says.
func (c *controller) depth() int {
	entries := min(c.opts.QueueSize, int(c.cap.MQES())+1)
	if m := int(c.identify.MAXCMD); m != 0 {
		entries = min(entries, m)
	}
	return entries - 1
}

// checkIO refuses controllers that cannot be used for I/O over TCP.
func (c *controller) checkIO() error {
	id := &c.identify
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w: "+format, append([]any{ErrController}, args...)...)
	}
	switch {
	case id.CNTRLTYPE != nvme.ControllerTypeIO && id.CNTRLTYPE != nvme.ControllerTypeNotReported:
		return bad("it is a %v, not an I/O controller; Host.Discover reads a discovery controller", id.CNTRLTYPE)
	case id.IOCCSZ < 4:
		return bad("IOCCSZ is %d, which is less than a command", id.IOCCSZ)
	case id.IORCSZ < 1:
		return bad("IORCSZ is %d, which is less than a response", id.IORCSZ)
	case id.ICDOFF != 0:
		return bad("ICDOFF is %d, and NVMe/TCP has only 0", id.ICDOFF)
	case id.SGLS&nvme.SGLSSupportMask == 0:
		return bad("SGLS is 0x%X: no SGLs", id.SGLS)
	case c.depth() < 1:
		return bad("MQES %d and MAXCMD %d leave no room for a command", c.cap.MQES(), id.MAXCMD)
	}
	return nil
}

// connectIO agrees on the number of I/O queues and makes them, one after another: Linux targets have
// a short backlog.
func (c *controller) connectIO(ctx context.Context) error {
	want := c.opts.NumIOQueues
	cqe, err := c.do(ctx, "set number of queues", nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(want, want), false), nil)
	if err != nil {
		return err
	}
	n := min(want, min(nvme.ParseNumberOfQueues(cqe.DW0)))
	if n < want {
		c.opts.Logger.Info("controller grants fewer I/O queues", "subsystem", c.target.NQN, "asked", want, "granted", n)
	}
	c.choosePinning(n)
	for qid := range n {
		q, _, err := c.open(ctx, uint16(qid+1), c.cntlid, c.addr)
		if err != nil {
			return err
		}
		if err := c.add(q); err != nil {
			return c.wrap("connect", 0, err)
		}
	}
	return nil
}

// add makes q an I/O queue of the association, unless that has ended meanwhile.
func (c *controller) add(q *queue.Queue) error {
	c.mu.Lock()
	err := c.err
	if err == nil {
		c.io = append(c.io, &ioQueue{Queue: q, retryWrites: c.opts.RetryWrites})
	}
	c.mu.Unlock()
	if err != nil {
		q.Close()
		return err
	}
	c.watch(q)
	return nil
}

// watch ends the association when a queue of it ends.
func (c *controller) watch(q *queue.Queue) {
	c.tasks.Go(func() {
		select {
		case <-q.Done():
			if !c.closing.Load() {
				c.fail(q.Err())
			}
		case <-c.ended:
		}
	})
}

// fail ends the association: every queue, and with it every command.
func (c *controller) fail(err error) {
	c.mu.Lock()
	if c.err != nil {
		c.mu.Unlock()
		return
	}
	c.err = err
	close(c.ended)
	queues := c.io
	c.mu.Unlock()
	if !errors.Is(err, ErrClosed) {
		c.opts.Logger.Warn("association lost", "subsystem", c.target.NQN, "addr", c.addr, "cntlid", c.cntlid, "err", err)
	}
	c.admin.Fail(err)
	for _, q := range queues {
		q.Fail(err)
	}
}

// shutdown tells the controller that the host goes, and waits until it has taken that in.
func (c *controller) shutdown() error {
	limit := min(max(time.Duration(c.identify.RTD3E)*time.Microsecond, minShutdown), maxShutdown)
	ctx, cancel := context.WithTimeoutCause(context.Background(), limit, fmt.Errorf("%w: not done in %v", ErrTimeout, limit))
	defer cancel()
	if err := c.setCC(ctx, c.cc.WithSHN(fabrics.SHNNormal)); err != nil {
		return err
	}
	return c.await(ctx, "shutdown", limit, func(s fabrics.CSTS) bool { return s.SHST() == fabrics.SHSTComplete })
}

// Err is why the association is over, nil while it is not.
func (c *controller) Err() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.err
}

// abandon releases an association that never came to be.
func (c *controller) abandon() {
	c.closing.Store(true)
	if c.admin != nil {
		c.release()
	}
}

// release closes all queues, waits for what watched them, and returns.
func (c *controller) release() {
	c.fail(fmt.Errorf("association: %w", ErrClosed))
	for _, q := range c.io {
		q.Close()
	}
	c.admin.Close()
	c.tasks.Wait()
}
