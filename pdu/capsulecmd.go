package pdu

// CapsuleCmd carries one submission queue entry and, for small writes, its data.
type CapsuleCmd struct {
	SQE [64]byte
}

// AppendHeader appends all that stands before DATA (header, HDGST, PAD) of a capsule with n bytes of
// in-capsule data. The caller sends the data after it, then DDGST where l has data digests and n > 0.
func (p *CapsuleCmd) AppendHeader(b []byte, l Layout, n int) []byte {
	start := len(b)
	h := l.CommonHeader(TypeCapsuleCmd, 0, n)
	b = h.Append(b)
	b = append(b, p.SQE[:]...)
	return h.finish(b, start)
}

// Append appends the whole PDU with its in-capsule data (nil for none) and digests.
func (p *CapsuleCmd) Append(b []byte, l Layout, data []byte) []byte {
	b = p.AppendHeader(b, l, len(data))
	if len(data) == 0 {
		return b
	}
	return l.CommonHeader(TypeCapsuleCmd, 0, len(data)).appendData(b, data)
}

// Decode reads the header from b, 72 bytes or more.
func (p *CapsuleCmd) Decode(b []byte) error {
	if err := needHeader(b, TypeCapsuleCmd); err != nil {
		return err
	}
	copy(p.SQE[:], b[CommonHeaderLen:capsuleLen])
	return nil
}
