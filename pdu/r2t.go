package pdu

import "encoding/binary"

// R2T asks the host for a piece of a command's data.
type R2T struct {
	CCCID uint16
	TTAG  uint16 // the controller's tag, opaque to the host; any value
	R2TO  uint32 // offset from the start of the command's data
	R2TL  uint32 // bytes asked for, more than 0
}

// Append appends the PDU, 24 bytes and HDGST, to b.
func (p *R2T) Append(b []byte, l Layout) []byte {
	start := len(b)
	h := l.CommonHeader(TypeR2T, 0, 0)
	b = h.Append(b)
	b = binary.LittleEndian.AppendUint16(b, p.CCCID)
	b = binary.LittleEndian.AppendUint16(b, p.TTAG)
	b = binary.LittleEndian.AppendUint32(b, p.R2TO)
	b = binary.LittleEndian.AppendUint32(b, p.R2TL)
	b = zeros(b, 4)
	return h.finish(b, start)
}

// Decode reads the header from b, 24 bytes or more. R2TL 0 is an error.
func (p *R2T) Decode(b []byte) error {
	if err := needHeader(b, TypeR2T); err != nil {
		return err
	}
	p.CCCID = binary.LittleEndian.Uint16(b[8:])
	p.TTAG = binary.LittleEndian.Uint16(b[10:])
	p.R2TO = binary.LittleEndian.Uint32(b[12:])
	p.R2TL = binary.LittleEndian.Uint32(b[16:])
	if p.R2TL == 0 {
		return NewError(FESInvalidHeaderField, 16, b[:dataLen], "R2TL is 0")
	}
	return nil
}
