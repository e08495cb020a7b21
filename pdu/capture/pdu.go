package capture

import (
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// A PDU is one PDU of a capture.
type PDU struct {
	Time  time.Time // when the packet that completed it was captured
	Frame int       // number of that packet in the capture, from 1, as Wireshark counts
	Conn  Conn
	To    pdu.Role // who receives it: pdu.Controller from host to controller
	// Raw has the parts of the PDU, in memory of its own. BadData says that DDGST is wrong.
	pdu.Raw
	BadHeader bool      // HDGST is wrong: a receiver ends the connection
	SQE       *nvme.SQE // of a CapsuleCmd
	CQE       *nvme.CQE // of a CapsuleResp
}

// newPDU makes a PDU of b, its bytes as far as they are there, and its common header, which f checked.
func newPDU(f *pdu.Framing, h pdu.CommonHeader, b []byte) PDU {
	p := PDU{To: f.Role, Raw: pdu.Raw{CommonHeader: h}}
	n := int(h.HLEN)
	if len(b) < n {
		return p
	}
	p.Header = b[:n:n]
	if !h.Flags.Has(pdu.FlagHDGST) || len(b) >= n+pdu.DigestLen {
		p.BadHeader = f.VerifyHeader(h, b) != nil
	}
	body := p.Header[pdu.CommonHeaderLen:]
	switch h.Type {
	case pdu.TypeCapsuleCmd:
		p.SQE = new(nvme.SQE)
		_ = p.SQE.Decode(body) // long enough, as HLEN was checked
	case pdu.TypeCapsuleResp:
		p.CQE = new(nvme.CQE)
		_ = p.CQE.Decode(body)
	}
	if k := f.DataLen(h); k > 0 && len(b) == int(h.PLEN) {
		off := f.HeaderSize(h)
		p.Data = b[off : off+k : off+k]
		if f.Data && !h.Type.IsTermReq() {
			p.DataDigest = pdu.ReadDigest(b[off+k:])
			p.BadData = p.DataDigest != pdu.Digest(p.Data)
		}
	}
	return p
}
