package pdu

import "encoding/binary"

// ICReq opens a connection: the first PDU that a host sends.
type ICReq struct {
	PFV    uint16  // PDU format version, 0
	HPDA   uint8   // host PDU data alignment, 0's based dwords: constrains PDO of C2HData
	DGST   Digests // digests that the host wants
	MAXR2T uint32  // outstanding R2Ts per command that the host accepts, 0's based
}

// Append appends the PDU's 128 bytes to b.
func (p *ICReq) Append(b []byte) []byte {
	b = CommonHeader{Type: TypeICReq, HLEN: icLen, PLEN: icLen}.Append(b)
	b = binary.LittleEndian.AppendUint16(b, p.PFV)
	b = append(b, p.HPDA, p.DGST.bits())
	b = binary.LittleEndian.AppendUint32(b, p.MAXR2T)
	return zeros(b, 112)
}

// Decode reads the PDU from b, 128 bytes. PFV other than 0 and HPDA above 31 are errors.
func (p *ICReq) Decode(b []byte) error {
	if err := needHeader(b, TypeICReq); err != nil {
		return err
	}
	p.PFV = binary.LittleEndian.Uint16(b[8:])
	p.HPDA = b[10]
	p.DGST = digestsOf(b[11])
	p.MAXR2T = binary.LittleEndian.Uint32(b[12:])
	if p.PFV != 0 {
		return NewError(FESInvalidHeaderField, 8, b[:icLen], "PFV is not 0")
	}
	if p.HPDA > MaxAlign {
		return NewError(FESInvalidHeaderField, 10, b[:icLen], "HPDA is above 31")
	}
	return nil
}

// needHeader makes sure that b starts with a whole header of type t, so that decoders may index it.
func needHeader(b []byte, t Type) error {
	if len(b) > 0 && Type(b[0]) != t {
		return NewError(FESInvalidHeaderField, offType, b, "not a "+t.String())
	}
	if len(b) < t.HeaderLen() {
		return NewError(FESInvalidHeaderField, offPLEN, b, "the header is cut short")
	}
	return nil
}
