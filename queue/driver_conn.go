package queue

import (
	"net"
	"sync"
	"time"
)

// connDriver drives any net.Conn, whose calls block: one goroutine reads ahead, one writes, and the
// queue's goroutine meets both on channels. It costs a copy and some hops more than the others.
// Reads and writes must not wait for each other, or two ends that both send would stand still.
type connDriver struct {
	conn net.Conn

	full  chan chunk    // read, to be consumed
	free  chan []byte   // consumed, to be read into
	todo  chan struct{} // out has work
	wrote chan result
	woken chan struct{}
	quit  chan struct{}
	wg    sync.WaitGroup
	once  sync.Once

	cur   chunk       // being consumed
	list  [][]byte    // what out began as: writing eats out
	out   net.Buffers // the writer's while busy
	busy  bool
	given int // bytes in out

	held    chunk  // what wait received and exchange has not looked at
	hasHeld bool   // held is set
	late    result // likewise for the writer
	hasLate bool
	timer   *time.Timer
}

type chunk struct {
	buf []byte // whole buffer, to be given back
	b   []byte // the part that is left
	err error  // after b
}

type result struct {
	n   int
	err error
}

const connReadSize = 64 << 10

func newConnDriver(conn net.Conn) *connDriver {
	d := &connDriver{
		conn:  conn,
		full:  make(chan chunk, 2),
		free:  make(chan []byte, 2),
		todo:  make(chan struct{}),
		wrote: make(chan result, 1),
		woken: make(chan struct{}, 1),
		quit:  make(chan struct{}),
		timer: time.NewTimer(time.Hour),
	}
	for range cap(d.free) {
		d.free <- make([]byte, connReadSize)
	}
	d.wg.Go(d.read)
	d.wg.Go(d.write)
	return d
}

func (d *connDriver) read() {
	for {
		var buf []byte
		select {
		case buf = <-d.free:
		case <-d.quit:
			return
		}
		n, err := d.conn.Read(buf)
		select {
		case d.full <- chunk{buf, buf[:n], err}:
		case <-d.quit:
			return
		}
		if err != nil {
			return
		}
	}
}

func (d *connDriver) write() {
	for {
		select {
		case <-d.todo:
		case <-d.quit:
			return
		}
		n, err := d.out.WriteTo(d.conn)
		d.wrote <- result{int(n), err}
	}
}

func (d *connDriver) exchange(send, recv [][]byte) (sent, received int, err error) {
	if !d.hasLate && d.busy {
		select {
		case d.late = <-d.wrote:
			d.hasLate = true
		default:
		}
	}
	switch {
	case d.hasLate:
		d.hasLate, d.busy, d.given = false, false, 0
		sent, err = d.late.n, d.late.err
	case !d.busy && len(send) > 0:
		d.list = append(d.list[:0], send...)
		d.out = d.list
		for _, b := range send {
			d.given += len(b)
		}
		d.busy = true
		select {
		case d.todo <- struct{}{}:
		case <-d.quit:
			return 0, 0, net.ErrClosed
		}
	}
	for _, b := range recv {
		for len(b) > 0 && d.next() {
			n := copy(b, d.cur.b)
			d.cur.b = d.cur.b[n:]
			b = b[n:]
			received += n
		}
		if len(b) > 0 {
			break // or what comes in this very moment would go into the next slice
		}
	}
	if received == 0 && err == nil && len(recv) > 0 && d.cur.buf != nil && len(d.cur.b) == 0 {
		err = d.cur.err
	}
	return sent, received, err
}

// next makes cur have bytes, if some have arrived.
func (d *connDriver) next() bool {
	for len(d.cur.b) == 0 {
		if d.cur.buf != nil {
			if d.cur.err != nil {
				return false
			}
			d.free <- d.cur.buf // never blocks: there are only as many buffers as it holds
			d.cur = chunk{}
		}
		if d.hasHeld {
			d.cur, d.hasHeld = d.held, false
			continue
		}
		select {
		case d.cur = <-d.full:
		default:
			return false
		}
	}
	return true
}

func (d *connDriver) inflight() int { return d.given }

func (d *connDriver) wait(_ bool, limit time.Duration) error {
	if d.hasHeld || d.hasLate || len(d.cur.b) > 0 || d.cur.err != nil {
		return nil
	}
	var after <-chan time.Time
	if limit >= 0 {
		d.timer.Reset(limit)
		after = d.timer.C
	}
	select {
	case d.held = <-d.full:
		d.hasHeld = true
	case d.late = <-d.wrote:
		d.hasLate = true
	case <-d.woken:
	case <-after:
	}
	return nil
}

func (d *connDriver) wake() {
	select {
	case d.woken <- struct{}{}:
	default:
	}
}

func (d *connDriver) close() error {
	var err error
	d.once.Do(func() {
		close(d.quit)
		err = d.conn.Close()
		d.wg.Wait()
		d.timer.Stop()
	})
	return err
}

func (d *connDriver) syscalls() uint64 { return 0 }
