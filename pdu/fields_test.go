package pdu

import (
	"bytes"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestDecodeErrors has what decoders judge beyond the common header.
func TestDecodeErrors(t *testing.T) {
	all := samples(t, Layout{})
	for _, v := range []struct {
		name string
		wire []byte
		fei  uint32
	}{
		{"ICReq PFV", with(all[TypeICReq], 8, 1), 8},
		{"ICReq PFV, high byte", with(all[TypeICReq], 9, 1), 8},
		{"ICReq HPDA 32", with(all[TypeICReq], 10, 32), 10},
		{"ICReq HPDA 255", with(all[TypeICReq], 10, 255), 10},
		{"ICResp PFV", with(all[TypeICResp], 8, 1), 8},
		{"ICResp CPDA 32", with(all[TypeICResp], 10, 32), 10},
		{"ICResp MAXH2CDATA 0", with(all[TypeICResp], 12, 0, 0, 0, 0), 12},
		{"ICResp MAXH2CDATA 4092", with(all[TypeICResp], 12, 0xfc, 0x0f, 0, 0), 12},
		{"ICResp MAXH2CDATA 4098", with(all[TypeICResp], 12, 0x02, 0x10, 0, 0), 12},
		{"ICResp MAXH2CDATA 2^32-1", with(all[TypeICResp], 12, 0xff, 0xff, 0xff, 0xff), 12},
		{"C2HData SUCCESS without LAST", with(all[TypeC2HData], 1, byte(FlagSuccess)), 1},
		{"C2HData DATAL 0", with(all[TypeC2HData], 16, 0, 0, 0, 0), 16},
		{"C2HData DATAL short", with(all[TypeC2HData], 16, 0xff, 1, 0, 0), 4},
		{"C2HData DATAL long", with(all[TypeC2HData], 16, 1, 2, 0, 0), 4},
		{"C2HData DATAL 2^32-1", with(all[TypeC2HData], 16, 0xff, 0xff, 0xff, 0xff), 4},
		{"C2HData DATAL that wraps to PLEN", with(all[TypeC2HData], 4, 0x17, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff), 4},
		{"H2CData DATAL 0", with(all[TypeH2CData], 16, 0, 0, 0, 0), 16},
		{"H2CData DATAL short", with(all[TypeH2CData], 16, 0xff, 1, 0, 0), 4},
		{"H2CData DATAL long", with(all[TypeH2CData], 16, 1, 2, 0, 0), 4},
		{"R2T R2TL 0", with(all[TypeR2T], 16, 0, 0, 0, 0), 16},
	} {
		t.Run(v.name, func(t *testing.T) {
			_, err := decode(v.wire)
			e := requireError(t, err, FESInvalidHeaderField, v.fei)
			require.Equal(t, v.wire[:e.Type.HeaderLen()], e.Header, "the whole header goes into the TermReq")
		})
	}
}

// TestDecodeExtremes: every value that the fields can hold and that is no error.
func TestDecodeExtremes(t *testing.T) {
	const m16, m32 = 1<<16 - 1, 1<<32 - 1
	l := Layout{Digests: Digests{Header: true}}
	for _, v := range []any{
		&ICReq{HPDA: MaxAlign, MAXR2T: m32},
		&ICResp{CPDA: MaxAlign, MAXH2CDATA: m32 - 3},
		&ICResp{MAXH2CDATA: MinMaxH2CData},
		&R2T{CCCID: m16, TTAG: m16, R2TO: m32, R2TL: m32},
		&R2T{R2TL: 1},
		&TermReq{Type: TypeH2CTermReq, FES: m16, FEI: m32, Header: []byte{}},
		&TermReq{Type: TypeC2HTermReq, Header: pat(128, 0)},
	} {
		got, err := decode(encode(t, nil, v, l, nil))
		require.NoError(t, err)
		require.Equal(t, v, got)
	}
	d := Data{Type: TypeC2HData, Flags: FlagHDGST, CCCID: m16, TTAG: m16, DATAO: m32, DATAL: m32 - 28}
	h := d.AppendHeader(nil, l)
	require.Equal(t, []byte{0xff, 0xff, 0xff, 0xff}, h[4:8], "PLEN")
	var got Data
	require.NoError(t, got.Decode(h))
	require.Equal(t, d, got)
}

// TestDecodeShort gives every decoder every piece of its PDU, and other types.
func TestDecodeShort(t *testing.T) {
	all := samples(t, Layout{})
	for typ, b := range all {
		need := typ.HeaderLen()
		if typ.IsTermReq() {
			need = len(b) // a TermReq is decoded whole
		}
		for n := range need {
			err := decodeAs(typ, b[:n])
			requireError(t, err, FESInvalidHeaderField, 4)
		}
		require.NoError(t, decodeAs(typ, b[:need]))
		for other, b := range all {
			h2c, c2h := map[Type]bool{typ: true, other: true}, typ.IsTermReq() && other.IsTermReq()
			if other == typ || c2h || h2c[TypeH2CData] && h2c[TypeC2HData] {
				continue
			}
			requireError(t, decodeAs(typ, b), FESInvalidHeaderField, 0)
		}
	}
}

// decodeAs decodes b with the decoder of typ, whatever b is.
func decodeAs(typ Type, b []byte) error {
	switch typ {
	case TypeICReq:
		return new(ICReq).Decode(b)
	case TypeICResp:
		return new(ICResp).Decode(b)
	case TypeCapsuleCmd:
		return new(CapsuleCmd).Decode(b)
	case TypeCapsuleResp:
		return new(CapsuleResp).Decode(b)
	case TypeH2CData, TypeC2HData:
		return new(Data).Decode(b)
	case TypeR2T:
		return new(R2T).Decode(b)
	}
	return new(TermReq).Decode(b)
}

// TestAppendHeader: header and data sent apart are what Append makes of them.
func TestAppendHeader(t *testing.T) {
	data := pat(512, 3)
	for _, dgst := range allDigests {
		l := Layout{Digests: dgst, Align: 4}
		tail := bytes.Clone(data)
		if dgst.Data {
			tail = AppendDigest(tail, Digest(data))
		}
		c := command(fields{2: uint16(1)})
		require.Equal(t, c.Append(nil, l, data), append(c.AppendHeader(nil, l, len(data)), tail...))
		require.Equal(t, c.Append(nil, l, nil), c.AppendHeader(nil, l, 0))
		d := Data{Type: TypeH2CData, CCCID: 1, TTAG: 2, DATAL: uint32(len(data))}
		require.Equal(t, d.Append([]byte("before"), l, data), append(d.AppendHeader([]byte("before"), l), tail...))
	}
}

// TestFlags: the digest flags follow from the layout alone.
func TestFlags(t *testing.T) {
	d := Data{Type: TypeC2HData, Flags: 0xff}
	require.EqualValues(t, FlagLast|FlagSuccess, d.Append(nil, Layout{}, pat(8, 0))[1])
	require.EqualValues(t, 0xf, d.Append(nil, Layout{Digests: both}, pat(8, 0))[1])
	require.NoError(t, d.Decode(d.Append(nil, Layout{}, pat(8, 0))))
	h := Layout{Digests: both}.CommonHeader(TypeC2HTermReq, 0, 24)
	require.Equal(t, CommonHeader{Type: TypeC2HTermReq, HLEN: 24, PDO: 24, PLEN: 48}, h)

	h2c := Data{Type: TypeH2CData, Flags: FlagSuccess} // means nothing from a host
	require.NoError(t, h2c.Decode(h2c.Append(nil, Layout{}, pat(8, 0))))
}

// TestTermReq: FEI is at byte 10, 24 bytes are enough, the header is cut at 128 bytes, digests are
// never there, and a TermReq is never answered.
func TestTermReq(t *testing.T) {
	long := NewError(FESUnsupported, 0x0a0b0c0d, pat(200, int(TypeCapsuleCmd)), "too long")
	require.Len(t, long.Header, MaxHeaderLen)
	req := long.TermReq(Host)
	b := req.Append(nil)
	require.Len(t, b, MaxTermReqLen)
	require.Equal(t, unhex(t, `02001800980000000600 0d0c0b0a [10x00] [PAT(128,4)]`), b)

	for _, role := range []Role{Host, Controller} {
		e := &Error{FES: FESSequenceError}
		req := e.TermReq(1 - role)
		b := req.Append(nil)
		require.Len(t, b, 24)
		f := Framing{Role: role, Digests: both, Align: 31, Ready: true}
		// No flag brings digests back, and PDO means nothing here.
		for _, b := range [][]byte{b, with(b, 1, 0xff), with(b, 3, 255)} {
			raw, n, err := f.Split(b)
			require.NoError(t, err)
			require.Equal(t, 24, n)
			require.Empty(t, raw.Data)
			var got TermReq
			require.NoError(t, got.Decode(b))
			require.Equal(t, role.Receives(TypeC2HTermReq), got.Type == TypeC2HTermReq)
		}
		require.Len(t, (&TermReq{Header: pat(200, 0)}).Append(nil), MaxTermReqLen)
		full := (&TermReq{Type: req.Type, Header: pat(128, 1)}).Append(nil)
		raw, n, err := f.Split(with(full, 3, 255)) // PDO behind the end
		require.NoError(t, err)
		require.Equal(t, MaxTermReqLen, n)
		require.Equal(t, pat(128, 1), raw.Data)

		for _, bad := range [][]byte{with(b, 2, 16), with(b, 4, 23), with(b, 4, 153)} {
			_, _, err := f.Split(bad)
			var e *Error
			require.ErrorAs(t, err, &e)
			require.False(t, e.Reply())
			require.Error(t, new(TermReq).Decode(append(bad, make([]byte, 200)...)))
		}
	}
	require.True(t, NewError(FESSequenceError, 0, nil, "nothing came").Reply())
}

func TestStrings(t *testing.T) {
	e := NewError(FESInvalidHeaderField, 16, pat(24, int(TypeR2T)), "R2TL is 0")
	require.EqualError(t, e, "protocol error in R2T: R2TL is 0 (Invalid PDU Header Field, FEI 0x10)")
	req := e.TermReq(Host)
	require.Equal(t, "H2CTermReq: Invalid PDU Header Field at offset 16 of a R2T", req.String())
	req = TermReq{Type: TypeC2HTermReq, FES: FESHeaderDigest, FEI: 0xbeef}
	require.Equal(t, "C2HTermReq: Header Digest Error, digest 0x0000beef", req.String())
	require.Equal(t, "PDU type 0x08", Type(8).String())
	require.Equal(t, "reserved fatal error status 0x0007", FES(7).String())
	for fes := FESInvalidHeaderField; fes <= FESUnsupported; fes++ {
		require.NotContains(t, fes.String(), "reserved")
	}
	f := Framing{Role: Host, Digests: Digests{Header: true}, Ready: true}
	_, _, err := f.Split(with(samples(t, Layout{Digests: f.Digests})[TypeR2T], 24, 1, 0, 0, 0))
	require.ErrorContains(t, err, "header digest 0x00000001, computed 0x")
	require.False(t, errors.Is(err, errors.ErrUnsupported))
}
