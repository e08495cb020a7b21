package capture

import (
	"bytes"
	"slices"
)

// maxAhead bounds how many segments wait for a lost one.
const maxAhead = 8192

// stream puts one direction of a connection in order: segments come in any order, several times,
// overlapping, and sequence numbers wrap. (gopacket's assemblers are one off when they wrap, which
// every connection does that moved 4 GiB.)
//
// Of two different versions of a byte the one captured first counts.
type stream struct {
	open  bool   // next is known
	next  uint32 // sequence number that is due
	ahead []piece
	held  int // bytes in ahead
}

// start opens the stream at seq.
func (s *stream) start(seq uint32) {
	*s = stream{open: true, next: seq}
}

// add takes a piece, whose data it copies if it must wait, and hands what is in order to take.
func (s *stream) add(p piece, take func(piece)) {
	if int32(p.seq-s.next) > 0 {
		s.hold(p)
		return
	}
	s.pass(p, take)
	for len(s.ahead) > 0 && int32(s.ahead[0].seq-s.next) <= 0 {
		s.pass(s.pop(), take)
	}
}

// pass hands over what is new of a piece that begins at or before next.
func (s *stream) pass(p piece, take func(piece)) {
	old := s.next - p.seq
	if uint64(old) >= uint64(p.len()) {
		return
	}
	if n := min(int(old), len(p.data)); n > 0 {
		p.data = p.data[n:]
		old -= uint32(n)
	}
	p.missing -= int(old)
	p.seq = s.next
	s.next += uint32(p.len())
	take(p)
}

// hold keeps a piece that is ahead of next.
func (s *stream) hold(p piece) {
	if p.len() == 0 {
		return
	}
	i := len(s.ahead)
	for i > 0 && int32(s.ahead[i-1].seq-p.seq) > 0 {
		i--
	}
	if i > 0 {
		if q := &s.ahead[i-1]; int(p.seq-q.seq)+p.len() <= len(q.data) {
			return // again
		}
	}
	p.data = bytes.Clone(p.data)
	s.held += len(p.data)
	s.ahead = slices.Insert(s.ahead, i, p)
}

// pop takes the first piece that waits.
func (s *stream) pop() piece {
	p := s.ahead[0]
	s.ahead[0] = piece{}
	s.ahead = s.ahead[1:]
	s.held -= len(p.data)
	return p
}

// giveUp stops waiting for the bytes before the first piece that waits: they become missing.
func (s *stream) giveUp(take func(piece)) {
	gap := s.ahead[0].seq - s.next
	s.add(piece{seq: s.next, missing: int(gap)}, take)
}
