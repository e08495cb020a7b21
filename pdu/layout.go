package pdu

// Layout is how one end sends: the negotiated digests and the alignment that the other end asked
// for (CPDA towards a controller, HPDA towards a host).
type Layout struct {
	Digests
	Align uint8 // DATA starts at a multiple of (Align+1)*4 bytes
}

// DataOffset returns PDO for a PDU of type t that carries data: the header and HDGST rounded up to
// the alignment, which need not be a power of two.
func (l Layout) DataOffset(t Type) int {
	n := t.HeaderLen()
	if l.Header && t.digested() {
		n += DigestLen
	}
	unit := (int(l.Align) + 1) * 4
	return (n + unit - 1) / unit * unit
}

// CommonHeader returns the CH of a PDU of type t with n bytes of data: HLEN, PDO, PLEN and the
// digest flags follow from the layout; flags gives the others.
func (l Layout) CommonHeader(t Type, flags Flags, n int) CommonHeader {
	h := CommonHeader{Type: t, Flags: flags, HLEN: uint8(t.HeaderLen())}
	size := int(h.HLEN)
	if l.Header && t.digested() {
		h.Flags |= FlagHDGST
		size += DigestLen
	}
	if n > 0 {
		size = l.DataOffset(t)
		h.PDO = uint8(size)
		size += n
		if l.Data && t.digested() {
			h.Flags |= FlagDDGST
			size += DigestLen
		}
	}
	h.PLEN = uint32(size)
	return h
}

// finish appends HDGST and PAD to the header that begins at start, so that DATA can follow.
func (h CommonHeader) finish(b []byte, start int) []byte {
	if h.Flags.Has(FlagHDGST) {
		b = AppendDigest(b, Digest(b[start:]))
	}
	if h.PDO != 0 {
		for len(b) < start+int(h.PDO) {
			b = append(b, 0)
		}
	}
	return b
}

// appendData appends DATA and, where h says so, DDGST.
func (h CommonHeader) appendData(b, data []byte) []byte {
	b = append(b, data...)
	if h.Flags.Has(FlagDDGST) {
		b = AppendDigest(b, Digest(data))
	}
	return b
}

// zeros appends n zero bytes: the reserved fields.
func zeros(b []byte, n int) []byte {
	for ; n > 0; n-- {
		b = append(b, 0)
	}
	return b
}
