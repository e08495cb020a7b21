package pdu

import (
	"encoding/binary"
	"fmt"
)

// ICResp answers ICReq: the first PDU that a controller sends.
type ICResp struct {
	PFV        uint16  // PDU format version, 0
	CPDA       uint8   // controller PDU data alignment, 0's based dwords: constrains PDO of CapsuleCmd and H2CData
	DGST       Digests // digests that are in use from here on
	MAXH2CDATA uint32  // largest DATA of one H2CData in bytes: at least 4096, a multiple of 4
}

// Append appends the PDU's 128 bytes to b.
func (p *ICResp) Append(b []byte) []byte {
	b = CommonHeader{Type: TypeICResp, HLEN: icLen, PLEN: icLen}.Append(b)
	b = binary.LittleEndian.AppendUint16(b, p.PFV)
	b = append(b, p.CPDA, p.DGST.bits())
	b = binary.LittleEndian.AppendUint32(b, p.MAXH2CDATA)
	return zeros(b, 112)
}

// Decode reads the PDU from b, 128 bytes. PFV other than 0, CPDA above 31 and a MAXH2CDATA that is
// below 4096 or no multiple of 4 are errors.
func (p *ICResp) Decode(b []byte) error {
	if err := needHeader(b, TypeICResp); err != nil {
		return err
	}
	p.PFV = binary.LittleEndian.Uint16(b[8:])
	p.CPDA = b[10]
	p.DGST = digestsOf(b[11])
	p.MAXH2CDATA = binary.LittleEndian.Uint32(b[12:])
	if p.PFV != 0 {
		return NewError(FESInvalidHeaderField, 8, b[:icLen], "PFV is not 0")
	}
	if p.CPDA > MaxAlign {
		return NewError(FESInvalidHeaderField, 10, b[:icLen], "CPDA is above 31")
	}
	if p.MAXH2CDATA < MinMaxH2CData || p.MAXH2CDATA%4 != 0 {
		return NewError(FESInvalidHeaderField, 12, b[:icLen], fmt.Sprintf("MAXH2CDATA %d, want a multiple of 4 from 4096", p.MAXH2CDATA))
	}
	return nil
}
