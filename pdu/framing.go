package pdu

import "fmt"

// Framing is how one end receives: what it must know to bound a PDU before it reads it.
// The zero value is a host before ICResp.
type Framing struct {
	Role Role
	Digests
	Align   uint8  // HPDA of a host, CPDA of a controller: where DATA may start
	Ready   bool   // ICReq and ICResp were exchanged
	MaxData uint32 // largest DATA of one PDU in bytes; 0 = no limit here (a host bounds it by the command)
}

// HeaderSize returns how many bytes a PDU has before DATA: all that must be in memory before its
// fields are looked at. It is HLEN, HDGST if there is one, and PAD if there is data.
func (f *Framing) HeaderSize(h CommonHeader) int {
	n := int(h.HLEN)
	if !h.Type.digested() { // a TermReq's DATA follows its header, whatever PDO says
		return n
	}
	if f.Header {
		n += DigestLen
	}
	if f.DataLen(h) > 0 {
		n = max(n, int(h.PDO))
	}
	return n
}

// DataLen returns the length of DATA in bytes as PLEN gives it. Call it after Check.
func (f *Framing) DataLen(h CommonHeader) int {
	switch h.Type {
	case TypeH2CTermReq, TypeC2HTermReq:
		return int(h.PLEN) - int(h.HLEN)
	case TypeCapsuleCmd, TypeH2CData, TypeC2HData:
		if h.PDO == 0 {
			return 0
		}
		n := int(int64(h.PLEN) - int64(h.PDO))
		if f.Data {
			n -= DigestLen
		}
		return max(n, 0)
	}
	return 0
}

// Check judges a common header before another byte of the PDU is read: type against role and
// state, HLEN, digest flags, PDO and PLEN. The error is an [*Error]; nil means that the lengths can be relied on.
func (f *Framing) Check(h CommonHeader) error {
	if !f.Role.Receives(h.Type) {
		return headerError(h, offType, "unexpected type")
	}
	if int(h.HLEN) != h.Type.HeaderLen() {
		return headerError(h, offHLEN, fmt.Sprintf("HLEN %d, want %d", h.HLEN, h.Type.HeaderLen()))
	}
	if h.Type.IsTermReq() {
		if h.PLEN < dataLen || h.PLEN > MaxTermReqLen {
			return headerError(h, offPLEN, fmt.Sprintf("PLEN %d, want %d to %d", h.PLEN, dataLen, MaxTermReqLen))
		}
		return nil
	}
	ic := h.Type == TypeICReq || h.Type == TypeICResp
	if ic == f.Ready {
		return NewError(FESSequenceError, 0, h.Append(nil), "not allowed in this state of the connection")
	}
	if ic {
		if h.PLEN != icLen {
			return headerError(h, offPLEN, fmt.Sprintf("PLEN %d, want %d", h.PLEN, icLen))
		}
		return nil
	}
	if h.Flags.Has(FlagHDGST) != f.Header {
		return headerError(h, offFlags, "HDGSTF differs from what was negotiated")
	}
	head := uint32(h.HLEN)
	if f.Header {
		head += DigestLen
	}
	switch h.Type {
	case TypeCapsuleResp, TypeR2T:
		if h.PLEN != head {
			return headerError(h, offPLEN, fmt.Sprintf("PLEN %d, want %d", h.PLEN, head))
		}
		return nil
	case TypeCapsuleCmd:
		if h.PLEN == head {
			if h.Flags.Has(FlagDDGST) {
				return headerError(h, offFlags, "DDGSTF without data")
			}
			if h.PDO != 0 && uint32(h.PDO) < head {
				return headerError(h, offPDO, fmt.Sprintf("PDO %d inside the header", h.PDO))
			}
			return nil
		}
	}
	if h.PLEN < head {
		return headerError(h, offPLEN, fmt.Sprintf("PLEN %d is less than the header's %d", h.PLEN, head))
	}
	return f.checkData(h, head)
}

// checkData is the part of Check for PDUs that have DATA.
func (f *Framing) checkData(h CommonHeader, head uint32) error {
	unit := (uint32(f.Align) + 1) * 4
	most := max(128, (head+unit-1)/unit*unit)
	if pdo := uint32(h.PDO); pdo < head || pdo > most || pdo%unit != 0 {
		return headerError(h, offPDO, fmt.Sprintf("PDO %d, want a multiple of %d from %d to %d", h.PDO, unit, head, most))
	}
	if h.Flags.Has(FlagDDGST) != f.Data {
		return headerError(h, offFlags, "DDGSTF differs from what was negotiated")
	}
	end := uint64(h.PDO) + 1
	if f.Data {
		end += DigestLen
	}
	if uint64(h.PLEN) < end {
		return headerError(h, offPLEN, fmt.Sprintf("PLEN %d leaves no room for data at PDO %d", h.PLEN, h.PDO))
	}
	if n := f.DataLen(h); f.MaxData != 0 && uint64(n) > uint64(f.MaxData) {
		return NewError(FESLimitExceeded, 0, h.Append(nil), fmt.Sprintf("%d bytes of data, limit %d", n, f.MaxData))
	}
	return nil
}

// VerifyHeader compares HDGST. hdr is the PDU from its first byte, at least HLEN and HDGST long.
func (f *Framing) VerifyHeader(h CommonHeader, hdr []byte) error {
	if !f.Header || !h.Type.digested() {
		return nil
	}
	n := int(h.HLEN)
	got, want := ReadDigest(hdr[n:]), Digest(hdr[:n])
	if got != want {
		return NewError(FESHeaderDigest, got, hdr[:n], fmt.Sprintf("header digest %#08x, computed %#08x", got, want))
	}
	return nil
}

// Raw is one whole PDU in memory, cut into its parts.
type Raw struct {
	CommonHeader
	Header []byte // HLEN bytes
	Data   []byte // DATA, nil without
	// DataDigest is the DDGST received and BadData whether it differs from the data's. A bad data
	// digest is no protocol error: it fails the command alone.
	DataDigest uint32
	BadData    bool
}

// Split cuts the first PDU off b. n is its length in bytes; n = 0 with a nil error means that b
// ends inside the PDU. The parts of p are slices of b. The error is an [*Error].
func (f *Framing) Split(b []byte) (p Raw, n int, err error) {
	if len(b) < CommonHeaderLen {
		return p, 0, nil
	}
	p.CommonHeader.Decode(b)
	if err := f.Check(p.CommonHeader); err != nil {
		return p, 0, err
	}
	if uint64(len(b)) < uint64(p.PLEN) {
		return p, 0, nil
	}
	p.Header = b[:p.HLEN]
	if err := f.VerifyHeader(p.CommonHeader, b); err != nil {
		return p, 0, err
	}
	if k := f.DataLen(p.CommonHeader); k > 0 {
		off := f.HeaderSize(p.CommonHeader)
		p.Data = b[off : off+k]
		if f.Data && p.Type.digested() {
			p.DataDigest = ReadDigest(b[off+k:])
			p.BadData = p.DataDigest != Digest(p.Data)
		}
	}
	return p, int(p.PLEN), nil
}
