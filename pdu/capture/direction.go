package capture

import (
	"bytes"
	"fmt"

	"github.com/nvstage/nvstage/pdu"
)

// direction is one half of a connection: a stream, and the PDUs in it.
type direction struct {
	stream
	c    *conn
	f    pdu.Framing // of the receiver; Ready once ICReq or ICResp was seen
	syn  bool        // the SYN was captured
	at   uint32      // sequence number of the first byte, or of the first captured
	buf  []byte      // begins at a PDU
	skip int         // bytes of a PDU that are to come and to be dropped
	lost bool        // where the next PDU begins is unknown
	last now         // newest packet
}

// another reports whether a SYN opens another connection than the one that is known.
func (d *direction) another(seg segment) bool {
	if !d.open {
		return d.c.refused
	}
	return seg.seq+1 != d.at
}

func (d *direction) segment(seg segment) {
	d.last = d.c.d.now
	if seg.syn {
		seg.seq++
		d.syn = true
	}
	if !d.open {
		d.at = seg.seq
		d.start(d.at)
	}
	d.add(seg.piece, d.take)
	for d.held > d.c.d.MaxBuffer || len(d.ahead) > maxAhead {
		d.giveUp(d.take)
	}
}

// take gets the pieces of the stream in order.
func (d *direction) take(p piece) {
	if n := min(d.skip, len(p.data)); n > 0 {
		d.skip -= n
		p.data = p.data[n:]
	}
	if !d.lost && len(p.data) > 0 {
		d.buf = append(d.buf, p.data...)
		d.cut()
		if len(d.buf) > d.c.d.MaxBuffer {
			d.fail(pdu.CommonHeader{}, fmt.Errorf("%w: %d bytes wait for an ICResp", ErrTooLong, len(d.buf)))
			d.lose()
		}
	}
	if p.missing > 0 {
		d.gap(p.missing)
	}
}

// lose stops decoding this direction.
func (d *direction) lose() {
	d.lost = true
	d.buf = nil
	d.skip = 0
}

// cut takes all whole PDUs off buf.
func (d *direction) cut() {
	n := 0
	for len(d.buf)-n >= pdu.CommonHeaderLen && !d.c.d.stopped {
		k := d.one(d.buf[n:])
		if k == 0 {
			break
		}
		n += k
	}
	if n > 0 && !d.lost {
		d.buf = append(d.buf[:0], d.buf[n:]...)
	}
}

// waiting reports whether a host's PDUs cannot be understood yet: ICResp will tell of the digests.
func (d *direction) waiting(h pdu.CommonHeader) bool {
	return d.f.Role == pdu.Controller && d.f.Ready && d.c.resp == nil && !h.Type.IsTermReq()
}

// one takes the first PDU of b and returns its length, or 0 when that is not all there.
func (d *direction) one(b []byte) int {
	var h pdu.CommonHeader
	h.Decode(b)
	if d.waiting(h) {
		return 0
	}
	if d.f.Role == pdu.Controller && !d.f.Ready && !d.syn && d.c.resp != nil {
		d.f.Ready = h.Type != pdu.TypeICReq // ICReq was not captured, but the answer is known
	}
	if err := d.f.Check(h); err != nil {
		d.garbage(h, b, err)
		return 0
	}
	if uint64(h.PLEN) > uint64(d.c.d.MaxBuffer) {
		d.fail(h, fmt.Errorf("%w: %s of %d bytes, limit %d", ErrTooLong, h.Type, h.PLEN, d.c.d.MaxBuffer))
		n := min(len(b), int(h.PLEN))
		d.skip = int(h.PLEN) - n
		return n
	}
	n := int(h.PLEN)
	if len(b) < n {
		return 0
	}
	b = bytes.Clone(b[:n])
	p := newPDU(&d.f, h, b)
	d.report(p, d.learn(h.Type, b))
	return n
}

// learn decodes a PDU for what the connection uses, and to see whether its fields are right.
func (d *direction) learn(t pdu.Type, b []byte) error {
	switch t {
	case pdu.TypeICReq:
		d.c.req = new(pdu.ICReq)
		d.f.Ready = true
		defer d.c.negotiate()
		return d.c.req.Decode(b)
	case pdu.TypeICResp:
		d.c.resp = new(pdu.ICResp)
		d.f.Ready = true
		defer d.c.negotiate()
		return d.c.resp.Decode(b)
	case pdu.TypeH2CData, pdu.TypeC2HData:
		return new(pdu.Data).Decode(b)
	case pdu.TypeR2T:
		return new(pdu.R2T).Decode(b)
	}
	return nil
}

// garbage reports that no PDU begins where one must.
func (d *direction) garbage(h pdu.CommonHeader, b []byte, err error) {
	begun := d.c.req != nil || d.c.resp != nil
	switch {
	case d.f.Ready || d.syn && begun:
		d.fail(h, err)
		d.lose()
		return
	case !d.c.expected && !begun: // not NVMe/TCP
	case (b[0] == 0x16 || b[0] == 0x17) && b[1] == 3: // a record with a handshake or data
		d.fail(pdu.CommonHeader{}, ErrTLS)
	case d.syn:
		d.fail(h, err)
	default:
		d.fail(pdu.CommonHeader{}, ErrNoStart)
	}
	d.c.refuse()
}

// gap takes it that n bytes are missing behind buf.
func (d *direction) gap(n int) {
	if d.lost {
		return
	}
	k := min(n, d.skip)
	d.skip -= k
	if n -= k; n == 0 {
		return
	}
	var h pdu.CommonHeader
	known := len(d.buf) >= pdu.CommonHeaderLen
	if known {
		h.Decode(d.buf)
		known = !d.waiting(h) && n <= int(h.PLEN)-len(d.buf)
	}
	if !known {
		if d.c.expected || d.f.Ready {
			d.fail(pdu.CommonHeader{}, fmt.Errorf("%w: %d, and the next PDU is not to be found behind them", ErrGap, n))
		}
		d.lose()
		return
	}
	d.report(newPDU(&d.f, h, bytes.Clone(d.buf)), fmt.Errorf("%w: %d of the %d of a %s", ErrGap, n, h.PLEN, h.Type))
	if h.Type == pdu.TypeICReq || h.Type == pdu.TypeICResp {
		if len(d.buf) < 12 { // up to DGST
			d.lose()
			return
		}
		_ = d.learn(h.Type, append(d.buf, make([]byte, h.HLEN)...)) // what is missing is reserved
	}
	d.skip = int(h.PLEN) - len(d.buf) - n
	d.buf = d.buf[:0]
}

// finish ends the direction: nothing more will come.
func (d *direction) finish() {
	for len(d.ahead) > 0 {
		d.giveUp(d.take)
	}
	if d.lost || len(d.buf) == 0 || !d.c.expected && !d.f.Ready {
		return
	}
	var h pdu.CommonHeader
	if len(d.buf) < pdu.CommonHeaderLen {
		d.fail(h, fmt.Errorf("%w: %d bytes of a common header", ErrCut, len(d.buf)))
		return
	}
	h.Decode(d.buf)
	if d.waiting(h) {
		d.fail(pdu.CommonHeader{}, fmt.Errorf("%w: no ICResp", ErrNoStart))
		return
	}
	d.report(newPDU(&d.f, h, bytes.Clone(d.buf)), fmt.Errorf("%w: %d of the %d bytes of a %s", ErrCut, len(d.buf), h.PLEN, h.Type))
}

// fail reports an error about a PDU of which h is all that counts.
func (d *direction) fail(h pdu.CommonHeader, err error) {
	d.report(PDU{Raw: pdu.Raw{CommonHeader: h}}, err)
}

// report hands a PDU over, with an error where there is one.
func (d *direction) report(p PDU, err error) {
	c := d.c
	if c.N == 0 {
		c.d.numbered++
		c.N = c.d.numbered
	}
	p.Time, p.Frame = c.d.time, c.d.frame
	p.Conn, p.To = c.Conn, d.f.Role
	if err != nil {
		err = &Error{Time: p.Time, Frame: p.Frame, Conn: p.Conn, To: p.To, Err: err}
	}
	c.d.emit(p, err)
}
