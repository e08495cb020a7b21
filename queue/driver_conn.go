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
	todo  chan struct{} // out is to be written
	wrote chan result   // it has been
	woken chan struct{}
	quit  chan struct{}
	wg    sync.WaitGroup

	cur   chunk       // being consumed
	list  [][]byte    // what out began as: writing eats out
	out   net.Buffers // the writer's while given > 0
	given int         // bytes with the writer
	timer *time.Timer
}

type chunk struct {
	buf []byte // whole buffer, to be given back
	b   []byte // the part that is left
	err error  // after b, and the end
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
		todo:  make(chan struct{}, 1),
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
		d.full <- chunk{buf, buf[:n], err} // never blocks: there are only as many buffers as it holds
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
	select {
	case r := <-d.wrote:
		d.given = 0
		sent, err = r.n, r.err
	default:
		if d.given == 0 && len(send) > 0 {
			d.list = append(d.list[:0], send...)
			d.out = d.list
			d.given = size(send)
			d.todo <- struct{}{}
		}
	}
	received = d.fill(recv)
	if err == nil {
		err = d.cur.err
	}
	return sent, received, err
}

// fill copies what has arrived.
func (d *connDriver) fill(recv [][]byte) (n int) {
	for _, b := range recv {
		for len(b) > 0 {
			if !d.next() {
				return n // not on with the next slice: what comes in this very moment goes here
			}
			k := copy(b, d.cur.b)
			d.cur.b = d.cur.b[k:]
			b = b[k:]
			n += k
		}
	}
	return n
}

// next makes cur have bytes, if some have arrived.
func (d *connDriver) next() bool {
	for len(d.cur.b) == 0 {
		select {
		case c := <-d.full:
			d.replace(c)
		default:
			return false
		}
	}
	return true
}

// replace goes on with c after cur, which is used up.
func (d *connDriver) replace(c chunk) {
	if d.cur.buf != nil {
		d.free <- d.cur.buf // never blocks either
	}
	d.cur = c
}

func (d *connDriver) inflight() int { return d.given }

func (d *connDriver) wait(_ bool, limit time.Duration) error {
	var after <-chan time.Time
	if limit >= 0 {
		d.timer.Reset(limit)
		after = d.timer.C
	}
	select {
	case c := <-d.full:
		d.replace(c)
	case r := <-d.wrote:
		d.wrote <- r // for exchange
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
	close(d.quit)
	err := d.conn.Close()
	d.wg.Wait()
	d.timer.Stop()
	return err
}

func (d *connDriver) syscalls() uint64 { return 0 }
