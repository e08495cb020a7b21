package pdu

import (
	"bytes"
	"testing"
)

// fuzzDecoder fuzzes one decoder: whatever it takes without an error is encoded again, and must
// give the same bytes where they are significant (mask has a 1 for each significant bit; bytes
// behind mask are significant too).
func fuzzDecoder(f *testing.F, typ Type, mask []byte, again func(b []byte) ([]byte, error)) {
	f.Add([]byte{})
	f.Add([]byte{byte(typ)})
	for _, v := range vectors(f) {
		if b := unhex(f, v.wire); Type(b[0]) == typ {
			f.Add(b)
		}
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		before := bytes.Clone(b)
		out, err := again(b)
		if !bytes.Equal(before, b) {
			t.Fatal("the input was changed")
		}
		if err != nil {
			if err.Error() == "" || len(err.(*Error).Header) > MaxHeaderLen {
				t.Fatalf("%#v", err)
			}
			return
		}
		for i := range out {
			m := byte(0xff)
			if i < len(mask) {
				m = mask[i]
			}
			if out[i]&m != b[i]&m {
				t.Fatalf("byte %d\n in %x\nout %x", i, b, out)
			}
		}
	})
}

// significant returns a mask of n zero bytes with 1 bits from..to-1, pairwise.
func significant(n int, fromTo ...int) []byte {
	m := make([]byte, n)
	for i := 0; i < len(fromTo); i += 2 {
		for j := fromTo[i]; j < fromTo[i+1]; j++ {
			m[j] = 0xff
		}
	}
	return m
}

func FuzzICReq(f *testing.F) {
	mask := significant(128, 0, 1, 8, 11, 12, 16)
	mask[11] = 3
	fuzzDecoder(f, TypeICReq, mask, func(b []byte) ([]byte, error) {
		var p ICReq
		err := p.Decode(b)
		return p.Append(nil), err
	})
}

func FuzzICResp(f *testing.F) {
	mask := significant(128, 0, 1, 8, 11, 12, 16)
	mask[11] = 3
	fuzzDecoder(f, TypeICResp, mask, func(b []byte) ([]byte, error) {
		var p ICResp
		err := p.Decode(b)
		return p.Append(nil), err
	})
}

func FuzzCapsuleCmd(f *testing.F) {
	fuzzDecoder(f, TypeCapsuleCmd, significant(8, 0, 1), func(b []byte) ([]byte, error) {
		var p CapsuleCmd
		err := p.Decode(b)
		return p.AppendHeader(nil, Layout{}, 0), err
	})
}

func FuzzCapsuleResp(f *testing.F) {
	fuzzDecoder(f, TypeCapsuleResp, significant(8, 0, 1), func(b []byte) ([]byte, error) {
		var p CapsuleResp
		err := p.Decode(b)
		return p.Append(nil, Layout{}), err
	})
}

func FuzzR2T(f *testing.F) {
	fuzzDecoder(f, TypeR2T, significant(24, 0, 1, 8, 20), func(b []byte) ([]byte, error) {
		var p R2T
		err := p.Decode(b)
		if err == nil && p.R2TL == 0 {
			panic("R2TL 0")
		}
		return p.Append(nil, Layout{}), err
	})
}

func FuzzData(f *testing.F) {
	for _, v := range vectors(f) {
		if b := unhex(f, v.wire); Type(b[0]) == TypeH2CData {
			f.Add(b)
		}
	}
	// PLEN is one that DATAL accounts for, but PDO may be any.
	fuzzDecoder(f, TypeC2HData, significant(24, 0, 1, 8, 20), func(b []byte) ([]byte, error) {
		var p Data
		err := p.Decode(b)
		if err != nil {
			return nil, err
		}
		var h CommonHeader
		h.Decode(b)
		room := uint64(h.PDO) + uint64(p.DATAL)
		if p.Flags.Has(FlagDDGST) {
			room += DigestLen
		}
		if p.DATAL == 0 || room != uint64(h.PLEN) {
			panic("DATAL does not fill the PDU")
		}
		return p.AppendHeader(nil, Layout{})[:24], nil
	})
}

func FuzzTermReq(f *testing.F) {
	for _, v := range vectors(f) {
		if b := unhex(f, v.wire); Type(b[0]) == TypeH2CTermReq {
			f.Add(b)
		}
	}
	fuzzDecoder(f, TypeC2HTermReq, significant(24, 0, 1, 2, 3, 4, 14), func(b []byte) ([]byte, error) {
		var p TermReq
		if err := p.Decode(b); err != nil {
			return nil, err
		}
		_ = p.String()
		return p.Append(nil), nil
	})
}

// FuzzSplit takes a stream apart in both roles with all digest settings and some alignments.
func FuzzSplit(f *testing.F) {
	const roleBit, readyBit, headerBit, dataBit = 1, 2, 4, 8 // and Align in the upper four
	var h2c, c2h []byte
	for _, v := range vectors(f) {
		b := unhex(f, v.wire)
		set := byte(v.to) * roleBit
		fr := v.framing()
		if fr.Ready {
			set |= readyBit
		}
		if fr.Header {
			set |= headerBit
		}
		if fr.Data {
			set |= dataBit
		}
		f.Add(set|v.layout.Align<<4, b)
		if v.layout == (Layout{}) && fr.Ready {
			if v.to == Host {
				c2h = append(c2h, b...)
			} else {
				h2c = append(h2c, b...)
			}
		}
	}
	f.Add(byte(readyBit), c2h)
	f.Add(byte(readyBit|roleBit), h2c)
	f.Add(byte(readyBit), unhex(f, "020018ff98000000 [144x00]"))
	f.Fuzz(func(t *testing.T, set byte, b []byte) {
		fr := &Framing{
			Role:    Role(set & roleBit),
			Ready:   set&readyBit != 0,
			Digests: Digests{Header: set&headerBit != 0, Data: set&dataBit != 0},
			Align:   set >> 4,
		}
		l := Layout{Digests: fr.Digests, Align: fr.Align}
		for {
			raw, n, err := fr.Split(b)
			if err != nil {
				e := err.(*Error)
				if n != 0 || len(e.Header) < CommonHeaderLen || len(e.Header) > MaxHeaderLen || e.FES == 0 {
					t.Fatalf("n %d, %#v", n, e)
				}
				req := e.TermReq(fr.Role)
				if len(req.Append(nil)) > MaxTermReqLen {
					t.Fatal("TermReq too long")
				}
				return
			}
			if n == 0 {
				return
			}
			checkRaw(t, fr, l, raw, b, n)
			if n < len(b) {
				if _, m, _ := fr.Split(b[:n]); m != n {
					t.Fatalf("%d bytes alone, %d with more behind", m, n)
				}
			}
			if _, m, err := fr.Split(b[:n-1]); m != 0 || err != nil {
				t.Fatalf("a part gave %d, %v", m, err)
			}
			b = b[n:]
		}
	})
}

// checkRaw checks that a PDU that Split gave lies within the n bytes that it took off b, and that
// it can be built again where it is canonical.
func checkRaw(t *testing.T, fr *Framing, l Layout, raw Raw, b []byte, n int) {
	if n > len(b) || n != int(raw.PLEN) || len(raw.Header) != raw.Type.HeaderLen() {
		t.Fatalf("n %d of %d bytes: %+v", n, len(b), raw.CommonHeader)
	}
	if fr.HeaderSize(raw.CommonHeader)+len(raw.Data) > n || len(raw.Data) != fr.DataLen(raw.CommonHeader) {
		t.Fatalf("%d bytes of data in %+v", len(raw.Data), raw.CommonHeader)
	}
	if len(raw.Data) > 0 {
		off := fr.HeaderSize(raw.CommonHeader)
		if &raw.Data[0] != &b[off] || off+len(raw.Data) > n {
			t.Fatalf("data is not at %d of %+v", off, raw.CommonHeader)
		}
	}
	if raw.BadData {
		return
	}
	var out []byte
	switch raw.Type {
	case TypeCapsuleCmd:
		var p CapsuleCmd
		if err := p.Decode(raw.Header); err != nil {
			t.Fatal(err)
		}
		out = p.Append(nil, l, raw.Data)
	case TypeCapsuleResp:
		var p CapsuleResp
		if err := p.Decode(raw.Header); err != nil {
			t.Fatal(err)
		}
		out = p.Append(nil, l)
	case TypeH2CData, TypeC2HData:
		var p Data
		if err := p.Decode(raw.Header); err != nil {
			return
		}
		if int(p.DATAL) != len(raw.Data) {
			t.Fatalf("DATAL %d, but %d bytes of data", p.DATAL, len(raw.Data))
		}
		out = p.Append(nil, l, raw.Data)
	default:
		return
	}
	// Reserved bits, reserved fields, padding, and PDO where there is a choice, need not come back.
	if out[0] != b[0] || out[2] != b[2] {
		t.Fatalf("in %x\nout %x", b[:n], out)
	}
	var h CommonHeader
	h.Decode(out)
	if h.PDO == raw.PDO && h.PLEN != raw.PLEN {
		t.Fatalf("PLEN %d became %d", raw.PLEN, h.PLEN)
	}
	again, m, err := fr.Split(out)
	if err != nil || m != len(out) || again.BadData || !bytes.Equal(again.Data, raw.Data) {
		t.Fatalf("what was built again does not split: %v", err)
	}
}
