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
			p.got(got)
		}
		d := p.rest(n, 1000)
		require.Greater(t, d, takes*3/4)
		require.Less(t, d, takes*4/3)
	}
	for range 1000 { // nothing comes
		p.rest(n, 1000)
		p.got(0)
	}
	require.Equal(t, restMost, p.rest(n, 1000))
	require.Equal(t, 3*restEach, p.rest(n, 3))
	require.LessOrEqual(t, p.rest(1<<30, 1000), restMost)
	p.got(1 << 30)
	long := p.rest(64<<10, 1000)
	p.got(64 << 10)
	p.got(0) // there was no rest before this one
	require.Less(t, p.rest(64<<10, 1000), long)
	for range 1000 { // all is there at once
		p.got(p.wanted)
		p.rest(n, 1000)
	}
	require.Equal(t, lookEvery, p.rest(n, 1000))
}

// There is a rest for what is on its way, but none for a read that the controller has not begun to answer.
func TestRestForPayload(t *testing.T) {
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, CommandTimeout: -1})
	inOrderReads(t, e, pdu.Layout{})
	e.restForPayload(false, false)
	var cmds [6]Command
	for i := range cmds {
		cmds[i].SQE, cmds[i].Done = nvme.Read(1, 0, 0), func(*Command) {}
		cmds[i].SetData(make([]byte, 64<<10))
		e.q.Submit(&cmds[i])
		e.takeIn()
	}
	rests := func() int {
		e.pace.wanted = 0
		e.restForPayload(false, false)
		return e.pace.wanted
	}
	require.Zero(t, rests(), "nothing has come yet")
	data := c2hData(cmds[0].SQE.CID, make([]byte, 64<<10), pdu.Layout{})
	data, err := e.deliver(data, 24+1000)
	require.NoError(t, err)
	require.Equal(t, 64<<10-1000, rests())
	_, err = e.deliver(data, len(data))
	require.NoError(t, err)
	require.Equal(t, 64<<10, rests(), "one came to its end: the next one follows")
	require.Zero(t, rests())
	_, err = e.deliver(failed(cmds[5].SQE.CID), 24)
	require.NoError(t, err)
	require.Zero(t, rests(), "an answer without data")
	_, err = e.deliver(c2hData(cmds[1].SQE.CID, make([]byte, 64<<10), pdu.Layout{}), 24+64<<10)
	require.NoError(t, err)
	_, err = e.deliver(c2hData(cmds[2].SQE.CID, make([]byte, 64<<10), pdu.Layout{}), 24+64<<10)
	require.NoError(t, err)
	require.Zero(t, rests(), "with few outstanding the controller waits for the host")
}
