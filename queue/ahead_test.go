package queue

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// deliver receives the front of stream as one call to the socket would, at most n bytes, and returns the rest.
func (e *engine) deliver(stream []byte, n int) ([]byte, error) {
	v := e.rx.vector(&e.slots)
	stream0, got := stream, 0
	for _, b := range v {
		k := copy(b, stream[:min(len(stream), n-got)])
		stream = stream[k:]
		got += k
	}
	if got == 0 {
		return stream0, nil
	}
	return stream, e.receive(got)
}

// readHost keeps reads outstanding on an engine that no goroutine runs, and looks at each when it is back.
type readHost struct {
	t     *testing.T
	e     *engine
	noise []byte
	out   map[uint16]*hostRead // by CID
	order []uint16             // of issue
	back  [][]byte             // buffers that were given back: nobody writes there any more
	count int                  // reads that have completed with data
}

type hostRead struct {
	Command
	want   []byte
	fail   bool // the controller is to answer with an error
	gone   bool // cancelled
	sent   int  // of want
	closed bool // nothing is to be answered any more
}

const scribble = 0xEE

func (h *readHost) submit(size, parts int) *hostRead {
	r := &hostRead{}
	off := (h.count*4099 + len(h.back)*257) % (len(h.noise) - size)
	r.want = h.noise[off : off+size]
	r.SQE = nvme.Read(1, 0, 0)
	buf := make([]byte, size)
	whole := buf
	for i := parts; i > 0; i-- {
		n := len(buf) / i
		r.Data = append(r.Data, buf[:n:n])
		buf = buf[n:]
	}
	r.Done = func(c *Command) {
		switch {
		case r.gone:
			require.ErrorIs(h.t, c.Err, context.Canceled)
		case r.fail:
			require.Equal(h.t, nvme.StatusInternalError.Status(), c.Err)
		default:
			require.NoError(h.t, c.Err)
			require.True(h.t, bytes.Equal(r.want, whole), "read %d has wrong bytes", h.count)
			h.count++
		}
		for i := range whole {
			whole[i] = scribble
		}
		h.back = append(h.back, whole)
	}
	h.e.q.Submit(&r.Command)
	h.e.takeIn()
	h.out[r.SQE.CID] = r
	h.order = append(h.order, r.SQE.CID)
	return r
}

// drop forgets a read that the controller has answered.
func (h *readHost) drop(cid uint16) {
	delete(h.out, cid)
	for i, c := range h.order {
		if c == cid {
			h.order = append(h.order[:i], h.order[i+1:]...)
			return
		}
	}
}

// Whatever a controller that has answered in order does next, and however the stream is cut, each read ends up with
// its own bytes, and no buffer is written to once it has been given back.
func TestLookAhead(t *testing.T) {
	noise := make([]byte, 1<<20)
	for i, rnd := 0, rand.New(rand.NewPCG(1, 2)); i < len(noise); i++ {
		noise[i] = byte(rnd.Uint32())
	}
	var hits, misses int
	for _, digests := range []pdu.Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}} {
		for seed := range 24 {
			t.Run(fmt.Sprintf("%v-%d", digests, seed), func(t *testing.T) {
				h, missed := lookAheadRun(t, noise, digests, rand.New(rand.NewPCG(uint64(seed), 3)), seed)
				hits += h
				misses += missed
			})
		}
	}
	require.Greater(t, hits, 500)
	require.Greater(t, misses, 100)
}

func lookAheadRun(t *testing.T, noise []byte, digests pdu.Digests, rnd *rand.Rand, seed int) (hits, misses int) {
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, Digests: digests, CommandTimeout: -1})
	h := &readHost{t: t, e: e, noise: noise, out: map[uint16]*hostRead{}}
	layout := pdu.Layout{Digests: digests, Align: uint8(seed % 3)} // padding is for the controller to choose
	e.rx.framing.Align = layout.Align
	success := seed%2 == 0
	piece := 1 << 30
	if seed%5 == 4 {
		piece = 80 << 10
	}
	sizes := []int{128 << 10, 128 << 10, 300 << 10, 40 << 10, 96 << 10}
	respond := func(out []byte, cid uint16, status nvme.Status) []byte {
		var p pdu.CapsuleResp
		cqe := nvme.CQE{CID: cid, Status: status}
		cqe.Append(p.CQE[:0])
		h.drop(cid)
		return p.Append(out, layout)
	}
	var stream []byte
	var late []uint16 // data is out, the response is not
	for round := 0; h.count < 300; round++ {
		calm := round%48 < 34 // long enough for the order to be relied on
		for len(e.free) > 0 {
			size, parts := sizes[rnd.IntN(len(sizes))], 1
			if !calm && rnd.IntN(3) == 0 {
				size, parts = 512<<rnd.IntN(9), 1+rnd.IntN(3)
			}
			h.submit(size, parts)
		}
		if !calm && len(h.order) > 0 && rnd.IntN(12) == 0 {
			if r := h.out[h.order[rnd.IntN(len(h.order))]]; !r.gone && !r.fail && !r.closed {
				r.gone = true
				e.q.Cancel(&r.Command)
				e.takeIn()
			}
		}
		// What the controller says next.
		for len(stream) < 400<<10 {
			var ready []uint16
			for _, cid := range h.order {
				if !h.out[cid].closed {
					ready = append(ready, cid)
				}
			}
			if len(ready) == 0 || len(late) > 0 && (calm || rnd.IntN(2) == 0) {
				if len(late) == 0 {
					break
				}
				stream = respond(stream, late[0], 0)
				late = late[1:]
				continue
			}
			pick := 0
			if !calm && rnd.IntN(2) == 0 {
				pick = rnd.IntN(len(ready))
			}
			cid := ready[pick]
			r := h.out[cid]
			if !calm && rnd.IntN(6) == 0 && !r.gone {
				r.fail, r.closed = true, true
				stream = respond(stream, cid, nvme.StatusInternalError.Status())
				continue
			}
			n := min(piece, len(r.want)-r.sent)
			if !calm && rnd.IntN(4) == 0 {
				n = len(r.want) - r.sent
			}
			if !calm && rnd.IntN(4) == 0 {
				n = 1 + rnd.IntN(n)
			}
			d := pdu.Data{Type: pdu.TypeC2HData, CCCID: cid, DATAO: uint32(r.sent), DATAL: uint32(n)}
			end := r.sent+n == len(r.want)
			if end {
				d.Flags = pdu.FlagLast
				if success {
					d.Flags |= pdu.FlagSuccess
				}
			}
			data := r.want[r.sent : r.sent+n]
			stream = d.AppendHeader(stream, layout)
			stream = append(stream, data...)
			if digests.Data {
				stream = pdu.AppendDigest(stream, pdu.UpdateDigest(0, data))
			}
			r.sent += n
			switch {
			case end && success:
				r.closed = true
				h.drop(cid)
			case end:
				r.closed = true
				late = append(late, cid)
			}
		}
		if len(stream) == 0 {
			continue
		}
		most := len(stream)
		switch rnd.IntN(4) {
		case 0:
			most = 1 + rnd.IntN(len(stream))
		case 1:
			most = min(len(stream), 1+rnd.IntN(300))
		}
		before := e.rx.inOrder
		var err error
		stream, err = e.deliver(stream, most)
		require.NoError(t, err)
		if len(e.rx.gaps) > 0 {
			t.Fatal("a gap is left")
		}
		switch {
		case before >= inOrderFor && e.rx.inOrder == 0:
			misses++
		case before >= inOrderFor && e.rx.inOrder > before:
			hits++
		}
		awaited := 0
		for i := range e.all {
			require.Zero(t, e.all[i].ahead)
			if e.all[i].waits {
				awaited += int(e.all[i].length - e.all[i].got)
			}
		}
		require.Equal(t, awaited, e.awaited)
	}
	for _, b := range h.back {
		require.Equal(t, len(b), bytes.Count(b, []byte{scribble}), "written to after its completion")
	}
	return hits, misses
}

// inOrderReads lets the controller answer reads of 64 KiB in their order until that is relied on.
func inOrderReads(t *testing.T, e *engine, layout pdu.Layout) {
	t.Helper()
	data := make([]byte, 64<<10)
	for e.rx.inOrder < inOrderFor {
		c := Command{SQE: nvme.Read(1, 0, 0), Done: func(c *Command) { require.NoError(t, c.Err) }}
		c.SetData(make([]byte, len(data)))
		e.q.Submit(&c)
		e.takeIn()
		for stream := c2hData(c.SQE.CID, data, layout); len(stream) > 0; {
			var err error
			stream, err = e.deliver(stream, len(stream))
			require.NoError(t, err)
		}
	}
}

func c2hData(cid uint16, data []byte, layout pdu.Layout) []byte {
	d := pdu.Data{Type: pdu.TypeC2HData, CCCID: cid, DATAL: uint32(len(data)), Flags: pdu.FlagLast | pdu.FlagSuccess}
	b := append(d.AppendHeader(nil, layout), data...)
	if layout.Data {
		b = pdu.AppendDigest(b, pdu.UpdateDigest(0, data))
	}
	return b
}

// Who does not care for the data may read it all into one buffer: the digests are still those of what came.
func TestLookAheadOverlap(t *testing.T) {
	layout := pdu.Layout{Digests: pdu.Digests{Data: true}}
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, Digests: layout.Digests, CommandTimeout: -1})
	inOrderReads(t, e, layout)
	buf := make([]byte, 100<<10)
	cmds := make([]Command, 4)
	var stream []byte
	done := 0
	for i := range cmds {
		c := &cmds[i]
		c.SQE, c.Done = nvme.Read(1, 0, 0), func(c *Command) { require.NoError(t, c.Err); done++ }
		c.SetData(buf[i*1024:][:64<<10])
		e.q.Submit(c)
		e.takeIn()
		stream = append(stream, c2hData(c.SQE.CID, bytes.Repeat([]byte{byte(i + 1)}, 64<<10), layout)...)
	}
	for len(stream) > 0 {
		var err error
		stream, err = e.deliver(stream, len(stream))
		require.NoError(t, err)
	}
	require.Equal(t, len(cmds), done)
}

// A controller that goes on in order needs few receives for several large reads, and nothing is copied but what came
// behind the part that was foreseen.
func TestLookAheadPlaces(t *testing.T) {
	for _, digests := range []pdu.Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}} {
		for _, how := range []struct {
			name     string
			explicit bool // CapsuleResp for each read
			piece    int  // the most in a C2HData
			calls    int
		}{{"success", false, 1 << 20, 3}, {"response", true, 1 << 20, 3}, {"pieces", false, 40 << 10, 3}, {"pieces, response", true, 40 << 10, 3}} {
			t.Run(fmt.Sprintf("%v %s", digests, how.name), func(t *testing.T) {
				layout := pdu.Layout{Digests: digests}
				e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, Digests: digests, CommandTimeout: -1})
				cmds := make([]Command, 8)
				done := 0
				round := func() (calls int) {
					var stream []byte
					for i := range cmds {
						c := &cmds[i]
						c.SQE, c.Done = nvme.Read(1, 0, 0), func(c *Command) { require.NoError(t, c.Err); done++ }
						c.SetData(make([]byte, 80<<10))
						e.q.Submit(c)
						e.takeIn()
						data := bytes.Repeat([]byte{byte(i + 1)}, 80<<10)
						for off := 0; off < len(data); off += how.piece {
							part := data[off:min(off+how.piece, len(data))]
							d := pdu.Data{Type: pdu.TypeC2HData, CCCID: c.SQE.CID, DATAO: uint32(off), DATAL: uint32(len(part))}
							if off+len(part) == len(data) {
								d.Flags = pdu.FlagLast
								if !how.explicit {
									d.Flags |= pdu.FlagSuccess
								}
							}
							stream = append(d.AppendHeader(stream, layout), part...)
							if digests.Data {
								stream = pdu.AppendDigest(stream, pdu.UpdateDigest(0, part))
							}
						}
						if how.explicit {
							var p pdu.CapsuleResp
							cqe := nvme.CQE{CID: c.SQE.CID}
							cqe.Append(p.CQE[:0])
							stream = p.Append(stream, layout)
						}
					}
					for ; len(stream) > 0; calls++ {
						var err error
						stream, err = e.deliver(stream, len(stream))
						require.NoError(t, err)
					}
					for i := range cmds {
						require.Equal(t, 80<<10, bytes.Count(cmds[i].Data[0], []byte{byte(i + 1)}))
					}
					return calls
				}
				for range 8 {
					round()
				}
				done = 0
				before := e.stats.Copied
				require.LessOrEqual(t, round(), how.calls)
				require.Equal(t, len(cmds), done)
				require.LessOrEqual(t, e.stats.Copied-before, uint64(how.calls*scatterTail))
			})
		}
	}
}

// Where the next payload will begin depends on what is still to come of the one before.
func TestLookAheadAfterData(t *testing.T) {
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, CommandTimeout: -1})
	inOrderReads(t, e, pdu.Layout{})
	var cmds [2]Command
	for i := range cmds {
		cmds[i].SQE, cmds[i].Done = nvme.Read(1, 0, 0), func(*Command) {}
		cmds[i].SetData(make([]byte, 64<<10))
		e.q.Submit(&cmds[i])
		e.takeIn()
	}
	next := func() int {
		e.rx.vector(&e.slots)
		require.NotEmpty(t, e.rx.gaps)
		return e.rx.gaps[0].at
	}
	deliver := func(b []byte) {
		rest, err := e.deliver(b, len(b))
		require.NoError(t, err)
		require.Empty(t, rest)
	}
	require.Equal(t, 24, next())
	d := pdu.Data{Type: pdu.TypeC2HData, CCCID: cmds[0].SQE.CID, DATAL: 64 << 10, Flags: pdu.FlagLast}
	deliver(append(d.AppendHeader(nil, pdu.Layout{}), make([]byte, 60<<10)...))
	require.Equal(t, 48, next())
	deliver(make([]byte, 4<<10))
	require.Equal(t, 48, next())
	deliver(answer(cmds[0].SQE.CID))
	require.Equal(t, 24, next())

	// Something else comes: not again until the order has been kept for a while.
	for len(e.free) > 0 {
		c := &Command{SQE: nvme.Read(1, 0, 0), Done: func(*Command) {}}
		c.SetData(make([]byte, 64<<10))
		e.q.Submit(c)
		e.takeIn()
	}
	require.GreaterOrEqual(t, e.rx.inOrder, inOrderFor)
	deliver(append(failed(e.oldest.cid), c2hData(e.oldest.newer.cid, make([]byte, 64<<10), pdu.Layout{})...))
	require.Less(t, e.rx.inOrder, inOrderFor)
}

// What is longer than the header that was foreseen, or will be, need not come at once.
func TestLookAheadTermReq(t *testing.T) {
	for _, early := range []bool{false, true} {
		e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, CommandTimeout: -1})
		inOrderReads(t, e, pdu.Layout{})
		c := Command{SQE: nvme.Read(1, 0, 0), Done: func(*Command) {}}
		c.SetData(make([]byte, 64<<10))
		term := pdu.TermReq{Type: pdu.TypeC2HTermReq, FES: pdu.FESSequenceError, Header: bytes.Repeat([]byte{7}, 24)}
		stream := term.Append(nil)
		if early {
			e.q.Submit(&c)
			e.takeIn()
		}
		stream, err := e.deliver(stream, 30)
		require.NoError(t, err)
		if !early {
			e.q.Submit(&c)
			e.takeIn()
		}
		_, err = e.deliver(stream, len(stream))
		var got *TermError
		require.ErrorAs(t, err, &got)
		require.Equal(t, term.Header, got.Header)
	}
}

// A complaint quotes the PDU that it is about, not what the read buffer has in its gaps.
func TestLookAheadMalformed(t *testing.T) {
	e := engineOn(t, &fakeDriver{}, Config{QID: 1, Depth: 8, CommandTimeout: -1})
	inOrderReads(t, e, pdu.Layout{})
	c := Command{SQE: nvme.Read(1, 0, 0), Done: func(*Command) {}}
	c.SetData(make([]byte, 64<<10))
	e.q.Submit(&c)
	e.takeIn()
	h := pdu.CommonHeader{Type: pdu.TypeCapsuleCmd, HLEN: 72, PLEN: 72} // not the controller's to send
	bad := append(h.Append(nil), bytes.Repeat([]byte{7}, 64)...)
	_, err := e.deliver(bad, len(bad))
	var pe *pdu.Error
	require.ErrorAs(t, err, &pe)
	require.Equal(t, bad, pe.Header)
}
