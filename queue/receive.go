package queue

import (
	"errors"
	"fmt"
	"math"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// receiver takes the stream apart. Everything goes through one read buffer that stays in the cache,
// except payloads that are large enough for a copy to cost more than a system call.
type receiver struct {
	framing pdu.Framing

	buf  []byte
	r, w int // buf[r:w] is received and not looked at

	// The payload that is being received, while left > 0 or digest.
	slot    *slot
	left    int
	crc     uint32
	digest  bool // DDGST follows
	flags   pdu.Flags
	scatter bool // it is large: receive into the command's buffers

	vec    [][]byte
	direct int // bytes of vec that are the command's

	ahead
}

const (
	readBuffer   = 256 << 10
	scatterAbove = 64 << 10
	scatterTail  = 4 << 10 // of the read buffer, behind what goes to its place: the next headers come along
)

func (x *receiver) init(f pdu.Framing) {
	x.framing = f
	x.buf = make([]byte, readBuffer)
	x.vec = make([][]byte, 0, maxVec)
	x.gaps = make([]gap, 0, maxGaps)
	x.piece = math.MaxInt
}

// placing reports whether the rest of a large payload is awaited.
func (x *receiver) placing() bool { return x.left > 0 && x.scatter }

// vector says where the next bytes are to go.
func (x *receiver) vector(s *slots) [][]byte {
	x.vec, x.direct, x.gaps = x.vec[:0], 0, x.gaps[:0]
	if x.left > 0 && (!x.scatter || x.slot.cmd == nil) {
		return append(x.vec, x.buf[x.w:])
	}
	var pos cursor
	if x.left > 0 {
		pos = x.slot.pos // a copy: it moves on when the bytes are there
	}
	for x.direct < x.left && len(x.vec) < maxVec-1 {
		b := pos.next(x.slot.cmd.Data, x.left-x.direct)
		x.vec = append(x.vec, b)
		x.direct += len(b)
	}
	end := x.w
	if x.direct == x.left {
		end = x.lookAhead(s, pos)
	}
	tail := x.buf[end:]
	if len(x.vec) > 0 {
		tail = tail[:scatterTail]
	}
	x.vec = append(x.vec, tail)
	return x.vec
}

// receive works off the n bytes that have come into the last vector.
func (e *engine) receive(n int) error {
	x := &e.rx
	if k := min(n, x.direct); k > 0 {
		n -= k
		e.stats.Placed += uint64(k)
		x.left -= k
		s := x.slot
		for k > 0 {
			b := s.pos.next(s.cmd.Data, k)
			k -= len(b)
			if x.digest {
				x.crc = pdu.UpdateDigest(x.crc, b)
			}
		}
	}
	x.w += n
	x.cutGaps()
	err := e.parse()
	if x.r > 0 { // less than a header is left
		x.w = copy(x.buf, x.buf[x.r:x.w])
		x.r = 0
	}
	return err
}

// parse works off the read buffer until it ends inside something.
func (e *engine) parse() error {
	x := &e.rx
	for {
		if x.left > 0 {
			e.place()
			if x.left > 0 {
				return nil
			}
		}
		if x.digest {
			if x.w-x.r < pdu.DigestLen {
				return nil
			}
			if got := pdu.ReadDigest(x.buf[x.r:]); got != x.crc {
				x.slot.bad = true
				e.stats.DataErrors++
			}
			x.r += pdu.DigestLen
			x.digest = false
		}
		if x.slot != nil {
			s := x.slot
			x.slot = nil
			e.dataDone(s)
		}
		b := x.buf[x.r:x.w]
		if x.beforeGap() < pdu.TypeC2HData.HeaderLen() {
			x.fill()
		}
		if len(b) < pdu.CommonHeaderLen {
			return nil
		}
		var h pdu.CommonHeader
		h.Decode(b)
		if err := x.framing.Check(h); err != nil {
			x.fill() // the complaint quotes the header, which may be longer than the one foreseen
			return e.malformed(b, err)
		}
		n := x.framing.HeaderSize(h)
		if h.Type.IsTermReq() {
			n = int(h.PLEN)
		}
		if n > x.beforeGap() {
			x.fill()
		}
		if len(b) < n {
			return nil
		}
		if err := x.framing.VerifyHeader(h, b); err != nil {
			return protocolError(err)
		}
		x.r += n
		if err := e.dispatch(h.Type, b[:n]); err != nil {
			return err
		}
	}
}

// malformed is a common header that did not pass. The complaint takes along what there is of the header.
func (e *engine) malformed(b []byte, err error) error {
	var pe *pdu.Error
	if errors.As(err, &pe) {
		if n := pdu.Type(b[0]).HeaderLen(); n > len(pe.Header) {
			pe.Header = append(pe.Header[:0], b[:min(n, len(b))]...)
		}
	}
	return protocolError(err)
}

// place copies what the read buffer has of the payload to where it belongs.
func (e *engine) place() {
	x := &e.rx
	if len(x.gaps) > 0 {
		e.inPlace()
	}
	b := x.buf[x.r:min(x.w, x.r+x.left)]
	x.r += len(b)
	x.left -= len(b)
	if x.digest {
		x.crc = pdu.UpdateDigest(x.crc, b)
	}
	if x.slot.cmd == nil {
		return // abandoned
	}
	e.stats.Copied += uint64(len(b))
	for len(b) > 0 {
		b = b[copy(x.slot.pos.next(x.slot.cmd.Data, len(b)), b):]
	}
}

func (e *engine) dispatch(t pdu.Type, hdr []byte) error {
	switch t {
	case pdu.TypeC2HData:
		return e.c2hData(hdr)
	case pdu.TypeCapsuleResp:
		return e.response(hdr)
	case pdu.TypeR2T:
		return e.r2t(hdr)
	case pdu.TypeC2HTermReq:
		var t TermError
		if err := t.Decode(hdr); err != nil {
			return protocolError(err)
		}
		t.Header = append([]byte(nil), t.Header...) // lest the error keep the read buffer
		return &t
	}
	return protocolError(pdu.NewError(pdu.FESInvalidHeaderField, 0, hdr, "unexpected type")) // Check lets none through
}

// breach is a protocol error about the PDU with that header.
func breach(fes pdu.FES, fei uint32, hdr []byte, format string, a ...any) error {
	if n := pdu.Type(hdr[0]).HeaderLen(); len(hdr) > n {
		hdr = hdr[:n]
	}
	return protocolError(pdu.NewError(fes, fei, hdr, fmt.Sprintf(format, a...)))
}

// Offsets of fields, for FEI.
const (
	offFlags = 1
	offCCCID = 8
	offCQE   = 8
	offDATAO = 12
	offR2TO  = 12
)

// c2hData begins the payload of a read.
func (e *engine) c2hData(hdr []byte) error {
	var d pdu.Data
	if err := d.Decode(hdr); err != nil {
		return protocolError(err)
	}
	s := e.find(d.CCCID)
	if s == nil {
		return breach(pdu.FESInvalidHeaderField, offCCCID, hdr, "no command %#04x is outstanding", d.CCCID)
	}
	if s.dir != nvme.DirControllerToHost || s.length == 0 {
		return breach(pdu.FESInvalidHeaderField, offCCCID, hdr, "command %#04x reads no data", d.CCCID)
	}
	end := uint64(d.DATAO) + uint64(d.DATAL)
	if end > uint64(s.length) {
		return breach(pdu.FESOutOfRange, 0, hdr, "data up to byte %d of command %#04x, which has %d", end, d.CCCID, s.length)
	}
	if s.last {
		return breach(pdu.FESSequenceError, 0, hdr, "data of command %#04x after its LAST_PDU", d.CCCID)
	}
	if d.DATAO != s.got {
		return breach(pdu.FESInvalidHeaderField, offDATAO, hdr, "DATAO %d of command %#04x, want %d", d.DATAO, d.CCCID, s.got)
	}
	if d.Flags.Has(pdu.FlagSuccess) && uint32(end) != s.length {
		return breach(pdu.FESInvalidHeaderField, offFlags, hdr, "SUCCESS at byte %d of command %#04x, which has %d", end, d.CCCID, s.length)
	}
	s.got = uint32(end)
	e.awaited -= int(d.DATAL)
	s.last = d.Flags.Has(pdu.FlagLast)
	x := &e.rx
	x.inOrder++
	if s != e.oldest {
		x.inOrder = 0
	}
	x.header = len(hdr)
	switch {
	case !s.last:
		x.piece = int(d.DATAL)
	case int(d.DATAL) > x.piece:
		x.piece = math.MaxInt
	}
	if s.last {
		x.explicit = !d.Flags.Has(pdu.FlagSuccess)
	}
	if s.got == s.length {
		e.served(s)
	}
	x.slot, x.left, x.crc, x.flags = s, int(d.DATAL), 0, d.Flags
	x.digest = x.framing.Data
	x.scatter = x.left > scatterAbove
	return nil
}

// dataDone follows the last byte of a C2HData.
func (e *engine) dataDone(s *slot) {
	if !e.rx.flags.Has(pdu.FlagSuccess) {
		e.rx.owed = e.rx.flags.Has(pdu.FlagLast)
		return
	}
	e.complete(s, s.digestError())
}

// digestError is the outcome of a read one of whose data digests was wrong: the controller's success
// does not change it.
func (s *slot) digestError() error {
	if s.bad {
		return fmt.Errorf("command %#04x: %w", s.cid, ErrDigest)
	}
	return nil
}

// response ends a command with the controller's completion queue entry.
func (e *engine) response(hdr []byte) error {
	var (
		p   pdu.CapsuleResp
		cqe nvme.CQE
	)
	if err := p.Decode(hdr); err != nil {
		return protocolError(err)
	}
	if err := cqe.Decode(p.CQE[:]); err != nil {
		return err
	}
	s := e.find(cqe.CID)
	e.rx.owed = false
	if s != nil && s.ahead > 0 { // its buffer is the caller's again
		e.rx.fill()
	}
	if s == nil {
		return breach(pdu.FESInvalidHeaderField, offCQE, hdr, "completion of command %#04x, which is not outstanding", cqe.CID)
	}
	if cqe.Status.OK() && s.length > 0 {
		switch {
		case s.dir == nvme.DirControllerToHost && s.got != s.length:
			return breach(pdu.FESSequenceError, 0, hdr, "success of command %#04x after %d of %d bytes", cqe.CID, s.got, s.length)
		case s.dir == nvme.DirHostToController && !s.capsule && (s.asked != s.length || len(s.r2ts) > 0):
			return breach(pdu.FESSequenceError, 0, hdr, "success of command %#04x before all its %d bytes were sent", cqe.CID, s.length)
		}
	}
	if s.cmd != nil {
		s.cmd.CQE = cqe
	}
	if cqe.Status.OK() {
		e.complete(s, s.digestError())
	} else {
		e.complete(s, nil)
	}
	return nil
}

// r2t notes that the controller wants a piece of a write's data.
func (e *engine) r2t(hdr []byte) error {
	var p pdu.R2T
	if err := p.Decode(hdr); err != nil {
		return protocolError(err)
	}
	s := e.find(p.CCCID)
	if s == nil {
		return breach(pdu.FESInvalidHeaderField, offCCCID, hdr, "no command %#04x is outstanding", p.CCCID)
	}
	if s.dir != nvme.DirHostToController || s.length == 0 || s.capsule {
		return breach(pdu.FESInvalidHeaderField, offCCCID, hdr, "command %#04x has no data to be asked for", p.CCCID)
	}
	end := uint64(p.R2TO) + uint64(p.R2TL)
	if end > uint64(s.length) {
		return breach(pdu.FESOutOfRange, 0, hdr, "R2T up to byte %d of command %#04x, which has %d", end, p.CCCID, s.length)
	}
	if p.R2TO != s.asked {
		return breach(pdu.FESInvalidHeaderField, offR2TO, hdr, "R2TO %d of command %#04x, want %d", p.R2TO, p.CCCID, s.asked)
	}
	if s.open >= e.maxR2T {
		return breach(pdu.FESLimitExceeded, 0, hdr, "%d R2Ts of command %#04x outstanding", s.open+1, p.CCCID)
	}
	s.asked = uint32(end)
	s.open++
	s.r2ts = append(s.r2ts, r2t{ttag: p.TTAG, off: p.R2TO, n: p.R2TL})
	e.tx.writes = append(e.tx.writes, uint16(e.index(s)))
	return nil
}
