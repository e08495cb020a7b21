package pdu

import "encoding/binary"

// CommonHeader is CH, the first 8 bytes of every PDU.
type CommonHeader struct {
	Type  Type
	Flags Flags
	HLEN  uint8  // header length in bytes, without HDGST
	PDO   uint8  // offset of DATA from the start of the PDU; 0 without data
	PLEN  uint32 // whole PDU in bytes
}

// Decode reads the first 8 bytes of b. It judges nothing: [Framing.Check] does.
// The caller sees to it that b holds them.
func (h *CommonHeader) Decode(b []byte) {
	_ = b[CommonHeaderLen-1]
	h.Type = Type(b[0])
	h.Flags = Flags(b[1])
	h.HLEN = b[2]
	h.PDO = b[3]
	h.PLEN = binary.LittleEndian.Uint32(b[4:])
}

// Append appends the 8 bytes of h to b.
func (h CommonHeader) Append(b []byte) []byte {
	b = append(b, byte(h.Type), byte(h.Flags), h.HLEN, h.PDO)
	return binary.LittleEndian.AppendUint32(b, h.PLEN)
}
