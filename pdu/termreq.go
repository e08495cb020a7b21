package pdu

import (
	"encoding/binary"
	"fmt"
)

// TermReq is H2CTermReq or C2HTermReq: the last PDU of a connection that met a fatal error.
// It never carries digests.
type TermReq struct {
	Type   Type // TypeH2CTermReq or TypeC2HTermReq
	FES    FES
	FEI    uint32 // at byte 10, unaligned; meaning depends on FES
	Header []byte // header of the PDU that was wrong, at most 128 bytes
}

// TermReq returns the PDU that reports e: an H2CTermReq from a host, a C2HTermReq from a controller.
func (e *Error) TermReq(from Role) TermReq {
	t := TermReq{Type: TypeH2CTermReq, FES: e.FES, FEI: e.FEI, Header: e.Header}
	if from == Controller {
		t.Type = TypeC2HTermReq
	}
	return t
}

// Append appends the PDU, 24 to 152 bytes, to b.
func (p *TermReq) Append(b []byte) []byte {
	k := p.Header[:min(len(p.Header), MaxHeaderLen)]
	b = CommonHeader{Type: p.Type, HLEN: dataLen, PLEN: uint32(dataLen + len(k))}.Append(b)
	b = binary.LittleEndian.AppendUint16(b, uint16(p.FES))
	b = binary.LittleEndian.AppendUint32(b, p.FEI)
	b = zeros(b, 10)
	return append(b, k...)
}

// Decode reads the PDU from b, its whole PLEN. Header becomes a slice of b.
func (p *TermReq) Decode(b []byte) error {
	var h CommonHeader
	if len(b) < dataLen {
		return NewError(FESInvalidHeaderField, offPLEN, b, "the header is cut short")
	}
	h.Decode(b)
	if !h.Type.IsTermReq() {
		return NewError(FESInvalidHeaderField, offType, b[:dataLen], "not a TermReq")
	}
	if h.HLEN != dataLen || h.PLEN < dataLen || h.PLEN > MaxTermReqLen || uint64(len(b)) < uint64(h.PLEN) {
		return NewError(FESInvalidHeaderField, offPLEN, b[:dataLen], "bad length")
	}
	p.Type = h.Type
	p.FES = FES(binary.LittleEndian.Uint16(b[8:]))
	p.FEI = binary.LittleEndian.Uint32(b[10:])
	p.Header = b[dataLen:h.PLEN]
	return nil
}

// String returns what the sender complained of.
func (p *TermReq) String() string {
	s := fmt.Sprintf("%s: %s", p.Type, p.FES)
	switch p.FES {
	case FESInvalidHeaderField, FESUnsupported:
		s += fmt.Sprintf(" at offset %d", p.FEI)
	case FESHeaderDigest:
		s += fmt.Sprintf(", digest %#08x", p.FEI)
	}
	if len(p.Header) > 0 {
		s += " of a " + Type(p.Header[0]).String()
	}
	return s
}
