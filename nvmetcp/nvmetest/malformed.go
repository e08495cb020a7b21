package nvmetest

import (
	"bytes"
	"encoding/hex"

	"github.com/nvstage/nvstage/pdu"
)

// MalformedPDU is a PDU from a controller that no host may accept.
type MalformedPDU struct {
	Name  string
	PDU   []byte
	FES   pdu.FES // what the host's H2CTermReq should say
	FEI   uint32
	First bool // in place of ICResp; the others come after it
	HDGST bool // for a connection with header digests; the others are for one without
}

// Malformed returns malformed PDUs to send with [Action.Raw], [Conn.SendRaw] or
// [ConnFaults.RawICResp]. Where a CID is in them it is 1.
func Malformed() []MalformedPDU {
	h := func(s string, size int) []byte {
		b, err := hex.DecodeString(s)
		if err != nil {
			panic(err)
		}
		return append(b, bytes.Repeat([]byte{0}, size-len(b))...)
	}
	return []MalformedPDU{
		{Name: "unknown type", PDU: h("0800180018", 24), FES: 1, FEI: 0},
		{Name: "CapsuleResp with HLEN 16", PDU: h("050010001800000000000000000000000100000001000000", 24), FES: 1, FEI: 2},
		{Name: "CapsuleResp with PLEN 16", PDU: h("050018001000000000000000000000000100000001000000", 24), FES: 1, FEI: 4},
		{Name: "SUCCESS without LAST_PDU", PDU: h("0708181820000000010000000000000008000000000000000001020304050607", 32), FES: 1, FEI: 1},
		{Name: "PDO inside the header", PDU: h("0704181420000000010000000000000008000000000000000001020304050607", 32), FES: 1, FEI: 3},
		{Name: "R2T with R2TL 0", PDU: h("0900180018000000010001", 24), FES: 1, FEI: 16},
		{Name: "second ICResp", PDU: h("010080008000000000000000000002", 128), FES: 2},
		{Name: "wrong header digest", PDU: h("050118001c00000000000000000000000100000001000000deadbeef", 28), FES: 3, FEI: 0xefbeadde, HDGST: true},
		{Name: "ICResp with PFV 1", PDU: h("010080008000000001000000000002", 128), FES: 1, FEI: 8, First: true},
		{Name: "ICResp with CPDA 32", PDU: h("010080008000000000002000000002", 128), FES: 1, FEI: 10, First: true},
		{Name: "ICResp with MAXH2CDATA 4095", PDU: h("010080008000000000000000ff0f", 128), FES: 1, FEI: 12, First: true},
		{Name: "CapsuleResp in place of ICResp", PDU: h("050018001800000000000000000000000100000001000000", 24), FES: 2, First: true},
		{Name: "a PDU for controllers", PDU: h("0600181820000000010000000000000008", 32), FES: 1, FEI: 0},
		{Name: "CapsuleResp with DDGSTF and HDGSTF", PDU: h("050318001800000000000000000000000100000001000000", 24), FES: 1, FEI: 1},
		{Name: "C2HData with DATAL 0", PDU: h("070418181900000001000000000000000000000000000000", 25), FES: 1, FEI: 16},
		{Name: "C2HData with PLEN 4 GiB", PDU: h("07041818ffffffff01000000000000000800000000000000", 24), FES: 1, FEI: 4},
	}
}
