package queue

import (
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
	deliver(failed(cmds[5].SQE.CID))
	require.Zero(t, rests(), "an answer without data")
	require.Equal(t, 4*each, e.awaited)
	deliver(c2hData(cmds[1].SQE.CID, make([]byte, each), pdu.Layout{}))
	feeds := e.feeds
	e.feeds = nil
	got := e.pace.payload
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
