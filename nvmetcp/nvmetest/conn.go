package nvmetest

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"

	"github.com/nvstage/nvstage/pdu"
)

// Conn is one connection of a host: one queue. Its methods do harm; a target calls none of them by
// itself.
type Conn struct {
	t    *Target
	port *port
	nc   net.Conn
	wire atomic.Pointer[wire] // nil on a connection without such faults
	qid  atomic.Int32         // -1 before Connect

	// For the receiving goroutine only.
	in       pdu.Framing
	rbuf     []byte
	r, w     int   // what of rbuf is filled and not yet handled
	received int64 // bytes

	// mu guards what follows. Order of locks: an admin queue's Conn, an I/O queue's Conn, controller,
	// Target.
	mu          sync.Mutex
	wake        *sync.Cond // of the sending goroutine
	kicked      bool
	closing     bool
	cur, spare  *batch
	out         pdu.Layout
	wide        pdu.Layout // out with DATA as late as the host allows it
	connected   bool       // Connect succeeded
	ctrl        *controller
	sqsize      int // entries, not 0's based
	sqhd        uint16
	flowControl bool
	maxR2T      int // outstanding for one command
	outstanding int
	overran     bool
	busy        [1 << 16 / 64]uint64 // CIDs whose end was not yet sent
	free        []*command
	held        []*command // not yet answered, in no order
	sending     []*command // with pieces to be sent, in turn
	transfers   []transfer // by TTAG
	freeTags    []int
	aers        []*command
	pieces      int
	count       counters
}

// QID returns the queue's identifier: 0 for an admin queue, -1 before Connect.
func (c *Conn) QID() int { return int(c.qid.Load()) }

// RemoteAddr returns the host's address.
func (c *Conn) RemoteAddr() net.Addr { return c.nc.RemoteAddr() }

// Close ends the connection at once, without a goodbye.
func (c *Conn) Close() { _ = c.nc.Close() }

// Reset ends the connection with a TCP reset.
func (c *Conn) Reset() {
	if tcp, ok := c.nc.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = c.nc.Close()
}

// SendRaw sends p as it is, between two PDUs.
func (c *Conn) SendRaw(p []byte) {
	c.mu.Lock()
	c.cur.data(append([]byte(nil), p...))
	c.mu.Unlock()
	c.kick()
}

func newConn(t *Target, p *port, nc net.Conn) *Conn {
	c := &Conn{
		t: t, port: p, nc: nc,
		in:     pdu.Framing{Role: pdu.Controller},
		rbuf:   make([]byte, max(256<<10, 2*(t.profile.inCapsule+256))),
		cur:    &batch{},
		spare:  &batch{},
		sqsize: 2,
	}
	c.wake = sync.NewCond(&c.mu)
	c.qid.Store(-1)
	if tcp, ok := nc.(*net.TCPConn); ok {
		_ = tcp.SetNoDelay(true)
	}
	return c
}

// serve runs the connection until it is closed.
func (c *Conn) serve() {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		c.send()
	}()
	c.receive()

	c.mu.Lock()
	c.closing = true
	for _, cmd := range c.held {
		if cmd.timer != nil {
			cmd.timer.Stop()
		}
	}
	c.wake.Signal()
	c.mu.Unlock()
	_ = c.nc.Close() // before the wait: the host may have stopped reading
	<-sent
	c.leave()
	c.t.forget(c)
}

// kick sends what has been gathered.
func (c *Conn) kick() {
	c.mu.Lock()
	c.pump()
	if !c.kicked && !c.cur.empty() {
		c.kicked = true
		c.wake.Signal()
	}
	c.mu.Unlock()
}

// send is the sending goroutine: it writes batch after batch.
func (c *Conn) send() {
	c.mu.Lock()
	for {
		for !c.kicked && !c.closing {
			c.wake.Wait()
		}
		if c.cur.empty() {
			if c.closing {
				c.mu.Unlock()
				return
			}
			c.kicked = false
			continue
		}
		b := c.cur
		c.cur, c.spare, c.kicked = c.spare, nil, false
		for _, cid := range b.cids {
			c.busy[cid/64] &^= 1 << (cid % 64)
		}
		c.outstanding -= len(b.cids)
		c.mu.Unlock()

		err := c.write(b)
		end := b.end
		c.mu.Lock()
		b.reset(&c.t.pool)
		c.spare = b
		if err == nil && end == stayOpen {
			continue
		}
		if errors.Is(err, errStall) {
			end = sendNoMore
		}
		// Nothing more is sent, but commands go on into cur until the receiver sees the end too.
		c.mu.Unlock()
		switch end {
		case stayOpen, closeFIN:
			_ = c.nc.Close()
		case closeRST:
			c.Reset()
		case sendNoMore:
			// The host closes after a C2HTermReq; the receiver waits for that.
		}
		return
	}
}

// write sends a whole batch.
func (c *Conn) write(b *batch) error {
	b.seal()
	if w := c.wire.Load(); w != nil {
		return w.write(c, b.vec)
	}
	if raceEnabled {
		// The race detector does not know that a vectored write comes before the host's read.
		for _, p := range b.vec {
			if _, err := c.nc.Write(p); err != nil {
				return err
			}
		}
		return nil
	}
	b.rest = b.vec
	_, err := b.rest.WriteTo(c.nc)
	return err
}

// leave takes the connection out of its controller.
func (c *Conn) leave() {
	c.mu.Lock()
	for _, cmd := range c.held {
		c.t.pool.put(cmd.buf)
	}
	c.held = nil
	c.cur.reset(&c.t.pool)
	ctrl, qid := c.ctrl, c.QID()
	c.mu.Unlock()
	if ctrl != nil {
		ctrl.lost(c, qid)
	}
}
