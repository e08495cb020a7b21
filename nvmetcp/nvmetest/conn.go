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
	full atomic.Bool          // enough has been gathered to be sent at once
	qid  atomic.Int32         // -1 before Connect

	// For the receiving goroutine only.
	in       pdu.Framing
	rbuf     []byte
	sink     []byte // for data that vanishes
	r, w     int    // what of rbuf is filled and not yet handled
	received int64  // bytes
	clean    bool   // the host closed the connection

	// mu guards what follows. Order of locks: an admin queue's Conn, an I/O queue's Conn, controller,
	// Target.
	mu          sync.Mutex
	wake        *sync.Cond // of the sending goroutine
	kicked      bool       // what is in cur shall be sent
	writing     bool       // somebody writes to nc
	left        *batch     // what kick began to write and the sending goroutine has to end
	try         *tryPath   // nil where there is no write that does not block
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
	lastCID     uint16               // of the command that ended last
	busy        [1 << 16 / 64]uint64 // CIDs whose end was not yet sent
	free        []*command
	held        []*command // not yet answered, in no order
	sending     []*command // with pieces to be sent, in turn
	transfers   []transfer // by TTAG
	freeTags    []int
	aers        []*command
	pieces      int
	summed      []byte // nil, or bytes that never change, whose digest is sum
	sum         uint32
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

// Terminate sends a C2HTermReq, and nothing after it. The host is to close the connection.
func (c *Conn) Terminate(p pdu.TermReq) {
	p.Type = pdu.TypeC2HTermReq
	c.mu.Lock()
	c.cur.arena = p.Append(c.cur.arena)
	c.cur.close(sendNoMore)
	c.mu.Unlock()
	c.kick()
}

// Stall sends nothing from now on, but leaves the connection open.
func (c *Conn) Stall() {
	c.mu.Lock()
	c.cur.close(sendNoMore)
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
		c.try = newTryPath(tcp)
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

// kick sends what has been gathered: as much as the socket takes at once right here, because waking
// the sending goroutine costs more than a small write, and the rest by that goroutine.
func (c *Conn) kick() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.pump()
	if c.cur.empty() {
		return
	}
	c.kicked = true
	if c.writing || c.closing {
		return // whoever writes now sees to it
	}
	if c.try != nil && c.wire.Load() == nil && c.cur.end == stayOpen {
		b := c.take()
		c.mu.Unlock()
		done := c.try.write(b)
		c.mu.Lock()
		if done {
			c.wrote(b)
		} else {
			c.left = b
		}
	}
	if c.left != nil || !c.writing && c.kicked {
		c.wake.Signal()
	}
}

// take is the begin of a write: it returns the batch to be written. c.mu is held.
func (c *Conn) take() *batch {
	b := c.cur
	c.cur, c.spare = c.spare, nil
	c.writing, c.kicked = true, false
	c.full.Store(false)
	for _, cid := range b.cids {
		c.busy[cid/64] &^= 1 << (cid % 64)
	}
	c.outstanding -= len(b.cids)
	b.seal()
	if b.end != stayOpen {
		b.vec = b.vec[:b.last]
	}
	b.rest = b.vec
	return b
}

// wrote is the end of a write. c.mu is held.
func (c *Conn) wrote(b *batch) {
	b.reset(&c.t.pool)
	c.spare = b
	c.writing = false
}

// send is the sending goroutine. It writes what kick could not.
func (c *Conn) send() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for {
		for c.left == nil && (c.writing || !c.kicked) && !c.closing {
			c.wake.Wait()
		}
		b := c.left
		c.left = nil
		switch {
		case b != nil:
		case c.writing || c.cur.empty(): // and closing, or there was nothing to send
			if c.closing {
				return
			}
			c.kicked = false
			continue
		default:
			b = c.take()
		}
		c.mu.Unlock()
		err := c.write(b)
		c.mu.Lock()
		end := b.end
		if err == nil && end == stayOpen {
			c.wrote(b)
			continue
		}
		if errors.Is(err, errStall) {
			end = sendNoMore
		}
		// c.writing stays true: nothing more is sent. Commands go on into cur until the receiver sees
		// the end too.
		b.reset(&c.t.pool)
		switch end {
		case stayOpen, closeFIN:
			_ = c.nc.Close()
		case closeRST:
			c.Reset()
		case closeHalf:
			if tcp, ok := c.nc.(*net.TCPConn); ok {
				_ = tcp.CloseWrite()
			}
		case sendNoMore:
			// The host closes after a C2HTermReq; the receiver waits for that.
		}
		return
	}
}

// write sends what is left of a batch.
func (c *Conn) write(b *batch) error {
	if w := c.wire.Load(); w != nil {
		return w.write(c, b.rest)
	}
	if raceEnabled {
		// The race detector does not know that a vectored write comes before the host's read.
		for _, p := range b.rest {
			if _, err := c.nc.Write(p); err != nil {
				return err
			}
		}
		return nil
	}
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
	if qid > 0 {
		c.t.ioConns.Add(-1)
	}
	if ctrl != nil {
		ctrl.lost(c, qid, c.clean)
	}
}
