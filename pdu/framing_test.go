package pdu

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// allDigests are the four settings that a connection can have.
var allDigests = []Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}}

// TestMalformedVectors are the malformed PDUs of the vectors, as a host gets them.
func TestMalformedVectors(t *testing.T) {
	for _, v := range []struct {
		name  string
		wire  string
		ready bool
		dgst  Digests
		fes   FES
		fei   uint32
	}{
		{"1 unknown type 0x08", `0800180018 [19x00]`, true, Digests{}, FESInvalidHeaderField, 0},
		{"2 CapsuleResp with HLEN 16", `050010001800000000000000000000000100000001000000`, true, Digests{}, FESInvalidHeaderField, 2},
		{"3 CapsuleResp with PLEN 16", `050018001000000000000000000000000100000001000000`, true, Digests{}, FESInvalidHeaderField, 4},
		{"4 SUCCESS without LAST", `0708181820000000010000000000000008000000000000000001020304050607`, true, Digests{}, FESInvalidHeaderField, 1},
		{"5 PDO inside the header", `0704181420000000010000000000000008000000000000000001020304050607`, true, Digests{}, FESInvalidHeaderField, 3},
		{"6 R2TL 0", `0900180018000000010001 [13x00]`, true, Digests{}, FESInvalidHeaderField, 16},
		{"7 second ICResp", `010080008000000000000000000002 [113x00]`, true, Digests{}, FESSequenceError, 0},
		{"8 wrong header digest", `050118001c00000000000000000000000100000001000000deadbeef`, true, Digests{Header: true}, FESHeaderDigest, 0xefbeadde},
		{"9 ICResp PFV 1", `010080008000000001000000000002 [113x00]`, false, Digests{}, FESInvalidHeaderField, 8},
	} {
		t.Run(v.name, func(t *testing.T) {
			f := &Framing{Role: Host, Digests: v.dgst, Ready: v.ready}
			wire := unhex(t, v.wire)
			raw, _, err := f.Split(wire)
			if err == nil {
				_, err = decode(raw.Header)
			}
			e := requireError(t, err, v.fes, v.fei)
			require.Equal(t, Type(wire[0]), e.Type)
			require.Equal(t, wire[:len(e.Header)], e.Header)
			require.GreaterOrEqual(t, len(e.Header), CommonHeaderLen)
			require.True(t, e.Reply())
		})
	}
}

// samples returns one good PDU of each type that travels towards a role, with data where it can be.
func samples(t testing.TB, l Layout) map[Type][]byte {
	e := &Error{FES: FESSequenceError, Header: make([]byte, 24)}
	h2c, c2h := e.TermReq(Host), e.TermReq(Controller)
	all := map[Type][]byte{}
	for typ, v := range map[Type]any{
		TypeICReq:       &ICReq{HPDA: l.Align, DGST: l.Digests},
		TypeICResp:      &ICResp{CPDA: l.Align, DGST: l.Digests, MAXH2CDATA: 8192},
		TypeH2CTermReq:  &h2c,
		TypeC2HTermReq:  &c2h,
		TypeCapsuleCmd:  command(fields{0: 1, 2: uint16(7)}),
		TypeCapsuleResp: response(fields{12: uint16(7)}),
		TypeH2CData:     &Data{Type: TypeH2CData, Flags: FlagLast, CCCID: 7, TTAG: 9, DATAO: 512},
		TypeC2HData:     &Data{Type: TypeC2HData, Flags: FlagLast | FlagSuccess, CCCID: 7, DATAO: 512},
		TypeR2T:         &R2T{CCCID: 7, TTAG: 9, R2TO: 512, R2TL: 1024},
	} {
		all[typ] = encode(t, nil, v, l, pat(512, 3))
	}
	return all
}

// receiver returns the framing of the end that gets PDUs of type typ, in the state for it.
func receiver(typ Type, l Layout) *Framing {
	f := &Framing{Role: Host, Digests: l.Digests, Align: l.Align, Ready: true}
	if Controller.Receives(typ) {
		f.Role = Controller
	}
	if typ == TypeICReq || typ == TypeICResp {
		f.Ready = false
	}
	return f
}

func with(b []byte, off int, v ...byte) []byte {
	b = append([]byte(nil), b...)
	copy(b[off:], v)
	return b
}

// TestF07F11Check breaks the common header of every type in every setting, one rule at a time.
func TestF07F11Check(t *testing.T) {
	for _, dgst := range allDigests {
		for typ, good := range samples(t, Layout{Digests: dgst}) {
			t.Run(fmt.Sprintf("%s/%s", dgst, typ), func(t *testing.T) {
				f := receiver(typ, Layout{Digests: dgst})
				_, n, err := f.Split(good)
				require.NoError(t, err)
				require.Equal(t, len(good), n)
				var h CommonHeader
				h.Decode(good)
				bad := func(fes FES, fei uint32, change func(*CommonHeader)) {
					t.Helper()
					h := h
					change(&h)
					e := requireError(t, f.Check(h), fes, fei)
					require.Equal(t, h.Append(nil), e.Header)
					require.Equal(t, !typ.IsTermReq(), e.Reply())
				}
				for _, hlen := range []uint8{0, 1, 8, 16, 23, 25, 24, 72, 127, 128, 129, 255} {
					if hlen != h.HLEN {
						bad(FESInvalidHeaderField, 2, func(h *CommonHeader) { h.HLEN = hlen })
					}
				}
				for _, plen := range []uint32{0, 1, 7, 8, uint32(h.HLEN) - 1} {
					bad(FESInvalidHeaderField, 4, func(h *CommonHeader) { h.PLEN = plen })
				}
				switch typ {
				case TypeICReq, TypeICResp, TypeCapsuleResp, TypeR2T:
					for _, plen := range []uint32{h.PLEN + 1, h.PLEN + 4, 1 << 31, 1<<32 - 1} {
						bad(FESInvalidHeaderField, 4, func(h *CommonHeader) { h.PLEN = plen })
					}
				case TypeH2CTermReq, TypeC2HTermReq:
					for _, plen := range []uint32{153, 1 << 31, 1<<32 - 1} {
						bad(FESInvalidHeaderField, 4, func(h *CommonHeader) { h.PLEN = plen })
					}
				default:
					head := uint32(h.HLEN)
					if dgst.Header {
						head += DigestLen
					}
					room := uint32(h.PDO)
					if dgst.Data {
						room += DigestLen
					}
					for _, plen := range []uint32{head - 1, room} {
						if typ == TypeCapsuleCmd && plen == head { // then it has no data, and that is all right
							bad(FESInvalidHeaderField, 4, func(h *CommonHeader) { h.PLEN = plen; h.PDO += 4; h.PLEN += 4 })
							continue
						}
						bad(FESInvalidHeaderField, 4, func(h *CommonHeader) { h.PLEN = plen })
					}
					for _, pdo := range []uint8{0, 1, 20, uint8(head) - 4, h.PDO + 1, h.PDO + 2, 127, 129, 132, 144, 255} {
						bad(FESInvalidHeaderField, 3, func(h *CommonHeader) { h.PDO = pdo })
					}
					bad(FESInvalidHeaderField, 1, func(h *CommonHeader) { h.Flags ^= FlagDDGST })
					f.MaxData = 512
					require.NoError(t, f.Check(h))
					bad(FESLimitExceeded, 0, func(h *CommonHeader) { h.PLEN++ })
					bad(FESLimitExceeded, 0, func(h *CommonHeader) { h.PLEN = 1<<32 - 1 })
					f.MaxData = 0
					long := h
					long.PLEN = 1<<32 - 1 // without a limit of its own the caller bounds it by the command
					require.NoError(t, f.Check(long))
					require.EqualValues(t, long.PLEN-room, f.DataLen(long))
					_, n, err := f.Split(with(good, 4, 0xff, 0xff, 0xff, 0xff))
					require.NoError(t, err)
					require.Zero(t, n)
				}
				if typ.digested() {
					bad(FESInvalidHeaderField, 1, func(h *CommonHeader) { h.Flags ^= FlagHDGST })
					f.Ready = false
					bad(FESSequenceError, 0, func(*CommonHeader) {})
				} else if !typ.IsTermReq() {
					f.Ready = true
					bad(FESSequenceError, 0, func(*CommonHeader) {})
				} else { // allowed at any time
					f.Ready = false
					require.NoError(t, f.Check(h))
				}
				f.Role = 1 - f.Role
				bad(FESInvalidHeaderField, 0, func(*CommonHeader) {})
			})
		}
	}
}

// TestCheckTypes goes through all 256 types in both roles.
func TestCheckTypes(t *testing.T) {
	h2c := map[Type]bool{TypeICReq: true, TypeH2CTermReq: true, TypeCapsuleCmd: true, TypeH2CData: true}
	c2h := map[Type]bool{TypeICResp: true, TypeC2HTermReq: true, TypeCapsuleResp: true, TypeC2HData: true, TypeR2T: true}
	for i := range 256 {
		typ := Type(i)
		require.Equal(t, h2c[typ], Controller.Receives(typ), typ)
		require.Equal(t, c2h[typ], Host.Receives(typ), typ)
		require.Equal(t, h2c[typ] || c2h[typ], typ.HeaderLen() > 0, typ)
		for _, role := range []Role{Host, Controller} {
			if !role.Receives(typ) {
				f := Framing{Role: role, Ready: true}
				requireError(t, f.Check(CommonHeader{Type: typ, HLEN: 24, PLEN: 24}), FESInvalidHeaderField, 0)
			}
		}
	}
}

// TestF11CapsuleWithoutData: HDGST alone may follow the SQE, and DDGSTF must be clear.
func TestF11CapsuleWithoutData(t *testing.T) {
	for _, dgst := range allDigests {
		f := Framing{Role: Controller, Digests: dgst, Align: 7, Ready: true}
		b := command(fields{2: uint16(1)}).Append(nil, Layout{Digests: dgst, Align: 7}, nil)
		raw, n, err := f.Split(b)
		require.NoError(t, err)
		require.Equal(t, len(b), n)
		require.Nil(t, raw.Data)
		require.Zero(t, raw.PDO)
		require.False(t, raw.Flags.Has(FlagDDGST))
		require.Equal(t, n, f.HeaderSize(raw.CommonHeader))

		h := raw.CommonHeader
		h.Flags |= FlagDDGST
		requireError(t, f.Check(h), FESInvalidHeaderField, 1)
		h = raw.CommonHeader
		h.PDO = h.HLEN - 1
		requireError(t, f.Check(h), FESInvalidHeaderField, 3)
		h.PDO = uint8(h.PLEN) // points behind the PDU: no data, no harm
		require.NoError(t, f.Check(h))
		require.Zero(t, f.DataLen(h))
		require.Equal(t, n, f.HeaderSize(h))
	}
}

// TestF11AlignmentTable is the table of PDO and PLEN of 512 bytes in the vectors.
func TestF11AlignmentTable(t *testing.T) {
	for _, v := range []struct {
		a                             uint8
		capPDO, capPLEN, pdo, plen    int
		plainCapsulePDO, plainDataPDO int
	}{
		{0, 76, 592, 28, 544, 72, 24},
		{1, 80, 596, 32, 548, 72, 24},
		{3, 80, 596, 32, 548, 80, 32},
		{7, 96, 612, 32, 548, 96, 32},
		{15, 128, 644, 64, 580, 128, 64},
		{31, 128, 644, 128, 644, 128, 128},
	} {
		l := Layout{Digests: both, Align: v.a}
		h := l.CommonHeader(TypeCapsuleCmd, 0, 512)
		require.Equal(t, []int{v.capPDO, v.capPLEN}, []int{int(h.PDO), int(h.PLEN)}, "CapsuleCmd, A %d", v.a)
		for _, typ := range []Type{TypeH2CData, TypeC2HData} {
			h = l.CommonHeader(typ, 0, 512)
			require.Equal(t, []int{v.pdo, v.plen}, []int{int(h.PDO), int(h.PLEN)}, "%s, A %d", typ, v.a)
		}
		l.Digests = Digests{}
		require.Equal(t, v.plainCapsulePDO, l.DataOffset(TypeCapsuleCmd), "A %d", v.a)
		require.Equal(t, v.plainDataPDO, l.DataOffset(TypeH2CData), "A %d", v.a)
		require.Equal(t, v.plainDataPDO, l.DataOffset(TypeC2HData), "A %d", v.a)
	}
}

// TestF11EveryAlignment: all 32 units, most of them no power of two, in all digest settings; what one
// end lays out, the other takes apart.
func TestF11EveryAlignment(t *testing.T) {
	largest := 0
	for a := uint8(0); a <= MaxAlign; a++ {
		for _, dgst := range allDigests {
			l := Layout{Digests: dgst, Align: a}
			for typ, b := range samples(t, l) {
				f := receiver(typ, l)
				raw, n, err := f.Split(b)
				require.NoError(t, err, "%s, A %d, digests %s", typ, a, dgst)
				require.Equal(t, len(b), n)
				require.False(t, raw.BadData)
				if !typ.digested() || typ == TypeCapsuleResp || typ == TypeR2T {
					continue
				}
				require.Equal(t, pat(512, 3), raw.Data)
				require.Zero(t, int(raw.PDO)%(4*(int(a)+1)))
				head := int(raw.HLEN)
				if dgst.Header {
					head += DigestLen
				}
				require.Less(t, int(raw.PDO)-head, 4*(int(a)+1), "more padding than one unit")
				for _, c := range b[head:raw.PDO] {
					require.Zero(t, c, "padding")
				}
				largest = max(largest, int(raw.PDO))
			}
		}
	}
	require.Equal(t, MaxPDO, largest)
}

// TestF11LargerPDO: the sender may pad more than it must.
func TestF11LargerPDO(t *testing.T) {
	f := Framing{Role: Host, Digests: both, Align: 1, Ready: true}
	h := CommonHeader{Type: TypeC2HData, Flags: FlagHDGST | FlagDDGST | FlagLast, HLEN: 24, PDO: 128, PLEN: 128 + 8 + 4}
	b := build(24, fields{0: h.Append(nil), 8: uint16(1), 16: uint32(8)})
	b = AppendDigest(b, Digest(b))
	b = append(b, make([]byte, 100)...)
	b = append(b, pat(8, 1)...)
	b = AppendDigest(b, Digest(pat(8, 1)))
	raw, n, err := f.Split(b)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.Equal(t, pat(8, 1), raw.Data)
	require.False(t, raw.BadData)
	var d Data
	require.NoError(t, d.Decode(raw.Header))
	require.Equal(t, 128, f.HeaderSize(raw.CommonHeader))
}

// TestF04BadDigests flips every bit of a PDU in turn: no change goes unseen, a change of DATA or DDGST
// alone leaves the connection in order, and one of the header or HDGST does not.
func TestF04BadDigests(t *testing.T) {
	l := Layout{Digests: both, Align: 7}
	for _, typ := range []Type{TypeCapsuleCmd, TypeCapsuleResp, TypeH2CData, TypeC2HData, TypeR2T} {
		good := samples(t, l)[typ]
		f := receiver(typ, l)
		var h CommonHeader
		h.Decode(good)
		for i := range good {
			for bit := range 8 {
				b := with(good, i, good[i]^1<<bit)
				raw, n, err := f.Split(b)
				switch {
				case i < CommonHeaderLen:
					require.True(t, err != nil || n == 0, "%s, byte %d, bit %d", typ, i, bit)
				case i < int(h.HLEN)+DigestLen:
					e := requireError(t, err, FESHeaderDigest, ReadDigest(b[h.HLEN:]))
					require.Equal(t, b[:h.HLEN], e.Header)
					require.Zero(t, n)
				case i < int(h.PDO): // PAD is nobody's
					require.NoError(t, err)
					require.False(t, raw.BadData)
				default:
					require.NoError(t, err)
					require.Equal(t, len(b), n)
					require.True(t, raw.BadData, "%s, byte %d, bit %d", typ, i, bit)
					require.Equal(t, ReadDigest(b[len(b)-4:]), raw.DataDigest)
				}
			}
		}
	}
}

// TestSplitMany cuts a stream of PDUs apart.
func TestSplitMany(t *testing.T) {
	for _, dgst := range allDigests {
		l := Layout{Digests: dgst, Align: 3}
		all := samples(t, l)
		order := []Type{TypeC2HData, TypeR2T, TypeCapsuleResp, TypeC2HData, TypeC2HTermReq}
		var b []byte
		for _, typ := range order {
			b = append(b, all[typ]...)
		}
		f := Framing{Role: Host, Digests: dgst, Align: 3, Ready: true}
		for _, typ := range order {
			raw, n, err := f.Split(b)
			require.NoError(t, err)
			require.Equal(t, typ, raw.Type)
			b = b[n:]
		}
		require.Empty(t, b)
	}
}
