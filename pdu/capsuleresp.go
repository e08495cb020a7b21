package pdu

// CapsuleResp carries one completion queue entry.
type CapsuleResp struct {
	CQE [16]byte
}

// Append appends the PDU, 24 bytes and HDGST, to b.
func (p *CapsuleResp) Append(b []byte, l Layout) []byte {
	start := len(b)
	h := l.CommonHeader(TypeCapsuleResp, 0, 0)
	b = h.Append(b)
	b = append(b, p.CQE[:]...)
	return h.finish(b, start)
}

// Decode reads the header from b, 24 bytes or more.
func (p *CapsuleResp) Decode(b []byte) error {
	if err := needHeader(b, TypeCapsuleResp); err != nil {
		return err
	}
	copy(p.CQE[:], b[CommonHeaderLen:dataLen])
	return nil
}
