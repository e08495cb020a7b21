package nvmetest

import (
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// reserved looks at what no target reads: flags that are not for the type, reserved bytes and
// padding. The strict mode ends the connection over the flags.
func (c *Conn) reserved(h pdu.CommonHeader, hdr []byte) error {
	var legal pdu.Flags
	switch h.Type {
	case pdu.TypeCapsuleCmd:
		legal = pdu.FlagHDGST | pdu.FlagDDGST
	case pdu.TypeH2CData:
		legal = pdu.FlagHDGST | pdu.FlagDDGST | pdu.FlagLast
	}
	if h.Flags&^legal != 0 {
		c.note("%v with flags %#02x", h.Type, uint8(h.Flags))
		if c.t.profile.Mode == ModeStrict && h.Type != pdu.TypeH2CTermReq {
			return pdu.NewError(pdu.FESInvalidHeaderField, 1, hdr[:h.HLEN], "flags that are not for this type")
		}
	}
	bad := false
	switch h.Type {
	case pdu.TypeICReq:
		bad = h.PDO != 0 || hdr[11]&^3 != 0 || !zero(hdr[16:128])
	case pdu.TypeH2CTermReq:
		bad = h.PDO != 0 || !zero(hdr[14:24])
	case pdu.TypeH2CData:
		bad = !zero(hdr[20:24])
	case pdu.TypeCapsuleCmd:
		bad = !reservedSQE(hdr[pdu.CommonHeaderLen:])
		if h.PDO != 0 && c.in.DataLen(h) == 0 {
			c.note("CapsuleCmd without data, but PDO is %d", h.PDO)
		}
	}
	if bad {
		c.note("%v with reserved bytes that are not 0: % x", h.Type, hdr[:h.HLEN])
	}
	if pad := c.padding(h); pad > 0 && !zero(hdr[len(hdr)-pad:]) {
		c.note("%v with padding that is not 0", h.Type)
	}
	return nil
}

// padding is how many bytes of the header are PAD.
func (c *Conn) padding(h pdu.CommonHeader) int {
	n := int(h.HLEN)
	if h.Flags.Has(pdu.FlagHDGST) {
		n += pdu.DigestLen
	}
	return c.in.HeaderSize(h) - n
}

// reservedSQE reports whether the fields that a command does not have are 0, for the commands of
// which that is known.
func reservedSQE(b []byte) bool {
	if !zero(b[36:39]) {
		return false
	}
	op := nvme.Opcode(b[0])
	if op == nvme.OpFabrics {
		if !zero(b[5:24]) {
			return false
		}
		switch fabrics.FCTYPE(b[4]) {
		case fabrics.TypeConnect:
			return b[47] == 0 && zero(b[52:64])
		case fabrics.TypePropertyGet:
			return zero(b[41:44]) && zero(b[48:64])
		case fabrics.TypePropertySet:
			return zero(b[41:44]) && zero(b[56:64]) && (b[40] != 0 || zero(b[52:56]))
		}
		return true
	}
	return zero(b[8:24])
}
