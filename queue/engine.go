package queue

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"syscall"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// engine is the state that only the queue's goroutine touches.
type engine struct {
	q   *Queue
	drv opened
	slots

	pendHead, pendTail *Command // submitted, waiting for a slot
	feeds              []*feedState

	tx transmitter
	rx receiver

	pace      pace
	stats     Stats
	shown     int64      // when stats were published last
	checked   int64      // when timeouts were looked at last
	sentThen  uint64     // BytesOut at that time
	stuck     int64      // since when nothing has been sent of what is to be sent, as far as was looked; 0: not so
	now       int64      // this turn's time
	fatal     error      // why the queue is to end
	breach    *pdu.Error // the controller's, if that is why
	yields    int        // how often callers that have got commands back are still let run
	maxR2T    int
	inCapsule int // limit for commands that are not fabrics commands
}

// cancelGrace is how long a cancelled write whose data may still be asked for keeps the queue alive.
var cancelGrace = 500 * time.Millisecond // a variable for tests

// lookEvery is a rest between two looks at an empty socket, each of which costs most of a microsecond: a third of the
// system calls at no cost in latency.
const lookEvery = 300 * time.Nanosecond

// moreComing is how long a queue that does not spin rests while a large payload is on its way.
const moreComing = 4 * time.Microsecond

// minLooks is how often an empty socket is looked at before a queue that spins sleeps, however long that took: when the
// system ran something else meanwhile, the time says nothing.
const minLooks = 8

const publishEvery = int64(time.Millisecond)

// maxHoldBack is how many turns in a row may pass without a send although there is something to send.
const maxHoldBack = 8

func newEngine(q *Queue, o opened) *engine {
	e := &engine{q: q, drv: o, maxR2T: int(q.cfg.MaxR2T) + 1}
	if o.lazy { // the controller may have had the answers to all R2Ts that we take for open
		e.maxR2T *= 2
	}
	e.slots = newSlots(q.cfg.Depth, e.maxR2T)
	e.inCapsule = q.cfg.MaxInCapsule
	if q.cfg.QID == 0 {
		e.inCapsule = AdminInCapsule
	}
	e.tx.init(pdu.Layout{Digests: q.info.Digests, Align: q.info.CPDA}, q.info.MAXH2CDATA, q.cfg.Depth)
	e.rx.init(pdu.Framing{Role: pdu.Host, Digests: q.info.Digests, Align: q.cfg.HPDA, Ready: true})
	return e
}

// loop runs turns until the queue ends, and then ends it.
func (e *engine) loop() {
	var (
		spin   = int64(e.q.cfg.Spin)
		idle   int64         // when the last turn that got something done was
		refill bool          // the last receive filled its buffers: there is probably more
		held   int           // turns in a row without a send
		looks  int           // turns in a row that got nothing done
		pause  time.Duration // before the next look
		reason error         // of a send before a pause; a socket tells of a reset only once
	)
	if !e.drv.spins {
		spin = 0
	}
	e.now = nanotime()
	idle = e.now
	for e.fatal == nil {
		e.stats.Turns++
		if e.now-e.checked > int64(e.tick()) {
			e.checkTimeouts()
		}
		busy := e.takeIn()
		if e.fatal != nil {
			break
		}
		e.encodeData()

		// While data keeps coming, capsules are held back a little, so that they go out in one call.
		var send [][]byte
		holdBack := !e.tx.empty() && (refill || pause == 0 && e.rx.placing()) && e.tx.held < max(1, e.used()/4) && held < maxHoldBack
		if holdBack {
			held++
		} else {
			held = 0
			send = e.tx.vector()
		}
		early := 0
		if pause > 0 {
			if len(send) > 0 { // the controller does not rest
				var err error
				early, _, err = e.drv.exchange(send, nil)
				if reason = err; errors.Is(err, syscall.EPIPE) { // which only says that there is a reason
					reason = nil
				}
				e.sent(early)
				send = e.tx.vector()
			}
			rest(pause)
		}
		recv := e.rx.vector(&e.slots)
		sent, n, err := e.drv.exchange(send, recv)
		e.sent(sent)
		if sent > 0 { // it goes on
			reason = nil
		}
		sent += early
		refill = n > 0 && n == size(recv)
		if n > 0 {
			e.stats.BytesIn += uint64(n)
		}
		if n > 0 || busy || sent > 0 {
			e.now = nanotime()
			idle = e.now
		}
		if n > 0 {
			if err := e.receive(n); err != nil {
				e.fatal = e.failure("receive", err)
				errors.As(err, &e.breach)
				break
			}
		}
		if err != nil && n == 0 { // what the controller said before it went is heard to the end
			if reason != nil {
				err = reason
			}
			e.fatal = e.failure(OpConnection, closedDuring(e.occupation(), err))
			break
		}
		if e.yields == callerYields {
			e.letRun()
		}
		if e.now-e.shown > publishEvery {
			e.publish()
		}
		e.pace.got(n, refill)
		pause = 0
		if (n > 0 || holdBack) && !refill && e.drv.spins { // the socket is empty now
			pause = e.pause(n == 0, spin <= 0)
		}
		if n > 0 || busy || sent > 0 || holdBack {
			looks = 0
			continue
		}
		looks++
		if e.yields > 0 {
			e.letRun()
		} else if e.now = nanotime(); e.now-idle >= spin && (looks >= minLooks || spin <= 0 && !(e.drv.spins && e.rx.placing())) {
			e.sleep()
			looks = 0
		} else if spin <= 0 {
			rest(moreComing)
		} else {
			rest(lookEvery)
		}
	}
	e.finish()
}

// callerYields: this goroutine hardly ever blocks, so a caller that has got its command back would wait for another
// processor. Once is not enough, because every 61st time the Go scheduler picks the yielding goroutine again.
const callerYields = 2

func (e *engine) letRun() {
	e.yields--
	runtime.Gosched()
	e.now = nanotime()
}

// rest passes a time that is too short to sleep.
func rest(d time.Duration) {
	for start := nanotime(); nanotime()-start < int64(d); {
	}
}

// size is the sum of the lengths.
func size(v [][]byte) (n int) {
	for _, b := range v {
		n += len(b)
	}
	return n
}

// sleep waits for the socket, a wake-up or the next look at the timeouts.
func (e *engine) sleep() {
	e.publish()
	// The wait keeps this processor from the Go scheduler for a while. Who is about to submit something goes first.
	runtime.Gosched()
	e.q.sleeping.Store(true)
	if e.q.submitted.Load() == nil && !e.q.attention.Load() {
		limit := time.Duration(-1)
		if e.used() > 0 || !e.tx.empty() {
			limit = e.tick()
		}
		e.stats.Sleeps++
		if err := e.drv.wait(!e.tx.empty(), limit); err != nil {
			e.fatal = e.failure("wait", err)
		}
	}
	e.q.sleeping.Store(false)
	e.now = nanotime()
}

// tick is how often outstanding commands are looked at: often enough for the timeout and the grace.
func (e *engine) tick() time.Duration {
	if t := e.q.cfg.CommandTimeout; t > 0 {
		return min(max(t/8, time.Millisecond), cancelGrace/4)
	}
	return cancelGrace / 4
}

func (e *engine) publish() {
	e.shown = e.now
	e.stats.Syscalls = e.drv.syscalls()
	e.q.stats.store(&e.stats)
}

// takeIn brings in what other goroutines and the feeds want, as far as there are slots and room.
func (e *engine) takeIn() (busy bool) {
	if e.q.attention.Load() {
		e.q.attention.Store(false)
		for _, f := range e.feeds {
			f.dry = false
		}
		e.control()
		busy = true
	}
	if e.q.submitted.Load() != nil {
		e.enqueue(e.q.submitted.Swap(nil))
	}
	for e.pendHead != nil && e.ready() {
		e.issue(e.pop())
		busy = true
	}
	for _, f := range e.feeds {
		for !f.dry && !f.leaving && e.ready() {
			c := f.Next()
			if c == nil {
				f.dry = true
				e.yields = callerYields // somebody is to fill it again
				break
			}
			c.reset()
			c.feed = f
			f.outstanding++
			busy = true
			if !e.issue(c) {
				break // lest a feed that has nothing better keeps the queue from all else
			}
		}
	}
	return busy
}

// ready reports whether one more command can be issued now.
func (e *engine) ready() bool { return len(e.free) > 0 && e.tx.room() && e.fatal == nil }

// control runs what was posted.
func (e *engine) control() {
	e.q.mu.Lock()
	todo := e.q.ctl
	e.q.ctl = nil
	e.q.mu.Unlock()
	for _, f := range todo {
		f(e)
	}
}

// enqueue appends a list as Submit left it, newest first, to the pending commands.
func (e *engine) enqueue(newest *Command) {
	var first *Command
	last := newest
	for c := newest; c != nil; {
		next := c.next
		c.next = first
		first = c
		c = next
	}
	if first == nil {
		return
	}
	if e.pendTail == nil {
		e.pendHead = first
	} else {
		e.pendTail.next = first
	}
	e.pendTail = last
}

func (e *engine) pop() *Command {
	c := e.pendHead
	e.pendHead = c.next
	if e.pendHead == nil {
		e.pendTail = nil
	}
	c.next = nil
	return c
}

// issue gives a command a slot and puts its capsule into the send queue. One that cannot be sent it reports at once.
func (e *engine) issue(c *Command) bool {
	n := c.DataLen()
	dir := c.SQE.Direction()
	if err := checkData(c, dir, n); err != nil {
		e.report(c, err)
		return false
	}
	s := e.take()
	s.cmd, s.dir, s.length, s.timed, s.issued = c, dir, uint32(n), !c.NoTimeout, e.now
	limit := e.inCapsule
	if c.SQE.Opcode == nvme.OpFabrics {
		limit = AdminInCapsule
	}
	s.capsule = n > 0 && dir == nvme.DirHostToController && n <= limit
	if s.length > 0 && dir == nvme.DirControllerToHost {
		e.await(s)
	}
	c.SQE.CID = s.cid
	c.SQE.Flags = c.SQE.Flags&nvme.FlagFuseMask | nvme.FlagSGL
	c.SQE.SGL = nvme.SGL{Length: uint32(n), ID: nvme.SGLTransport}
	if s.capsule {
		c.SQE.SGL.ID = nvme.SGLInCapsule
	}
	c.Issued = e.now
	e.tx.capsule(s, e.index(s))
	return true
}

// checkData refuses what no capsule can say.
func checkData(c *Command, dir nvme.Direction, n int) error {
	switch {
	case n == 0:
	case dir != nvme.DirHostToController && dir != nvme.DirControllerToHost:
		return fmt.Errorf("opcode %#02x moves no data one way, but has buffers of %d bytes", uint8(c.SQE.Opcode), n)
	case uint64(n) > math.MaxUint32:
		return fmt.Errorf("%d bytes of data in one command: at most %d fit its SGL", n, uint32(math.MaxUint32))
	}
	return nil
}

// complete ends a command: the controller has answered. The slot stays taken while the send queue
// still points into the command's data, which then is not the caller's yet either.
func (e *engine) complete(s *slot, err error) {
	if s.cmd == nil { // abandoned earlier
		e.put(s)
		return
	}
	if err == nil && !s.cmd.CQE.Status.OK() {
		err = s.cmd.CQE.Status
	}
	s.cmd.Err = err
	e.dropR2Ts(s)
	if s.refs > 0 || len(s.r2ts) > 0 {
		s.finished = true
		return
	}
	e.release(s)
}

// release frees the slot and reports its command with the Err that it has.
func (e *engine) release(s *slot) {
	c := s.cmd
	e.put(s)
	e.report(c, c.Err)
}

// report hands a command back to whoever it came from.
func (e *engine) report(c *Command, err error) {
	c.Err = err
	c.Completed = e.now
	e.stats.Commands++
	if err != nil {
		e.stats.Errors++
	}
	if f := c.feed; f != nil {
		c.feed = nil
		f.outstanding--
		f.dry = false
		f.Complete(c)
		if f.leaving && f.outstanding == 0 {
			e.dropFeeds()
		}
		return
	}
	e.yields = callerYields
	c.Done(c)
}

// dropFeeds says goodbye to the feeds that are leaving and have nothing outstanding.
func (e *engine) dropFeeds() {
	var gone []*feedState
	kept := e.feeds[:0]
	for _, f := range e.feeds {
		if f.leaving && f.outstanding == 0 {
			gone = append(gone, f)
		} else {
			kept = append(kept, f)
		}
	}
	clear(e.feeds[len(kept):])
	e.feeds = kept
	for _, f := range gone {
		f.Closed(nil)
	}
}

// cancelMarked gives back the commands that Cancel marked, as far as their buffers are free.
func (e *engine) cancelMarked() {
	e.enqueue(e.q.submitted.Swap(nil))
	old := e.pendHead
	e.pendHead, e.pendTail = nil, nil
	for c := old; c != nil; {
		next := c.next
		c.next = nil
		if c.cancelled.Load() {
			e.report(c, context.Canceled)
		} else {
			if e.pendTail == nil {
				e.pendHead = c
			} else {
				e.pendTail.next = c
			}
			e.pendTail = c
		}
		c = next
	}
	for i := range e.all {
		s := &e.all[i]
		if s.busy && s.cmd != nil && s.cmd.cancelled.Load() {
			if s.giveUp == 0 {
				s.giveUp = e.now + int64(cancelGrace)
			}
			e.abandon(s)
		}
	}
}

// abandon gives a cancelled command back if nothing needs its buffers: what a read still gets is thrown
// away, what a write had is with the socket. The slot waits on for the controller's answer.
func (e *engine) abandon(s *slot) {
	if s.refs > 0 || s.dir == nvme.DirHostToController && !s.capsule && s.length > 0 && (s.asked < s.length || len(s.r2ts) > 0) {
		return
	}
	c := s.cmd
	s.cmd = nil
	s.giveUp = 0
	e.report(c, context.Canceled)
}

// checkTimeouts ends the queue when a command has waited for too long, or the send queue has.
func (e *engine) checkTimeouts() {
	e.checked = e.now
	limit := int64(e.q.cfg.CommandTimeout)
	switch {
	case e.tx.empty() || e.sentThen != e.stats.BytesOut:
		e.sentThen, e.stuck = e.stats.BytesOut, 0
	case e.stuck == 0:
		e.stuck = e.now
	case limit > 0 && e.now-e.stuck > limit: // and nothing need be outstanding, if what was not read is answered all the same
		e.fatal = e.failure("send", fmt.Errorf("%w: the controller took no byte in %v", ErrTimeout, e.q.cfg.CommandTimeout))
	}
	for i := range e.all {
		s := &e.all[i]
		if !s.busy || e.fatal != nil {
			continue
		}
		if s.giveUp != 0 && e.now > s.giveUp {
			e.fatal = e.failure("cancel", fmt.Errorf("%w: a write was cancelled, but the controller had not finished with its data", ErrTimeout))
		}
		if limit > 0 && s.timed && e.now-s.issued > limit {
			e.fatal = e.failure("command", fmt.Errorf("%w: command %#04x got no answer in %v", ErrTimeout, s.cid, e.q.cfg.CommandTimeout))
		}
	}
}

// failure is err as the end of this queue.
func (e *engine) failure(op string, err error) error {
	return &Error{QID: e.q.cfg.QID, Addr: e.q.info.RemoteAddr, Op: op, Err: err}
}

// occupation tells what a lost connection interrupted.
func (e *engine) occupation() string {
	if n := e.used(); n > 0 {
		return fmt.Sprintf("%d outstanding commands", n)
	}
	return "an idle time"
}

// finish ends the queue: tell the controller if it broke the protocol, close the connection, and complete
// every command that is left. From then on Submit and Attach answer by themselves.
func (e *engine) finish() {
	e.now = nanotime()
	if e.breach != nil && e.breach.Reply() {
		e.failSlots(func(s *slot) bool { return s.refs == 0 }) // nothing is received any more but into our own buffer
		e.terminate()
	}
	if err := e.drv.close(); err != nil {
		e.q.cfg.Logger.Error("closing the connection", "qid", e.q.cfg.QID, "err", err)
	}

	e.q.mu.Lock()
	e.q.ended = true
	e.q.err = e.fatal
	todo := e.q.ctl
	e.q.ctl = nil
	e.q.mu.Unlock()
	for _, f := range todo { // an Attach may be among them
		f(e)
	}
	e.failSlots(func(*slot) bool { return true })
	e.enqueue(e.q.submitted.Swap(&e.q.dead))
	for e.pendHead != nil {
		e.report(e.pop(), e.fatal)
	}
	for _, f := range e.feeds {
		f.Closed(e.fatal)
	}
	e.publish()
	lvl := e.q.cfg.Logger.Warn
	if errors.Is(e.fatal, ErrClosed) {
		lvl = e.q.cfg.Logger.Debug
	}
	lvl("queue ended", "qid", e.q.cfg.QID, "addr", e.q.info.RemoteAddr, "err", e.fatal)
}

// failSlots completes the outstanding commands that which chooses with the error that ended the queue.
// Those that the controller has answered keep its answer.
func (e *engine) failSlots(which func(*slot) bool) {
	for i := range e.all {
		s := &e.all[i]
		if !s.busy || s.cmd == nil || !which(s) {
			continue
		}
		if !s.finished {
			s.cmd.Err = e.fatal
		}
		c := s.cmd
		s.cmd = nil
		s.finished = true
		s.r2ts = s.r2ts[:0]
		e.report(c, c.Err)
	}
}

// terminate sends H2CTermReq after the PDU that is going out, and waits until the controller closes, or
// for Linger.
func (e *engine) terminate() {
	deadline := e.now + int64(e.q.cfg.Linger)
	t := e.breach.TermReq(pdu.Host)
	e.tx.last(t.Append(nil), e.drv.inflight())
	for {
		sent, n, err := e.drv.exchange(e.tx.vector(), e.rx.vector(&e.slots))
		e.sent(sent)
		if err != nil || nanotime() > deadline {
			return
		}
		if n == 0 && sent == 0 {
			if e.drv.wait(!e.tx.empty(), time.Duration(max(deadline-nanotime(), 0))) != nil {
				return
			}
		}
	}
}
