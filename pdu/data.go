package pdu

import (
	"encoding/binary"
	"fmt"
)

// Data is H2CData or C2HData: a piece of a command's data.
type Data struct {
	Type  Type  // TypeH2CData or TypeC2HData
	Flags Flags // FlagLast, FlagSuccess; the digest flags follow from the layout
	CCCID uint16
	TTAG  uint16 // H2CData: copied from the R2T; C2HData: 0
	DATAO uint32 // offset from the start of the command's data
	DATAL uint32 // bytes of data, more than 0
}

// AppendHeader appends all that stands before DATA: header, HDGST and PAD. The caller sends DATAL
// bytes after it, then DDGST where l has data digests.
func (p *Data) AppendHeader(b []byte, l Layout) []byte {
	start := len(b)
	h := l.CommonHeader(p.Type, p.Flags&(FlagLast|FlagSuccess), int(p.DATAL))
	b = h.Append(b)
	b = binary.LittleEndian.AppendUint16(b, p.CCCID)
	b = binary.LittleEndian.AppendUint16(b, p.TTAG)
	b = binary.LittleEndian.AppendUint32(b, p.DATAO)
	b = binary.LittleEndian.AppendUint32(b, p.DATAL)
	b = zeros(b, 4)
	return h.finish(b, start)
}

// Append appends the whole PDU. DATAL becomes len(data).
func (p *Data) Append(b []byte, l Layout, data []byte) []byte {
	p.DATAL = uint32(len(data))
	b = p.AppendHeader(b, l)
	return l.CommonHeader(p.Type, 0, len(data)).appendData(b, data)
}

// Decode reads the header from b, 24 bytes or more. Errors: DATAL 0, DATAL that does not fill the
// PDU to PLEN, SUCCESS without LAST_PDU. Call it after [Framing.Check].
func (p *Data) Decode(b []byte) error {
	var h CommonHeader
	if len(b) < dataLen {
		return NewError(FESInvalidHeaderField, offPLEN, b, "the header is cut short")
	}
	h.Decode(b)
	if h.Type != TypeH2CData && h.Type != TypeC2HData {
		return NewError(FESInvalidHeaderField, offType, b[:dataLen], "not a data PDU")
	}
	p.Type = h.Type
	p.Flags = h.Flags
	p.CCCID = binary.LittleEndian.Uint16(b[8:])
	p.TTAG = binary.LittleEndian.Uint16(b[10:])
	p.DATAO = binary.LittleEndian.Uint32(b[12:])
	p.DATAL = binary.LittleEndian.Uint32(b[16:])
	if p.Type == TypeC2HData && h.Flags.Has(FlagSuccess) && !h.Flags.Has(FlagLast) {
		return NewError(FESInvalidHeaderField, offFlags, b[:dataLen], "SUCCESS without LAST_PDU")
	}
	if p.DATAL == 0 {
		return NewError(FESInvalidHeaderField, 16, b[:dataLen], "DATAL is 0")
	}
	want := uint64(h.PDO) + uint64(p.DATAL)
	if h.Flags.Has(FlagDDGST) {
		want += DigestLen
	}
	if want != uint64(h.PLEN) {
		return NewError(FESInvalidHeaderField, offPLEN, b[:dataLen], fmt.Sprintf("PLEN %d, but DATAL %d makes it %d", h.PLEN, p.DATAL, want))
	}
	return nil
}
