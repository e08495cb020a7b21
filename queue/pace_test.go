package queue

import (
	"io"
	"math"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Rests become as long as payloads take, whatever they took before, within their bounds.
func TestPace(t *testing.T) {
	const n = 128 << 10
	var p pace
	for _, takes := range []time.Duration{10 * time.Microsecond, 2 * time.Microsecond, 20 * time.Microsecond} {
		for range 300 {
			got := n
			if d := p.rest(n, 1000); d < takes {
				got = int(int64(n) * int64(d) / int64(takes))
			}
			p.got(got, false)
		}
		d := p.rest(n, 1000)
		require.Greater(t, d, takes*3/4)
		require.Less(t, d, takes*4/3)
	}
	for range 1000 { // nothing comes
		p.rest(n, 1000)
		p.got(0, false)
	}
	require.Equal(t, restMost, p.rest(n, 1000))
	require.Equal(t, 3*restEach, p.rest(n, 3))
	require.LessOrEqual(t, p.rest(1<<30, 1000), restMost)
	p.got(1<<30, false)
	long := p.rest(64<<10, 1000)
	p.got(64<<10, false)
	p.got(0, false) // there was no rest before this one
	short := p.rest(64<<10, 1000)
	require.Less(t, short, long)
	p.got(1000, true) // there was no room for more
	require.Less(t, p.rest(64<<10, 1000), short)
	for range 1000 { // all is there at once
		p.got(p.wanted, false)
		p.rest(n, 1000)
	}
	require.Equal(t, lookEvery, p.rest(n, 1000))
}

// There is a rest while data flows and the controller has more to do, but none for one that may be waiting itself.
func TestPause(t *testing.T) {
	const each = 64 << 10
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, CommandTimeout: -1})
	inOrderReads(t, e, pdu.Layout{})
	e.pace.trial = trial{best: longRests, next: math.MaxInt64}
	e.pause(false, false)
	var cmds [6]Command
	for i := range cmds {
		cmds[i].SQE, cmds[i].Done = nvme.Read(1, 0, 0), func(*Command) {}
		cmds[i].SetData(make([]byte, each))
		e.q.Submit(&cmds[i])
		e.takeIn()
	}
	rests := func() int {
		e.pace.wanted = 0
		e.pause(false, false)
		return e.pace.wanted
	}
	deliver := func(b []byte) {
		b, err := e.deliver(b, len(b))
		require.NoError(t, err)
		require.Empty(t, b)
	}
	require.Zero(t, rests(), "nothing has come yet")
	data := c2hData(cmds[0].SQE.CID, make([]byte, each), pdu.Layout{})
	deliver(data[:24+each/2])
	require.Equal(t, (each/2+5*each)/restPart, rests())
	require.Equal(t, (each/2+5*each)/restPart, rests(), "the rest of a payload is on its way")
	inOrder := e.rx.inOrder
	e.rx.inOrder = inOrderFor - 1
	require.Zero(t, rests(), "it comes by itself")
	e.rx.inOrder = inOrder
	deliver(data[24+each/2:])
	e.feeds = append(e.feeds, &feedState{})
	require.Equal(t, 5*each/restPart, rests())
	require.Zero(t, rests())
	got := e.pace.payload
	e.pace.best, e.pace.payload = shortRests, 0
	require.Equal(t, restShort, e.pause(false, false))
	require.Zero(t, e.pace.wanted, "a short one teaches nothing")
	e.pace.payload, e.oldest.length = 0, aheadAbove
	require.Zero(t, e.pause(false, false), "small ones come by themselves")
	e.pace.payload, e.oldest.length = 0, each
	e.pace.best = noRests
	require.Zero(t, e.pause(false, false))
	e.pace.payload = 0
	for _, sleeps := range []bool{false, true} { // long rests cost a tenth
		e.pace.trial = trial{running: true, present: longRests, other: longRests, begun: e.now, since: e.now - int64(trialEpoch), seen: e.now}
		e.pace.rate[1] = 1.1 * float64(got) / float64(trialEpoch)
		e.pause(false, sleeps)
		require.Equal(t, sleeps, e.pace.score[2] < 0)
		e.pace.payload = 0
	}
	e.pace.trial = trial{best: longRests, next: math.MaxInt64}
	e.pace.payload = got
	deliver(failed(cmds[5].SQE.CID))
	require.Zero(t, rests(), "an answer without data")
	require.Equal(t, 4*each, e.awaited)
	deliver(c2hData(cmds[1].SQE.CID, make([]byte, each), pdu.Layout{}))
	feeds := e.feeds
	e.feeds = nil
	got = e.pace.payload
	require.Zero(t, rests(), "callers wait")
	e.feeds, e.pace.payload = feeds, got
	require.Equal(t, 3*each/restPart, rests())
	deliver(c2hData(cmds[2].SQE.CID, make([]byte, each), pdu.Layout{}))
	require.Zero(t, rests(), "with few outstanding the controller waits for the host")
	require.Equal(t, lookEvery, e.pause(true, false))
	deliver(c2hData(cmds[3].SQE.CID, make([]byte, each), pdu.Layout{}))
	deliver(c2hData(cmds[4].SQE.CID, make([]byte, each), pdu.Layout{}))
	require.Zero(t, e.awaited)
}

// restingFeed runs reads of 128 KiB through an engine that rests, and then goes on with end in place of d.give. It tells
// how often commands went out before a rest.
func restingFeed(t *testing.T, d *fakeDriver, with func(e *engine), reads int, end func(recv [][]byte) (int, error)) (early int, err error) {
	e := engineOn(t, d, Config{QID: 1, Depth: 24, CommandTimeout: -1})
	e.drv.spins = true
	e.pace.trial = trial{best: longRests, next: math.MaxInt64}
	inOrderReads(t, e, pdu.Layout{})
	with(e)
	f := &listFeed{closed: make(chan error, 1)}
	for range 16 {
		c := &Command{SQE: nvme.Read(1, 0, 0)}
		c.SetData(make([]byte, 128<<10))
		f.free = append(f.free, c)
	}
	d.give = func(recv [][]byte) (got int, err error) {
		switch {
		case reads == 0:
			d.give = end
			return end(recv)
		case len(recv) == 0:
			early++
			return 0, nil
		case e.oldest == nil || !e.tx.empty():
			return 0, nil
		}
		reads--
		stream := c2hData(e.oldest.cid, make([]byte, e.oldest.length), pdu.Layout{})
		for _, b := range recv {
			k := copy(b, stream)
			stream = stream[k:]
			got += k
		}
		return got, nil
	}
	e.run(t).Attach(f)
	err = <-f.closed
	return early, err
}

// listFeed hands out its commands again and again.
type listFeed struct {
	free   []*Command
	closed chan error
}

func (f *listFeed) Next() *Command {
	if len(f.free) == 0 {
		return nil
	}
	c := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	return c
}

func (f *listFeed) Complete(c *Command) { f.free = append(f.free, c) }
func (f *listFeed) Closed(err error)    { f.closed <- err }

// eof ends a stream. A send does not see that.
func eof(recv [][]byte) (int, error) {
	if len(recv) == 0 {
		return 0, nil
	}
	return 0, io.EOF
}

// What a feed has room for goes to the controller before a rest.
func TestSendBeforeRest(t *testing.T) {
	early, err := restingFeed(t, &fakeDriver{}, func(*engine) {}, 100, eof)
	require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	require.Greater(t, early, 50)
}

// A send before a rest is who hears why the connection is gone: the socket says so only once. But EPIPE only says that
// there is a reason.
func TestSendBeforeRestKeepsReason(t *testing.T) {
	for said, want := range map[syscall.Errno]error{syscall.ECONNRESET: syscall.ECONNRESET, syscall.EPIPE: io.ErrUnexpectedEOF} {
		told := false
		_, err := restingFeed(t, &fakeDriver{}, func(*engine) {}, 40, func(recv [][]byte) (int, error) {
			switch {
			case told:
				return 0, io.EOF
			case len(recv) == 0:
				told = true
				return 0, os.NewSyscallError("sendmsg", said)
			}
			return 0, nil
		})
		require.ErrorIs(t, err, want)
		require.NotErrorIs(t, err, syscall.EPIPE)
	}
}

// A send that failed, and went well when it was tried again, is not why the connection ends much later.
func TestSendBeforeRestForgetsReason(t *testing.T) {
	for _, rests := range []restLength{noRests, longRests} { // after that
		d := &fakeDriver{}
		failed := false
		var e *engine
		d.take = func(send [][]byte) (int, error) {
			if d.only && !failed {
				failed = true
				e.pace.best = rests
				return 0, os.NewSyscallError("sendmsg", syscall.ENOBUFS)
			}
			return size(send), nil
		}
		_, err := restingFeed(t, d, func(with *engine) { e = with }, 400, eof)
		require.True(t, failed)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.NotErrorIs(t, err, syscall.ENOBUFS)
	}
}
