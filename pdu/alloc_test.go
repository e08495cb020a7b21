package pdu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestNoAllocations: encoding into a slice with room, and decoding that succeeds, allocate nothing.
func TestNoAllocations(t *testing.T) {
	buf := make([]byte, 0, 1<<16)
	data := pat(512, 3)
	none := func(name string, f func()) {
		t.Helper()
		require.Zero(t, testing.AllocsPerRun(100, f), name)
	}
	for _, l := range []Layout{{}, {Digests: both, Align: 7}} {
		var (
			req  = ICReq{DGST: l.Digests}
			resp = ICResp{DGST: l.Digests, MAXH2CDATA: 4096}
			cmd  = *command(fields{2: uint16(1)})
			cqe  = *response(fields{12: uint16(1)})
			d    = Data{Type: TypeC2HData, DATAL: 512}
			r2t  = R2T{R2TL: 512}
			term = TermReq{Type: TypeC2HTermReq, Header: data[:24]}
			e    = Error{FES: FESSequenceError}
		)
		none("ICReq.Append", func() { buf = req.Append(buf[:0]) })
		none("ICResp.Append", func() { buf = resp.Append(buf[:0]) })
		none("CapsuleCmd.Append", func() { buf = cmd.Append(buf[:0], l, data) })
		none("CapsuleCmd.AppendHeader", func() { buf = cmd.AppendHeader(buf[:0], l, len(data)) })
		none("CapsuleResp.Append", func() { buf = cqe.Append(buf[:0], l) })
		none("Data.Append", func() { buf = d.Append(buf[:0], l, data) })
		none("Data.AppendHeader", func() { buf = d.AppendHeader(buf[:0], l) })
		none("R2T.Append", func() { buf = r2t.Append(buf[:0], l) })
		none("TermReq.Append", func() { buf = term.Append(buf[:0]) })
		none("Error.TermReq", func() { term = e.TermReq(Host) })

		for typ, b := range samples(t, l) {
			f := receiver(typ, l)
			var h CommonHeader
			none(fmt.Sprintf("Check of %s", typ), func() {
				h.Decode(b)
				_ = f.HeaderSize(h) + f.DataLen(h)
				if f.Check(h) != nil || f.VerifyHeader(h, b) != nil {
					panic(typ)
				}
			})
			none(fmt.Sprintf("Split of %s", typ), func() {
				if _, _, err := f.Split(b); err != nil {
					panic(err)
				}
			})
			none(fmt.Sprintf("Split of a part of %s", typ), func() {
				if _, _, err := f.Split(b[:len(b)-1]); err != nil {
					panic(err)
				}
			})
			none(fmt.Sprintf("%s.Decode", typ), func() {
				var err error
				switch typ {
				case TypeICReq:
					err = req.Decode(b)
				case TypeICResp:
					err = resp.Decode(b)
				case TypeCapsuleCmd:
					err = cmd.Decode(b)
				case TypeCapsuleResp:
					err = cqe.Decode(b)
				case TypeH2CData, TypeC2HData:
					err = d.Decode(b)
				case TypeR2T:
					err = r2t.Decode(b)
				default:
					err = term.Decode(b)
				}
				if err != nil {
					panic(err)
				}
			})
		}
	}
	none("Digest", func() { buf = AppendDigest(buf[:0], UpdateDigest(Digest(data), data)) })
}
