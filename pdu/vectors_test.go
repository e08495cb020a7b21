package pdu

import (
	"crypto/sha256"
	"encoding/hex"
	"testing"

	"github.com/stretchr/testify/require"
)

const (
	hostNQN = "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-def0-1234-56789abcdef0"
	subNQN  = "nqn.2016-06.io.spdk:cnode1"
)

var both = Digests{Header: true, Data: true}

// vector is one whole PDU, as bytes and as what it means.
type vector struct {
	name   string
	size   int
	sha    string
	wire   string // as unhex takes it
	to     Role
	layout Layout
	pdu    any    // one of the PDU structs
	data   []byte // DATA; nil means that it is taken from wire
}

// fields is a little-endian structure: values at offsets.
type fields map[int]any

// build lays the fields out in n bytes.
func build(n int, f fields) []byte {
	b := make([]byte, n)
	for off, v := range f {
		switch v := v.(type) {
		case int: // one byte
			b[off] = byte(v)
		case uint16:
			b[off], b[off+1] = byte(v), byte(v>>8)
		case uint32:
			for i := range 4 {
				b[off+i] = byte(v >> (8 * i))
			}
		case string:
			copy(b[off:], v)
		case []byte:
			copy(b[off:], v)
		}
	}
	return b
}

func command(f fields) *CapsuleCmd {
	f[1] = 0x40 // PSDT: SGL
	return &CapsuleCmd{SQE: [64]byte(build(64, f))}
}

func response(f fields) *CapsuleResp { return &CapsuleResp{CQE: [16]byte(build(16, f))} }

func connectData(t testing.TB, cntlid uint16) []byte {
	return build(1024, fields{0: unhex(t, "123456789abcdef0123456789abcdef0"), 16: cntlid, 256: subNQN, 512: hostNQN})
}

func vectors(t testing.TB) []vector {
	a := Layout{Digests: both} // association A
	n := Layout{}              // association B: no digests
	return []vector{
		{
			"A ICReq", 128, "bbb62f657934521294eba710b8bd98a5fe833b69b177b0cca27c0831767dc205",
			`000080008000000000000003 [116x00]`,
			Controller, n, &ICReq{DGST: both}, nil,
		},
		{
			"A ICResp", 128, "633c7c6a6d74ccc8adab15fc12bf9e90b89c3b90bf6f484789f331cfb38943d3",
			`010080008000000000000003000002 [113x00]`,
			Host, n, &ICResp{DGST: both, MAXH2CDATA: 131072}, nil,
		},
		{
			"A Connect admin", 1104, "4c40105ff6749ceb7d1b903844d5b6b3f61fa9fc21d11c87c0c5e0ab6db5b1d5",
			`0403484c500400007f40010001 [28x00] 04000000000001000000001f000000c0d401 [13x00] 178334f8123456789abcdef0123456789abcdef0ffff [238x00]
			6e716e2e323031362d30362e696f2e7370646b3a636e6f646531 [230x00]
			6e716e2e323031342d30382e6f72672e6e766d657870726573733a757569643a31323334353637382d396162632d646566302d313233342d3536373839616263
			64656630 [444x00] 14bac396`,
			Controller, a,
			command(fields{0: 0x7f, 2: uint16(1), 4: 1, 32: uint32(1024), 39: 0x01, 44: uint16(31), 48: uint32(120000)}),
			connectData(t, 0xffff),
		},
		{
			"A Connect response", 28, "5867b99f39f9f03d5a0232de6eb2249a277d0387d0cd0c5b56475ec05167c080",
			`050118001c00000001000000000000000100000001000000fac876ef`,
			Host, a, response(fields{0: uint32(1), 8: uint16(1), 12: uint16(1)}), nil,
		},
		{
			"A Property Get CAP", 76, "37dd2a3f5e81aa1c3c6636f4e445b6073b335d69ac84c260a9623269f78e66d6",
			`040148004c0000007f40020004 [34x00] 5a01 [23x00] 76bf0d40`,
			Controller, a, command(fields{0: 0x7f, 2: uint16(2), 4: 4, 39: 0x5a, 40: 1}), nil,
		},
		{
			"A CAP response", 28, "8ab0dc06fb648ba7416ab8c19106b3574ecbb7bc2d87f06d8a502cfb7c035f01",
			`050118001c0000007f00011e20000008020000000200000065dd5666`,
			Host, a, response(fields{0: uint32(0x1e01007f), 4: uint32(0x08000020), 8: uint16(2), 12: uint16(2)}), nil,
		},
		{
			"A Property Set CC", 76, "c871c7451784d3528a0d28aa6b9dda9ddd9c25448b3a3dc8a2d77a6c579c7889",
			`040148004c0000007f4003 [36x00] 5a0000000014000000010046 [13x00] cab808c0`,
			Controller, a, command(fields{0: 0x7f, 2: uint16(3), 39: 0x5a, 44: uint32(0x14), 48: uint32(0x00460001)}), nil,
		},
		{
			"A Property Set response", 28, "7e90069d3a720532f16eb2c4d5cb188390e82e9cb0ff7258cb5b557c5a1eb713",
			`050118001c00000000000000000000000300000003000000cb1c6530`,
			Host, a, response(fields{8: uint16(3), 12: uint16(3)}), nil,
		},
		{
			"A Identify CNS 1", 76, "b0032cb1ebb460e2c1972365f64343eab9085093ea48f59df7e549ec858f38c1",
			`040148004c000000064004 [30x00] 1000000000005a01 [23x00] 0d416f7b`,
			Controller, a, command(fields{0: 0x06, 2: uint16(4), 32: uint32(4096), 39: 0x5a, 40: 1}), nil,
		},
		{
			"A C2HData Identify LAST|SUCCESS", 4128, "615179bf6c2e94734b0d02c80a21e93a511feda239557b219d7481bd408bd612",
			`070f181c2010000004000000000000000010000000000000c6eb5ee9361bf41a534e3031323334353637383920202020202020204d6f64656c20582020202020
			202020202020202020202020202020202020202020202020202020204657312e3020202006e4d25c0b0501000001020011010000220200000009000041 [14x00] 01 [16x00]
			1100220033 [125x00] 030300077f [57x00] 64 [21x00] 0a1f8000000020 [163x00] 66448000000400002c000100000100000000000007000000010010000004
			[226x00] 6e716e2e323031362d30362e696f2e7370646b3a636e6f646531 [998x00] 040100000100000000000001 [2292x00] 67c355a2`,
			Host, a, &Data{Type: TypeC2HData, Flags: FlagLast | FlagSuccess, CCCID: 4, DATAL: 4096}, nil,
		},
		{
			"B ICReq", 128, "3253cc1d9d8290c138be089c42a2816c5729fb6678628ca4ee70ce6d0adf044d",
			`0000800080 [123x00]`, Controller, n, &ICReq{}, nil,
		},
		{
			"B ICResp", 128, "3baa684b01fadaa406dce6e62304f774cae247c978149126fa52e04727cf92d8",
			`0100800080000000000000000010 [114x00]`, Host, n, &ICResp{MAXH2CDATA: 4096}, nil,
		},
		{
			"B Connect queue 1", 1096, "c67c94456e225ec860b1a1d9b53736e88a2d3ee4333a153af6abef6823b0080a",
			`04004848480400007f40100001 [28x00] 04000000000001000001007f [19x00] 123456789abcdef0123456789abcdef001 [239x00]
			6e716e2e323031362d30362e696f2e7370646b3a636e6f646531 [230x00]
			6e716e2e323031342d30382e6f72672e6e766d657870726573733a757569643a31323334353637382d396162632d646566302d313233342d3536373839616263
			64656630 [444x00]`,
			Controller, n,
			command(fields{0: 0x7f, 2: uint16(0x10), 4: 1, 32: uint32(1024), 39: 0x01, 42: uint16(1), 44: uint16(127)}),
			connectData(t, 1),
		},
		{
			"B Connect response", 24, "f3ec5b768c8f9bb524534556e4029d36e54fb8dbb9da5fd9d1487c448665c426",
			`050018001800000001000000000000000100000010000000`,
			Host, n, response(fields{0: uint32(1), 8: uint16(1), 12: uint16(0x10)}), nil,
		},
		{
			"B Write 8 KiB by R2T", 72, "47313e60a350607ea31e30d991fd189cf0a3f3a714cb5d1a360e17a54cf2c5fd",
			`04004800480000000140110001 [28x00] 2000000000005a00010000000000000f [15x00]`,
			Controller, n,
			command(fields{0: 0x01, 2: uint16(0x11), 4: uint32(1), 32: uint32(8192), 39: 0x5a, 40: uint32(0x100), 48: uint16(15)}), nil,
		},
		{
			"B R2T", 24, "f388349d6ff7c7ef7187ae6731e0500536019646c60ef2c3da7573c8ddc9bb31",
			`09001800180000001100a500000000000020000000000000`,
			Host, n, &R2T{CCCID: 0x11, TTAG: 0xa5, R2TL: 8192}, nil,
		},
		{
			"B H2CData 1/2", 4120, "1fd75ab438ad52c1df46de43fa2b968a2ebfe877b08e192d5fc4e50cac50309c",
			`06001818181000001100a500000000000010000000000000 [PAT(4096,0)]`,
			Controller, n, &Data{Type: TypeH2CData, CCCID: 0x11, TTAG: 0xa5, DATAL: 4096}, pat(4096, 0),
		},
		{
			"B H2CData 2/2 LAST", 4120, "3357bb4c1de2ef02553d1f71826172852bda1ab6cce36376235d77e05b2e42ab",
			`06041818181000001100a500001000000010000000000000 [PAT(4096,1)]`,
			Controller, n,
			&Data{Type: TypeH2CData, Flags: FlagLast, CCCID: 0x11, TTAG: 0xa5, DATAO: 4096, DATAL: 4096}, pat(4096, 1),
		},
		{
			"B write response", 24, "a8e995525ca481e0a4e54942d1ccb0999f8445cabd8cb0f6e31213308c61ed64",
			`050018001800000000000000000000000200000011000000`,
			Host, n, response(fields{8: uint16(2), 12: uint16(0x11)}), nil,
		},
		{
			"B Write 512 in-capsule", 584, "06a816deee487b360b553e33a42ee19f5469fadd224c57e00d9aca1bd373b2df",
			`04004848480200000140120001 [28x00] 020000000000010002 [22x00] [PAT(512,0)]`,
			Controller, n,
			command(fields{0: 0x01, 2: uint16(0x12), 4: uint32(1), 32: uint32(512), 39: 0x01, 40: uint32(0x200)}), pat(512, 0),
		},
		{
			"B in-capsule write response", 24, "aac924bd2ac3f116aa4e7ac65650ad948819b05a5defa14cd90d8eb6c1949554",
			`050018001800000000000000000000000300000012000000`,
			Host, n, response(fields{8: uint16(3), 12: uint16(0x12)}), nil,
		},
		{
			"B Read 512", 72, "73440b51752b9785a4b30e99d53199e26efad961148056a4bf833991f0e06666",
			`04004800480000000240130001 [28x00] 0200000000005a0002 [22x00]`,
			Controller, n,
			command(fields{0: 0x02, 2: uint16(0x13), 4: uint32(1), 32: uint32(512), 39: 0x5a, 40: uint32(0x200)}), nil,
		},
		{
			"B C2HData 512 LAST", 536, "a9bf18ec286f2c7dd4dded646da17e00b2da3283cb16d94811e540850a2ac048",
			`070418181802000013000000000000000002000000000000 [PAT(512,0)]`,
			Host, n, &Data{Type: TypeC2HData, Flags: FlagLast, CCCID: 0x13, DATAL: 512}, pat(512, 0),
		},
		{
			"B read response", 24, "e3cfce954c5a8cc5419eddf53443fb3caa379621511468c197ce089d454a3662",
			`050018001800000000000000000000000400000013000000`,
			Host, n, response(fields{8: uint16(4), 12: uint16(0x13)}), nil,
		},
		{
			"B C2HTermReq FES 1 FEI 10", 48, "e63fcb0250f17201a4634c29bf6abf32339b6868aca00a962296cbdaf10b8620",
			`030018003000000001000a [13x00] 06041818280000001100a500000000001000000000000000`,
			Host, n,
			&TermReq{
				Type: TypeC2HTermReq, FES: FESInvalidHeaderField, FEI: 10,
				Header: unhex(t, `06041818280000001100a500000000001000000000000000`),
			},
			nil,
		},
		{
			"B H2CTermReq FES 2", 48, "42e1599bd33e62f0cd9e33f4ad002c7219d10f8b1413bd4d097f07d703d9feaa",
			`020018003000000002 [15x00] 09001800180000001100a500000000000020000000000000`,
			Controller, n,
			&TermReq{
				Type: TypeH2CTermReq, FES: FESSequenceError,
				Header: unhex(t, `09001800180000001100a500000000000020000000000000`),
			},
			nil,
		},
		{
			"H2CData, CPDA 7", 52, "93023cbdc9a65ada5659105c1be44cee0731bae0329191cfe4f24adfd102e327",
			`06071820340000002100010000000000100000000000000025b44d9a00000000000102030405060708090a0b0c0d0e0feb08c9d9`,
			Controller,
			Layout{Digests: both, Align: 7},
			&Data{Type: TypeH2CData, Flags: FlagLast, CCCID: 0x21, TTAG: 1, DATAL: 16}, pat(16, 0),
		},
		{
			"R2T with header digest", 28, "bb8187c71b710a27478e3fdce24e3242cc63312e5d44720a499279f28f5f1fcc",
			`090118001c00000021000100001000000020000000000000167b4b41`,
			Host, a, &R2T{CCCID: 0x21, TTAG: 1, R2TO: 4096, R2TL: 8192}, nil,
		},
		{
			"Transient Transport Error", 28, "107b6e200c3e012914316acfac4eb59b51c39d477e257053474e26b090ef8681",
			`050118001c000000000000000000000005000000210044003af4df5a`,
			Host, a, response(fields{8: uint16(5), 12: uint16(0x21), 14: uint16(0x44)}), nil,
		},
		{
			"Connect Invalid Parameters", 24, "e0d1f84ad29d3daccee0531c6465a3e8510c57ad7a743a19609bdc9d8d91bf54",
			`05001800180000000001010000000000ffff000001000483`,
			Host, n, response(fields{0: uint32(0x00010100), 8: uint16(0xffff), 12: uint16(1), 14: uint16(0x8304)}), nil,
		},
	}
}

// encode appends the PDU v with its data.
func encode(t testing.TB, b []byte, v any, l Layout, data []byte) []byte {
	switch p := v.(type) {
	case *ICReq:
		return p.Append(b)
	case *ICResp:
		return p.Append(b)
	case *CapsuleCmd:
		return p.Append(b, l, data)
	case *CapsuleResp:
		return p.Append(b, l)
	case *Data:
		q := *p
		return q.Append(b, l, data)
	case *R2T:
		return p.Append(b, l)
	case *TermReq:
		return p.Append(b)
	}
	t.Fatalf("no such PDU: %T", v)
	return nil
}

// decode decodes the fields of the PDU in b into a new struct.
func decode(b []byte) (v any, err error) {
	switch Type(b[0]) {
	case TypeICReq:
		p := new(ICReq)
		return p, p.Decode(b)
	case TypeICResp:
		p := new(ICResp)
		return p, p.Decode(b)
	case TypeCapsuleCmd:
		p := new(CapsuleCmd)
		return p, p.Decode(b)
	case TypeCapsuleResp:
		p := new(CapsuleResp)
		return p, p.Decode(b)
	case TypeH2CData, TypeC2HData:
		p := new(Data)
		return p, p.Decode(b)
	case TypeR2T:
		p := new(R2T)
		return p, p.Decode(b)
	default:
		p := new(TermReq)
		return p, p.Decode(b)
	}
}

// framing returns how the receiver of a vector frames it.
func (v *vector) framing() *Framing {
	_, req := v.pdu.(*ICReq)
	_, resp := v.pdu.(*ICResp)
	return &Framing{Role: v.to, Digests: v.layout.Digests, Align: v.layout.Align, Ready: !req && !resp}
}

func TestVectors(t *testing.T) {
	for _, v := range vectors(t) {
		t.Run(v.name, func(t *testing.T) {
			wire := unhex(t, v.wire)
			require.Len(t, wire, v.size)
			sum := sha256.Sum256(wire)
			require.Equal(t, v.sha, hex.EncodeToString(sum[:]), "the vector was not copied well")

			f := v.framing()
			raw, n, err := f.Split(append(wire[:v.size:v.size], 0xee)) // the next PDU's first byte must not matter
			require.NoError(t, err)
			require.Equal(t, v.size, n)
			require.False(t, raw.BadData)
			require.Len(t, raw.Header, raw.Type.HeaderLen())

			body := raw.Header
			if raw.Type.IsTermReq() {
				body = wire
			}
			got, err := decode(body)
			require.NoError(t, err)
			want := v.pdu
			if d, ok := want.(*Data); ok { // Decode shows the digest flags too
				q := *d
				q.Flags |= Flags(v.layout.bits())
				want = &q
			}
			require.Equal(t, want, got)

			data := v.data
			if data == nil && !raw.Type.IsTermReq() {
				data = raw.Data
			} else if !raw.Type.IsTermReq() {
				require.Equal(t, data, raw.Data)
			}
			require.Equal(t, wire, encode(t, nil, v.pdu, v.layout, data))

			for cut := range v.size { // a PDU that has not all arrived
				_, n, err := f.Split(wire[:cut])
				require.NoError(t, err)
				require.Zero(t, n, "%d of %d bytes", cut, v.size)
			}
		})
	}
}

// TestVectorsReceivedWrong sends every vector to the end that must not get it.
func TestVectorsReceivedWrong(t *testing.T) {
	for _, v := range vectors(t) {
		f := v.framing()
		f.Role = 1 - f.Role
		_, n, err := f.Split(unhex(t, v.wire))
		require.Zero(t, n)
		requireError(t, err, FESInvalidHeaderField, 0)
	}
}

// requireError requires an *Error with the given status and information.
func requireError(t testing.TB, err error, fes FES, fei uint32) *Error {
	t.Helper()
	var e *Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, fes, e.FES, "%v", err)
	require.Equal(t, fei, e.FEI, "%v", err)
	return e
}
