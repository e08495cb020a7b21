package queue

import (
	"math"
	"unsafe"

	"github.com/nvstage/nvstage/pdu"
)

// ahead is for receiving large payloads in place together with the headers before them, which are not known yet: a
// controller that has answered reads in their order for a while will go on so. The read buffer keeps a gap for each
// such payload. Should something else come, what lies in the commands' buffers is moved to the gaps, and all
// is as if nobody had looked ahead.
type ahead struct {
	gaps     []gap // of the last vector that are not worked off, in order
	inOrder  int   // how many C2HData in a row were for the read that had waited longest
	header   int   // how far from its beginning the last C2HData had its data
	piece    int   // how much data a C2HData has that is not the last one of its read
	explicit bool  // a CapsuleResp followed, or is to follow, the data of the last read
	owed     bool  // it has not come yet
}

// gap is a part of the read buffer whose bytes are in a command's buffer instead.
type gap struct {
	at, n int // buf[at:at+n]
	slot  *slot
	pos   cursor // of the slot's data
}

const (
	aheadAbove = 32 << 10 // smaller payloads go through the read buffer
	maxGaps    = 8        // more do not fit the read buffer
	inOrderFor = 32       // C2HData, before the order is relied on
)

// lookAhead extends the vector by where the next payloads should go, and returns how much of the read buffer is
// used for that. pos is where the present payload ends, if it is not complete. It is the oldest read's then, if there
// is more to come of it: c2hData begins to count anew at any other.
func (x *receiver) lookAhead(s *slots, pos cursor) (end int) {
	end = x.w
	if x.inOrder < inOrderFor {
		return end
	}
	digest, response := 0, pdu.TypeCapsuleResp.HeaderLen()
	if x.framing.Data {
		digest = pdu.DigestLen
	}
	if x.framing.Header {
		response += pdu.DigestLen
	}
	at := x.header
	if x.digest { // of the present payload
		at += digest
	}
	if x.owed || x.slot != nil && x.slot.last && x.explicit {
		at += response
	}
	t, off := s.oldest, 0
	for ; t != nil && len(x.gaps) < maxGaps && len(x.vec) < maxVec-2; at += digest + x.header {
		if off == 0 {
			if t.cmd == nil || len(t.cmd.Data) > 1 || t.length <= aheadAbove { // an abandoned one has no buffer
				break
			}
			off = int(t.got)
			if t != x.slot || x.left == 0 {
				pos = t.pos
			}
		}
		whole := min(int(t.length)-off, x.piece)
		n := min(whole, len(x.buf)-scatterTail-at)
		g := gap{at: at, n: n, slot: t, pos: pos}
		if n <= 0 || at < end || whole <= aheadAbove && off+whole < int(t.length) {
			break
		}
		b := pos.next(t.cmd.Data, n)
		if x.overlaps(b) { // one would be all that is left of both
			break
		}
		x.gaps = append(x.gaps, g)
		x.vec = append(x.vec, x.buf[end:at], b)
		end = at + n
		at, off = end, off+n
		if off == int(t.length) {
			t, off = t.newer, 0
			if x.explicit {
				at += response
			}
		}
	}
	return end
}

// overlaps reports whether b shares memory with the vector.
func (x *receiver) overlaps(b []byte) bool {
	start := func(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }
	for _, v := range x.vec {
		if start(v) < start(b)+uintptr(len(b)) && start(b) < start(v)+uintptr(len(v)) {
			return true
		}
	}
	return false
}

// cutGaps leaves of the gaps what has been received.
func (x *receiver) cutGaps() {
	for i := range x.gaps {
		g := &x.gaps[i]
		if g.at >= x.w {
			x.gaps = x.gaps[:i]
			return
		}
		g.n = min(g.n, x.w-g.at)
		g.slot.ahead++
	}
}

// beforeGap returns how many bytes of the read buffer come before the next gap.
func (x *receiver) beforeGap() int {
	if len(x.gaps) == 0 {
		return math.MaxInt
	}
	return x.gaps[0].at - x.r
}

// inPlace works off what is in place already of the payload that begins at a gap, unless it was foreseen wrongly.
func (e *engine) inPlace() {
	x := &e.rx
	g := &x.gaps[0]
	s := x.slot
	if g.at != x.r || g.slot != s || g.pos != s.pos {
		x.fill()
		return
	}
	n := min(g.n, x.left)
	b := s.pos.next(s.cmd.Data, n)
	if x.digest {
		x.crc = pdu.UpdateDigest(x.crc, b)
	}
	e.stats.Placed += uint64(n)
	x.r += n
	x.left -= n
	if n < g.n { // less data than there might have been
		*g = gap{at: g.at + n, n: g.n - n, slot: s, pos: s.pos}
		x.fill()
		return
	}
	x.scatter = true // the rest, too
	s.ahead--
	x.gaps = x.gaps[:copy(x.gaps, x.gaps[1:])]
	if x.left > 0 { // more data than foreseen
		x.fill()
	}
}

// fill moves what was received in place to the gaps: it is something else. That costs copies, so it is not to happen
// again soon, with a controller that changes how it answers, or has R2Ts in between.
func (x *receiver) fill() {
	for _, g := range x.gaps {
		x.inOrder = 0
		copy(x.buf[g.at:g.at+g.n], g.pos.next(g.slot.cmd.Data, g.n))
		g.slot.ahead--
	}
	x.gaps = x.gaps[:0]
}
