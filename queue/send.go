package queue

import (
	"github.com/nvstage/nvstage/pdu"
)

// transmitter is the send queue: fragments in the order of the stream. Headers and digests lie in an
// arena, data is pointed to where it is.
type transmitter struct {
	layout     pdu.Layout
	maxH2CData uint32

	arena []byte // cut back to nothing whenever the queue is empty, which bounds the queue
	queue []frag
	head  int // of queue: the first that is not sent completely
	off   int // bytes of it that are sent
	held  int // capsules since the last vector
	due   int // bytes in queue from head and off on
	vec   [][]byte

	writes []uint16 // slots with R2Ts to be answered, in the order of asking
}

// frag is a piece of the stream.
type frag struct {
	b     []byte
	at    int  // offset in the arena, or -1 for a command's data
	slot  int  // index of the slot whose data it is, or -1
	start bool // first of a PDU
	end   bool // last of the data that answers an R2T; slot says whose
}

const (
	capsuleRoom = pdu.MaxPDO + 2*pdu.DigestLen // what a PDU may need in the arena
	dataRoom    = 256 * capsuleRoom            // for H2CData next to one capsule per slot
	sendWindow  = 4 << 20                      // H2CData is not encoded further ahead than this many bytes
)

func (t *transmitter) init(l pdu.Layout, maxH2CData uint32, depth int) {
	t.layout = l
	t.maxH2CData = maxH2CData
	t.arena = make([]byte, 0, depth*capsuleRoom+dataRoom)
	t.queue = make([]frag, 0, 4*depth)
	t.vec = make([][]byte, 0, maxVec)
	t.writes = make([]uint16, 0, depth)
}

// room reports whether another PDU's header fits the arena.
func (t *transmitter) room() bool { return cap(t.arena)-len(t.arena) >= capsuleRoom }

func (t *transmitter) empty() bool { return t.head == len(t.queue) }

func (t *transmitter) push(f frag) {
	t.queue = append(t.queue, f)
	t.due += len(f.b)
}

// inArena queues what was appended to the arena since it was start bytes long.
func (t *transmitter) inArena(start int, first bool) {
	t.push(frag{b: t.arena[start:], at: start, slot: -1, start: first})
}

// data queues n bytes of the slot's data and, with data digests, their DDGST.
func (t *transmitter) data(s *slot, index, n int, end bool) {
	var crc uint32
	for n > 0 {
		b := s.pos.next(s.cmd.Data, n)
		n -= len(b)
		if t.layout.Data {
			crc = pdu.UpdateDigest(crc, b)
		}
		s.refs++
		t.push(frag{b: b, at: -1, slot: index, end: end && n == 0})
	}
	if t.layout.Data {
		start := len(t.arena)
		t.arena = pdu.AppendDigest(t.arena, crc)
		t.inArena(start, false)
	}
}

// capsule queues the command of a slot.
func (t *transmitter) capsule(s *slot, index int) {
	var p pdu.CapsuleCmd
	s.cmd.SQE.Append(p.SQE[:0])
	n := 0
	if s.capsule {
		n = int(s.length)
	}
	start := len(t.arena)
	t.arena = p.AppendHeader(t.arena, t.layout, n)
	t.inArena(start, true)
	if n > 0 {
		t.data(s, index, n, false)
	}
	t.held++
}

// encodeData answers R2Ts with H2CData, as far as the window and the arena allow.
func (e *engine) encodeData() {
	t := &e.tx
	for len(t.writes) > 0 && t.due < sendWindow && t.room() {
		i := int(t.writes[0])
		s := &e.all[i]
		r := &s.r2ts[0]
		r.started = true
		n := min(r.n, t.maxH2CData)
		d := pdu.Data{Type: pdu.TypeH2CData, CCCID: s.cid, TTAG: r.ttag, DATAO: r.off, DATAL: n}
		if n == r.n {
			d.Flags = pdu.FlagLast
		}
		start := len(t.arena)
		t.arena = d.AppendHeader(t.arena, t.layout)
		t.inArena(start, true)
		t.data(s, i, int(n), n == r.n)
		t.held++
		r.off += n
		r.n -= n
		if r.n == 0 {
			s.r2ts = s.r2ts[:copy(s.r2ts, s.r2ts[1:])]
			t.writes = t.writes[:copy(t.writes, t.writes[1:])]
		}
	}
}

// dropR2Ts forgets the R2Ts of a command that has completed already, except one whose answer has begun:
// that has to be brought to its end.
func (e *engine) dropR2Ts(s *slot) {
	keep := 0
	if len(s.r2ts) > 0 && s.r2ts[0].started {
		keep = 1
	}
	drop := len(s.r2ts) - keep
	s.r2ts = s.r2ts[:keep]
	if drop == 0 {
		return
	}
	i := uint16(e.index(s))
	kept := e.tx.writes[:0]
	for _, w := range e.tx.writes {
		if w == i && keep == 0 {
			continue
		}
		if w == i {
			keep--
		}
		kept = append(kept, w)
	}
	e.tx.writes = kept
}

// vector returns the next bytes of the stream as few slices: what lies together in the arena is one.
func (t *transmitter) vector() [][]byte {
	t.held = 0
	t.vec = t.vec[:0]
	end := -1 // where the last slice ends in the arena
	for i := t.head; i < len(t.queue); i++ {
		f := &t.queue[i]
		b := f.b
		if i == t.head {
			b = b[t.off:]
		}
		if n := len(t.vec); f.at >= 0 && f.at == end {
			last := t.vec[n-1]
			t.vec[n-1] = last[:len(last)+len(b)]
		} else {
			if n == maxVec {
				break
			}
			t.vec = append(t.vec, b)
		}
		end = -1
		if f.at >= 0 {
			end = f.at + len(f.b)
		}
	}
	return t.vec
}

// sent removes n bytes from the front of the send queue.
func (e *engine) sent(n int) {
	t := &e.tx
	e.stats.BytesOut += uint64(n)
	t.due -= n
	for n > 0 {
		f := &t.queue[t.head]
		left := len(f.b) - t.off
		if n < left {
			t.off += n
			return
		}
		n -= left
		t.off = 0
		t.head++
		slot, end := f.slot, f.end
		*f = frag{}
		if slot >= 0 {
			e.dataSent(&e.all[slot], end)
		}
	}
	if t.empty() {
		t.queue, t.head, t.arena = t.queue[:0], 0, t.arena[:0]
	}
}

// dataSent notes that the socket has taken a piece of a command's data.
func (e *engine) dataSent(s *slot, end bool) {
	s.refs--
	if end {
		s.open--
	}
	if s.refs > 0 || s.cmd == nil {
		return
	}
	switch {
	case s.finished && len(s.r2ts) == 0:
		e.release(s)
	case s.giveUp != 0:
		e.abandon(s)
	}
}

// last makes b the end of the stream: after the PDU that is on its way, without those that have not
// begun. inflight bytes are with the driver and have to stay. Nothing may be queued any more.
func (t *transmitter) last(b []byte, inflight int) {
	keep := t.head
	for ahead := -t.off; keep < len(t.queue); keep++ { // bytes that go before it
		if t.queue[keep].start && ahead >= inflight {
			break
		}
		ahead += len(t.queue[keep].b)
	}
	t.queue = t.queue[:keep]
	t.push(frag{b: b, at: -1, slot: -1})
}
