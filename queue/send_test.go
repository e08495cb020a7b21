package queue

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// fakeController answers what a fakeDriver's socket took. It runs on the engine's goroutine, so it keeps
// what is wrong for the test to see.
type fakeController struct {
	d       *fakeDriver
	framing pdu.Framing
	layout  pdu.Layout
	rnd     *rand.Rand
	maxR2T  int

	seen   int // of d.sent
	out    []byte
	cmds   map[uint16]*fakeCommand
	done   map[uint64][]byte // data of completed writes, by SLBA
	broken error
}

type fakeCommand struct {
	sqe   nvme.SQE
	data  []byte
	asked int
	r2ts  []pdu.R2T
}

func (c *fakeController) give(recv [][]byte) (int, error) {
	for c.broken == nil {
		p, n, err := c.framing.Split(c.d.sent[c.seen:])
		if err != nil {
			c.broken = err
			break
		}
		if n == 0 {
			break
		}
		c.seen += n
		if c.broken = c.pdu(p); c.broken != nil {
			break
		}
	}
	n := copy(recv[0], c.out)
	c.out = c.out[n:]
	return n, nil
}

func (c *fakeController) pdu(p pdu.Raw) error {
	if p.BadData {
		return fmt.Errorf("wrong data digest in %s", p.Type)
	}
	if p.Type == pdu.TypeCapsuleCmd {
		var cmd pdu.CapsuleCmd
		cmd.Decode(p.Header)
		f := &fakeCommand{data: p.Data}
		f.sqe.Decode(cmd.SQE[:])
		f.asked = len(p.Data)
		c.cmds[f.sqe.CID] = f
		c.goOn(f)
		return nil
	}
	var d pdu.Data
	if err := d.Decode(p.Header); err != nil {
		return err
	}
	f := c.cmds[d.CCCID]
	if f == nil || len(f.r2ts) == 0 {
		return fmt.Errorf("H2CData that nobody asked for: %+v", d)
	}
	r := &f.r2ts[0]
	if r.TTAG != d.TTAG || r.R2TO != d.DATAO || d.DATAL > r.R2TL || d.Flags.Has(pdu.FlagLast) != (d.DATAL == r.R2TL) {
		return fmt.Errorf("asked for %+v, got %+v", *r, d)
	}
	f.data = append(f.data, p.Data...)
	r.R2TO += d.DATAL
	r.R2TL -= d.DATAL
	if r.R2TL == 0 {
		f.r2ts = f.r2ts[1:]
		c.goOn(f)
	}
	return nil
}

// goOn asks for more of a write's data, or completes the command.
func (c *fakeController) goOn(f *fakeCommand) {
	want := int(f.sqe.SGL.Length)
	for len(f.r2ts) <= c.maxR2T && f.asked < want {
		n := 1 + c.rnd.IntN(want-f.asked)
		r := pdu.R2T{CCCID: f.sqe.CID, TTAG: uint16(c.rnd.Uint32()), R2TO: uint32(f.asked), R2TL: uint32(n)}
		f.asked += n
		f.r2ts = append(f.r2ts, r)
		c.out = r.Append(c.out, c.layout)
	}
	if len(f.r2ts) > 0 {
		return
	}
	c.done[f.sqe.SLBA()] = f.data
	delete(c.cmds, f.sqe.CID)
	var p pdu.CapsuleResp
	cqe := nvme.CQE{CID: f.sqe.CID}
	cqe.Append(p.CQE[:0])
	c.out = p.Append(c.out, c.layout)
}

// However few bytes the socket takes at a time, the stream is the same: whole PDUs, each with the right data.
func TestSendInBits(t *testing.T) {
	for i, digests := range []pdu.Digests{{}, {Header: true, Data: true}} {
		for _, bit := range []int{1, 100, 5000, 1 << 20} {
			t.Run(fmt.Sprint(digests, bit), func(t *testing.T) {
				rnd := rand.New(rand.NewPCG(uint64(i), uint64(bit)))
				d := &fakeDriver{take: func(send [][]byte) (int, error) {
					if rnd.IntN(20) == 0 {
						return 0, nil
					}
					return min(size(send), 1+rnd.IntN(bit)), nil
				}}
				e := engineOn(t, d, Config{QID: 1, Depth: 8, MaxR2T: 3, MaxInCapsule: 600, Digests: digests, CommandTimeout: -1})
				e.tx.maxH2CData = 4096
				c := &fakeController{
					d: d, rnd: rnd, maxR2T: 3, cmds: map[uint16]*fakeCommand{}, done: map[uint64][]byte{},
					framing: pdu.Framing{Role: pdu.Controller, Ready: true, Digests: digests, MaxData: 4096},
					layout:  pdu.Layout{Digests: digests},
				}
				d.give = c.give
				q := e.run(t)
				var (
					cmds  [100]Command
					batch []*Command
					want  [len(cmds)][]byte
					done  = make(chan struct{}, len(cmds))
				)
				for i := range cmds {
					n := rnd.IntN(min(20*bit+2, 50_000))
					if i == 50 && bit > 1 {
						n = 50_000 // in more pieces than go into one send
					}
					want[i] = make([]byte, n)
					for j := range want[i] {
						want[i][j] = byte(rnd.Uint32())
					}
					for rest := want[i]; len(rest) > 0; {
						k := 1 + rnd.IntN(len(rest))
						if i == 50 {
							k = min(k, 30)
						}
						cmds[i].Data = append(cmds[i].Data, rest[:k])
						rest = rest[k:]
					}
					cmds[i].SQE = nvme.Write(1, uint64(i), 0)
					cmds[i].Done = func(*Command) { done <- struct{}{} }
					batch = append(batch, &cmds[i])
				}
				q.Submit(batch...)
				for range cmds {
					within(t, 20*time.Second, done, "commands are left")
				}
				q.Close()
				require.NoError(t, c.broken)
				for i := range cmds {
					require.NoError(t, cmds[i].Err)
					require.True(t, bytes.Equal(want[i], c.done[uint64(i)]), "wrong data of write %d", i)
				}
				require.True(t, e.tx.empty())
				require.Zero(t, e.tx.due)
			})
		}
	}
}

// Capsules that lie together go out as one slice, and never are there more slices than one call takes.
func TestSendVector(t *testing.T) {
	var x transmitter
	x.init(pdu.Layout{}, 4096, 3000)
	s := &slot{cmd: &Command{SQE: nvme.Flush(1)}}
	for range 2000 {
		x.capsule(s, 0)
	}
	require.Equal(t, 2000*72, size(x.vector()))
	require.Len(t, x.vector(), 1)
	s = &slot{cmd: &Command{SQE: nvme.Write(1, 0, 0), Data: [][]byte{make([]byte, 512)}}, capsule: true, length: 512}
	for range 600 {
		s.pos = cursor{}
		x.capsule(s, 0)
	}
	require.Len(t, x.vector(), maxVec)
}

// sentPDUs cuts up what the socket took.
func sentPDUs(t *testing.T, d *fakeDriver) (all []pdu.Raw) {
	t.Helper()
	f := pdu.Framing{Role: pdu.Controller, Ready: true}
	for b := d.sent; len(b) > 0; {
		p, n, err := f.Split(b)
		require.NoError(t, err)
		require.NotZero(t, n, "a PDU is cut short")
		all = append(all, p)
		b = b[n:]
	}
	return all
}

// turn is one exchange of an engine that no goroutine runs: what is taken in goes out as far as the socket
// takes it, and then b is received.
func (e *engine) turn(b []byte) error {
	e.takeIn()
	e.encodeData()
	sent, _, _ := e.drv.exchange(e.tx.vector(), e.rx.vector(&e.slots))
	e.sent(sent)
	if b == nil {
		return nil
	}
	return e.receive(copy(e.rx.vector(&e.slots)[0], b))
}

// An engine with two writes of four windows (CIDs 1<<5 and 1<<5|1) whose socket takes nothing until open.
func twoWrites(t *testing.T) (e *engine, d *fakeDriver, a, b *Command) {
	d = &fakeDriver{take: func([][]byte) (int, error) { return 0, nil }}
	e = engineOn(t, d, Config{QID: 1, MaxR2T: 3})
	var cmds [2]Command
	for i := range cmds {
		cmds[i].SQE = nvme.Write(1, 0, 8191)
		cmds[i].SetData(make([]byte, 4*sendWindow))
		cmds[i].Done = func(c *Command) { c.User = "done" }
	}
	e.q.Submit(&cmds[0], &cmds[1])
	require.NoError(t, e.turn(nil))
	return e, d, &cmds[0], &cmds[1]
}

func (d *fakeDriver) open() { d.take = nil }

func askFor(cid, ttag uint16, off, n int) []byte {
	r := pdu.R2T{CCCID: cid, TTAG: ttag, R2TO: uint32(off), R2TL: uint32(n)}
	return r.Append(nil, pdu.Layout{})
}

func failed(cid uint16) []byte {
	var p pdu.CapsuleResp
	cqe := nvme.CQE{CID: cid, Status: nvme.StatusWriteFault.Status()}
	cqe.Append(p.CQE[:0])
	return p.Append(nil, pdu.Layout{})
}

// ttags counts the bytes of H2CData by TTAG.
func ttags(all []pdu.Raw) map[uint16]int {
	n := map[uint16]int{}
	for _, p := range all {
		var d pdu.Data
		if p.Type == pdu.TypeH2CData && d.Decode(p.Header) == nil {
			n[d.TTAG] += len(p.Data)
		}
	}
	return n
}

const (
	cidA = 1 << 5
	cidB = 1<<5 | 1
)

// H2CData is not encoded far ahead of what the socket takes.
func TestSendWindow(t *testing.T) {
	e, d, _, _ := twoWrites(t)
	require.NoError(t, e.turn(askFor(cidA, 1, 0, 4*sendWindow)))
	for range 100 {
		require.NoError(t, e.turn(nil))
	}
	require.LessOrEqual(t, e.tx.due, sendWindow+2*(64<<10))
	d.open()
	for range 100 {
		require.NoError(t, e.turn(nil))
	}
	require.Equal(t, map[uint16]int{1: 4 * sendWindow}, ttags(sentPDUs(t, d)))
}

// Requests for a few bytes each fill the arena long before the window; the rest waits.
func TestSendRoom(t *testing.T) {
	d := &fakeDriver{take: func([][]byte) (int, error) { return 0, nil }}
	e := engineOn(t, d, Config{QID: 1, MaxR2T: 15, Depth: 1024})
	cmds := make([]Command, 1024)
	want := map[uint16]int{}
	for i := range cmds {
		cmds[i].SQE = nvme.Write(1, 0, 0)
		cmds[i].SetData(make([]byte, 512))
		cmds[i].Done = func(*Command) {}
		e.q.Submit(&cmds[i])
	}
	require.NoError(t, e.turn(nil))
	for i := range cmds {
		for j := range 16 {
			require.NoError(t, e.turn(askFor(1<<10|uint16(i), uint16(i*16+j), j, 1)))
			want[uint16(i*16+j)] = 1
		}
	}
	require.LessOrEqual(t, len(e.tx.arena), cap(e.tx.arena))
	require.False(t, e.tx.room())
	d.open()
	for len(e.tx.writes) > 0 || !e.tx.empty() {
		require.NoError(t, e.turn(nil))
	}
	require.Equal(t, want, ttags(sentPDUs(t, d)))
}

// The R2Ts of several commands are answered in the order in which they came.
func TestSendOrder(t *testing.T) {
	e, d, _, _ := twoWrites(t)
	for i, cid := range []uint16{cidA, cidB, cidA, cidB, cidB, cidA} {
		off := []int{0, 0, 512, 512, 1024, 1024}[i]
		require.NoError(t, e.turn(askFor(cid, uint16(i), off, 512)))
	}
	d.open()
	require.NoError(t, e.turn(nil))
	for i, p := range sentPDUs(t, d)[2:] {
		var h pdu.Data
		require.NoError(t, h.Decode(p.Header))
		require.EqualValues(t, i, h.TTAG)
	}
	require.Len(t, ttags(sentPDUs(t, d)), 6)
}

// A write that fails early is done when the R2T whose answer has begun is answered; the others of its R2Ts are
// dropped, those of another write are not.
func TestEarlyErrorDropsR2Ts(t *testing.T) {
	e, d, a, b := twoWrites(t)
	require.NoError(t, e.turn(askFor(cidA, 1, 0, 2*sendWindow))) // more than the window
	require.NoError(t, e.turn(askFor(cidA, 2, 2*sendWindow, 512)))
	require.NoError(t, e.turn(askFor(cidB, 3, 0, 512)))
	require.NoError(t, e.turn(askFor(cidA, 4, 2*sendWindow+512, 512)))
	require.NoError(t, e.turn(askFor(cidB, 5, 512, 512)))
	require.NoError(t, e.turn(failed(cidA)))
	require.Nil(t, a.User, "it is being sent from")
	d.open()
	for range 100 {
		require.NoError(t, e.turn(nil))
	}
	require.Equal(t, "done", a.User)
	require.ErrorIs(t, a.Err, nvme.StatusWriteFault)
	require.Equal(t, map[uint16]int{1: 2 * sendWindow, 3: 512, 5: 512}, ttags(sentPDUs(t, d)))
	require.Nil(t, b.User)
	require.Equal(t, 1, e.used())
}

// A write that fails before any of its R2Ts is being answered is done at once.
func TestEarlyErrorBeforeData(t *testing.T) {
	e, d, a, _ := twoWrites(t)
	require.NoError(t, e.turn(askFor(cidB, 1, 0, 2*sendWindow))) // keeps the others waiting
	require.NoError(t, e.turn(askFor(cidA, 2, 0, 512)))
	require.NoError(t, e.turn(askFor(cidB, 3, 2*sendWindow, 512)))
	require.NoError(t, e.turn(askFor(cidA, 4, 512, 512)))
	require.NoError(t, e.turn(failed(cidA)))
	require.Equal(t, "done", a.User)
	d.open()
	for range 100 {
		require.NoError(t, e.turn(nil))
	}
	require.Equal(t, map[uint16]int{1: 2 * sendWindow, 3: 512}, ttags(sentPDUs(t, d)))
}

// A cancelled write keeps its buffer while a part of what the controller asked for is still to be sent,
// also in the moments in which nothing of it is in the send queue.
func TestCancelAskedWrite(t *testing.T) {
	e, d, a, b := twoWrites(t)
	require.NoError(t, e.turn(askFor(cidA, 1, 0, 4*sendWindow)))
	require.NoError(t, e.turn(nil))
	e.q.Cancel(a)
	require.NoError(t, e.turn(nil))
	d.open()
	for len(ttags(sentPDUs(t, d))) == 0 || ttags(sentPDUs(t, d))[1] < 4*sendWindow {
		require.Nil(t, a.User, "it is still to be sent from")
		require.NoError(t, e.turn(nil))
	}
	require.Equal(t, "done", a.User)
	require.ErrorIs(t, a.Err, context.Canceled)
	require.Nil(t, b.User)
	require.NoError(t, e.turn(answer(cidA)))
	require.Equal(t, 1, e.used())
}

// A write that is answered while it is being sent keeps its buffers to the last byte of the last of them.
func TestAnsweredWhileSending(t *testing.T) {
	room := 0
	d := &fakeDriver{take: func(send [][]byte) (int, error) {
		n := min(room, size(send))
		room -= n
		return n, nil
	}}
	e := engineOn(t, d, Config{QID: 1, MaxInCapsule: 4096})
	c := Command{SQE: nvme.Write(1, 0, 0), Data: [][]byte{make([]byte, 100), make([]byte, 100), make([]byte, 312)}}
	done := false
	c.Done = func(*Command) { done = true }
	e.q.Submit(&c)
	require.NoError(t, e.turn(nil))
	require.NoError(t, e.turn(answer(cidA)))
	for _, n := range []int{72, 50, 50, 100, 311} {
		room = n
		require.NoError(t, e.turn(nil))
		require.Zero(t, room)
		require.False(t, done)
	}
	room = 1
	require.NoError(t, e.turn(nil))
	require.True(t, done)
	require.NoError(t, c.Err)
}

// A cursor skips empty buffers, wherever they are.
func TestCursor(t *testing.T) {
	data := [][]byte{nil, {}, {1, 2}, nil, nil, nil, {3}, {}, {4, 5, 6}, nil}
	for most := 1; most < 4; most++ {
		var p cursor
		var got []byte
		for len(got) < 6 {
			b := p.next(data, most)
			require.NotEmpty(t, b)
			require.LessOrEqual(t, len(b), most)
			got = append(got, b...)
		}
		require.Equal(t, []byte{1, 2, 3, 4, 5, 6}, got)
	}
}

// A write that the controller has answered keeps the answer when the queue ends before it is sent.
func TestAnswerKept(t *testing.T) {
	e, _, a, b := twoWrites(t)
	require.NoError(t, e.turn(askFor(cidA, 1, 0, 4*sendWindow)))
	require.NoError(t, e.turn(failed(cidA)))
	require.Nil(t, a.User)
	e.fatal = ErrTimeout
	e.finish()
	require.Equal(t, "done", a.User)
	require.ErrorIs(t, a.Err, nvme.StatusWriteFault)
	require.ErrorIs(t, b.Err, ErrTimeout)
}

// What cannot be: success of a write whose data is not on its way yet, and a second completion, or another
// R2T, of a write that waits only for the socket.
func TestSendingBreaches(t *testing.T) {
	for _, tc := range []struct {
		name string
		b    []byte
		fes  pdu.FES
	}{
		{"success", answer(cidA), pdu.FESSequenceError},
		{"completed twice", append(failed(cidA), failed(cidA)...), pdu.FESInvalidHeaderField},
		{"R2T after completion", append(failed(cidA), askFor(cidA, 2, 4*sendWindow-512, 512)...), pdu.FESInvalidHeaderField},
	} {
		t.Run(tc.name, func(t *testing.T) {
			e, _, a, _ := twoWrites(t)
			require.NoError(t, e.turn(askFor(cidA, 1, 0, 4*sendWindow-512)))
			require.NoError(t, e.turn(nil))
			if tc.name == "success" {
				require.NoError(t, e.turn(askFor(cidA, 2, 4*sendWindow-512, 512)))
			}
			var pe *pdu.Error
			require.ErrorAs(t, e.turn(tc.b), &pe)
			require.Equal(t, tc.fes, pe.FES)
			require.Nil(t, a.User)
		})
	}
}

// H2CTermReq follows the PDU that is on its way, and what the driver has taken already; nothing follows it.
func TestTermReqEndsTheStream(t *testing.T) {
	const capsules = 2 * 72
	for _, tc := range []struct{ sent, inflight, before int }{ // bytes; PDUs before the H2CTermReq
		{0, 0, 0},
		{1, 0, 1},
		{72, 0, 1},
		{73, 0, 2},
		{capsules, 0, 2},
		{capsules + 24, 0, 3}, // between header and data
		{capsules + 24 + 5000, 0, 3},
		{capsules + 24 + 64<<10, 0, 3},
		{0, 1, 1},
		{0, capsules, 2},
		{73, 72, 3},
		{capsules, 24 + 64<<10, 3},
		{capsules, 24 + 64<<10 + 1, 4},
	} {
		t.Run(fmt.Sprintf("%+v", tc), func(t *testing.T) {
			e, d, a, b := twoWrites(t)
			require.NoError(t, e.turn(askFor(cidA, 1, 0, 2*sendWindow)))
			require.NoError(t, e.turn(nil))
			d.take = func([][]byte) (int, error) { return tc.sent, nil }
			err := e.turn([]byte("nonsense"))
			require.ErrorAs(t, err, &e.breach)
			e.fatal = e.failure("receive", err)
			d.open()
			d.given = tc.inflight
			e.q.cfg.Linger = time.Millisecond
			e.finish()
			all := sentPDUs(t, d)
			require.Len(t, all, tc.before+1)
			require.Equal(t, pdu.TypeH2CTermReq, all[tc.before].Type)
			for _, c := range []*Command{a, b} {
				require.Equal(t, "done", c.User)
				require.ErrorIs(t, c.Err, ErrProtocol)
			}
		})
	}
}

// Large payloads are received in place, with a piece of the read buffer behind them; all else goes to the read buffer.
func TestReceiveVector(t *testing.T) {
	var x receiver
	x.init(pdu.Framing{})
	s := &slot{cmd: &Command{}}
	many := make([][]byte, 1000)
	for i := range many {
		many[i] = make([]byte, 1000)
	}
	s.cmd.Data = many
	x.slot, x.left, x.scatter = s, 1000*1000, true
	v := x.vector(&slots{})
	require.Len(t, v, maxVec)
	require.Equal(t, (maxVec-1)*1000, x.direct)

	for n, direct := range map[int]int{64 << 10: 0, 64<<10 + 4: 64<<10 + 4} {
		e := engineOn(t, &fakeDriver{}, Config{})
		c := Command{SQE: nvme.Read(1, 0, 0)}
		c.SetData(make([]byte, n))
		e.q.Submit(&c)
		h := pdu.Data{Type: pdu.TypeC2HData, CCCID: 1 << 5, DATAL: uint32(n)}
		require.NoError(t, e.turn(h.AppendHeader(nil, pdu.Layout{})))
		v := e.rx.vector(&e.slots)
		require.Equal(t, direct, e.rx.direct)
		if direct > 0 {
			require.Len(t, v, 2)
			require.Len(t, v[1], scatterTail)
		}
	}
}

// F10: as many R2Ts may be open as the host has said. Where the driver reports late, all of them may have been
// answered and replaced by others before the host knows.
func TestF10R2TLimit(t *testing.T) {
	for _, lazy := range []bool{false, true} {
		for most := range 3 { // MaxR2T, 0's based
			d := &fakeDriver{lazy: lazy, take: func([][]byte) (int, error) { return 0, nil }}
			e := engineOn(t, d, Config{QID: 1, MaxR2T: uint32(most)})
			c := Command{SQE: nvme.Write(1, 0, 0), Done: func(*Command) {}}
			c.SetData(make([]byte, 512))
			e.q.Submit(&c)
			limit := most + 1
			if lazy {
				limit *= 2
			}
			for i := range limit {
				require.NoError(t, e.turn(askFor(cidA, uint16(i), i, 1)))
			}
			var pe *pdu.Error
			require.ErrorAs(t, e.turn(askFor(cidA, 99, limit, 1)), &pe)
			require.Equal(t, pdu.FESLimitExceeded, pe.FES)
		}
	}
}

// What was submitted together goes out together, in order.
func TestSendBatch(t *testing.T) {
	d := &fakeDriver{}
	e := engineOn(t, d, Config{Depth: 7})
	cmds := make([]*Command, 10)
	for i := range cmds {
		cmds[i] = &Command{SQE: nvme.Flush(uint32(i)), Done: func(*Command) {}}
	}
	e.q.Submit(cmds[:2]...)
	e.q.Submit(cmds[2:]...)
	require.NoError(t, e.turn(nil))
	all := sentPDUs(t, d)
	require.Len(t, all, 7)
	for i, p := range all {
		var sqe nvme.SQE
		require.NoError(t, sqe.Decode(p.Header[pdu.CommonHeaderLen:]))
		require.EqualValues(t, i, sqe.NSID)
	}
}
