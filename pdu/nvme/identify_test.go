package nvme

import (
	"encoding/binary"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestVectorIdentifyController(t *testing.T) {
	const pdo = 28
	wire := vecIdentifyData.bytes(t)[pdo:][:IdentifyLen]
	var c IdentifyController
	require.NoError(t, c.Decode(wire))
	require.Equal(t, IdentifyController{
		VID: 0x1B36, SSVID: 0x1AF4, SN: "SN0123456789", MN: "Model X", FR: "FW1.0",
		RAB: 6, IEEE: [3]byte{0xE4, 0xD2, 0x5C}, CMIC: 0x0B, MDTS: 5, CNTLID: 1,
		VER: 0x00020100, RTD3R: 0x111, RTD3E: 0x222, OAES: 0x00000900, CTRATT: 0x41,
		CNTRLTYPE: ControllerTypeIO, CRDT1: 0x11, CRDT2: 0x22, CRDT3: 0x33,
		ACL: 3, AERL: 3, LPA: 7, ELPE: 0x7F, KAS: 100, ANATT: 10, ANACAP: 0x1F, ANAGRPMAX: 128, NANAGRPID: 32,
		SQES: 0x66, CQES: 0x44, MAXCMD: 128, NN: 1024, ONCS: 0x2C, FUSES: 1, VWC: 1, ACWU: 7,
		SGLS: 0x00100001, MNAN: 1024, SUBNQN: "nqn.2016-06.io.spdk:cnode1",
		IOCCSZ: 260, IORCSZ: 1, MSDBD: 1,
	}, c)
	require.Equal(t, wire, c.Append(nil))

	require.Equal(t, uint64(128<<10), c.MaxTransfer())
	require.Equal(t, 4096, c.InCapsuleBytes())
	require.Equal(t, uint64(16+32*32+1024*4), c.ANALogBytes())
	require.NotZero(t, c.CMIC&CMICANA)
	require.Equal(t, AECNamespaceAttribute|AECANA, c.OAES)
	require.NotZero(t, c.CTRATT&CTRATTTBKAS)
	require.Equal(t, ONCSDatasetManagement|ONCSWriteZeroes|ONCSReservations, c.ONCS)
}

// A hostile MDTS must not turn into a small or negative limit.
func TestMaxTransfer(t *testing.T) {
	for mdts, want := range map[uint8]uint64{
		0: 0, 1: 8 << 10, 5: 128 << 10, 8: 1 << 20, 20: 1 << 32, 51: 1 << 63, 52: 0, 64: 0, 255: 0,
	} {
		c := IdentifyController{MDTS: mdts}
		require.Equal(t, want, c.MaxTransfer(), "MDTS %d", mdts)
	}
}

// F12: IOCCSZ counts the SQE, so 4 is no data at all.
func TestF12InCapsuleBytes(t *testing.T) {
	for ioccsz, want := range map[uint32]int{
		0: 0, 3: 0, 4: 0, 5: 16, 260: 4096, 516: 8192, math.MaxUint32: math.MaxInt32,
	} {
		c := IdentifyController{IOCCSZ: ioccsz}
		require.Equal(t, want, c.InCapsuleBytes(), "IOCCSZ %d", ioccsz)
	}
}

func TestANALogBytes(t *testing.T) {
	c := IdentifyController{NANAGRPID: 2, NN: 3}
	require.Equal(t, uint64(16+64+12), c.ANALogBytes())
	c = IdentifyController{NANAGRPID: math.MaxUint32, MNAN: math.MaxUint32}
	require.Equal(t, uint64(16+36*math.MaxUint32), c.ANALogBytes())
}

func TestIdentifyStringsAreCut(t *testing.T) {
	long := string(make([]byte, 0, 300))
	for range 300 {
		long += "x"
	}
	c := IdentifyController{SN: long, MN: long, FR: long, SUBNQN: long}
	var got IdentifyController
	require.NoError(t, got.Decode(c.Append(nil)))
	require.Equal(t, IdentifyController{SN: long[:20], MN: long[:40], FR: long[:8], SUBNQN: long[:255]}, got)
}

func TestControllerTypes(t *testing.T) {
	require.Equal(t, "discovery controller", ControllerTypeDiscovery.String())
	require.Equal(t, "controller type 9", ControllerType(9).String())
}

// F31, F32: the format in use, its block size and its metadata.
func TestF31LBAFormat(t *testing.T) {
	for _, c := range []struct {
		flbas uint8
		index int
		ext   bool
	}{
		{0x00, 0, false},
		{0x0F, 15, false},
		{0x10, 0, true},
		{0x21, 17, false},
		{0x7F, 63, true},
		{0x80, 0, false}, // bit 7 is reserved
	} {
		n := IdentifyNamespace{FLBAS: c.flbas}
		n.LBAF[c.index] = LBAFormat{MS: 8, LBADS: 12, RP: 1}
		require.Equal(t, c.index, n.FormatIndex(), "FLBAS 0x%02X", c.flbas)
		require.Equal(t, LBAFormat{MS: 8, LBADS: 12, RP: 1}, n.Format())
		require.Equal(t, uint32(4096), n.BlockSize())
		require.Equal(t, 8, n.MetadataSize())
		require.Equal(t, c.ext, n.ExtendedLBA())
	}
	n := IdentifyNamespace{FLBAS: 0x10}
	require.False(t, n.ExtendedLBA(), "without metadata there is nothing to interleave")
}

func TestNamespaceBytes(t *testing.T) {
	for _, c := range []struct {
		nsze  uint64
		lbads uint8
		want  int64
		err   string
	}{
		{2048, 9, 1 << 20, ""},
		{1 << 50, 12, 1 << 62, ""},
		{1 << 51, 12, 0, "beyond 2^63"},
		{math.MaxUint64, 9, 0, "beyond 2^63"},
		{1, 0, 0, "LBADS 0"},
		{1, 8, 0, "LBADS 8"},
		{1, 31, 1 << 31, ""},
		{1, 32, 0, "LBADS 32"},
		{1, 255, 0, "LBADS 255"},
	} {
		n := IdentifyNamespace{NSZE: c.nsze}
		n.LBAF[0].LBADS = c.lbads
		got, err := n.Bytes()
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
}

func TestNamespaceList(t *testing.T) {
	wire := NamespaceList{1, 2, 0xFFFFFFFE}.Append(nil)
	require.Len(t, wire, IdentifyLen)
	require.Equal(t, []byte{1, 0, 0, 0, 2, 0, 0, 0, 0xFE, 0xFF, 0xFF, 0xFF, 0}, wire[:13])
	var l NamespaceList
	require.NoError(t, l.Decode(wire))
	require.Equal(t, NamespaceList{1, 2, 0xFFFFFFFE}, l)

	require.ErrorContains(t, l.DecodeAfter(wire, 1), "entry 0 is NSID 0x1 after 0x1")
	require.ErrorContains(t, l.Decode(NamespaceList{1, 3, 3}.Append(nil)), "entry 2")
	require.ErrorContains(t, l.Decode(NamespaceList{1, 3, 2}.Append(nil)), "entry 2")
	require.ErrorContains(t, l.Decode(NamespaceList{NSIDAll}.Append(nil)), "0xFFFFFFFF")
	require.Error(t, l.Decode(wire[:4095]))

	full := make(NamespaceList, 2000)
	for i := range full {
		full[i] = uint32(i + 1)
	}
	wire = full.Append(nil)
	require.Len(t, wire, IdentifyLen)
	require.NoError(t, l.Decode(wire))
	require.Equal(t, full[:1024], l)
	require.Zero(t, testing.AllocsPerRun(10, func() { _ = l.Decode(wire) }), "the list's memory is used again")
}

func TestControllerList(t *testing.T) {
	wire := ControllerList{1, 0xFFEF}.Append(nil)
	require.Equal(t, []byte{2, 0, 1, 0, 0xEF, 0xFF, 0}, wire[:7])
	var l ControllerList
	require.NoError(t, l.Decode(wire))
	require.Equal(t, ControllerList{1, 0xFFEF}, l)

	require.NoError(t, l.Decode(make(ControllerList, 3000).Append(nil)))
	require.Len(t, l, 2047)
	binary.LittleEndian.PutUint16(wire, 2048)
	require.ErrorContains(t, l.Decode(wire), "2048 entries")
}

func TestNamespaceIDs(t *testing.T) {
	wire := make([]byte, IdentifyLen)
	i := copy(wire, []byte{3, 16, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15})
	i += copy(wire[i:], []byte{0x77, 3, 0, 0, 9, 9, 9}) // not known: passed over
	i += copy(wire[i:], []byte{1, 8, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1})
	i += copy(wire[i:], []byte{4, 1, 0, 0, 2})
	i += copy(wire[i:], []byte{2, 16, 0, 0, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1})
	copy(wire[i+1:], []byte{1, 2, 3}) // after the end: not looked at
	var n NamespaceIDs
	require.NoError(t, n.Decode(wire))
	want := NamespaceIDs{
		EUI64: [8]byte{8, 7, 6, 5, 4, 3, 2, 1},
		NGUID: [16]byte{16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, 4, 3, 2, 1},
		UUID:  [16]byte{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
		CSI:   CSIZNS, HasCSI: true,
	}
	require.Equal(t, want, n)
	enc := n.Append(nil)
	require.Equal(t, []byte{1, 8, 0, 0, 8, 7, 6, 5, 4, 3, 2, 1, 2, 16, 0, 0, 16}, enc[:17])
	var again NamespaceIDs
	require.NoError(t, again.Decode(enc))
	require.Equal(t, want, again)

	require.NoError(t, n.Decode(make([]byte, IdentifyLen)))
	require.Equal(t, NamespaceIDs{}, n, "an earlier list must not show through")
}

func TestNamespaceIDsMalformed(t *testing.T) {
	at := func(off int, d ...byte) []byte { // a list of one unknown descriptor up to off, then d
		b := make([]byte, 0, IdentifyLen)
		for len(b) < off {
			n := min(off-len(b)-4, 255)
			if left := off - len(b) - 4 - n; left > 0 && left < 4 {
				n -= 4
			}
			b = append(b, 0x77, byte(n), 0, 0)
			b = append(b, make([]byte, n)...)
		}
		return append(append(b, d...), make([]byte, IdentifyLen-off-len(d))...)
	}
	var n NamespaceIDs
	require.ErrorContains(t, n.Decode(at(0, 3, 15)), "UUID has length 15, not 16")
	require.ErrorContains(t, n.Decode(at(0, 2, 0)), "NGUID has length 0, not 16")
	require.ErrorContains(t, n.Decode(at(0, 1, 16)), "EUI64 has length 16, not 8")
	require.ErrorContains(t, n.Decode(at(0, 4, 2)), "CSI has length 2, not 1")
	require.ErrorContains(t, n.Decode(at(4085, 1, 8)), "beyond the end")
	require.ErrorContains(t, n.Decode(at(4094, 1, 8)), "within its header")
	require.NoError(t, n.Decode(at(4084, 1, 8, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1)), "a list may fill the page")
	require.Equal(t, [8]byte{1, 1, 1, 1, 1, 1, 1, 1}, n.EUI64)
}

func TestExtendedLBAFormat(t *testing.T) {
	e := ExtendedLBAFormat(0x7F)
	require.Equal(t, []uint8{0x7F, 0, 0}, []uint8{e.STS(), e.PIF(), e.QPIF()})
	e = 3 << 7
	require.Equal(t, []uint8{0, 3, 0}, []uint8{e.STS(), e.PIF(), e.QPIF()})
	e = 0xF << 9
	require.Equal(t, []uint8{0, 0, 0xF}, []uint8{e.STS(), e.PIF(), e.QPIF()})
}

func TestUint128(t *testing.T) {
	for want, u := range map[string]Uint128{
		"0":                    {},
		"1":                    {Lo: 1},
		"18446744073709551615": {Lo: math.MaxUint64},
		"18446744073709551616": {Hi: 1},
		"10000000000000000000": {Lo: 1e19},
		"340282366920938463463374607431768211455": {Lo: math.MaxUint64, Hi: math.MaxUint64},
		"100000000000000000000000000000000000000": {Lo: 687399551400673280, Hi: 5421010862427522170},
	} {
		require.Equal(t, want, u.String())
	}
	v, ok := Uint128{Lo: 5}.Uint64()
	require.True(t, ok)
	require.Equal(t, uint64(5), v)
	v, ok = Uint128{Hi: 1}.Uint64()
	require.False(t, ok)
	require.Equal(t, uint64(math.MaxUint64), v)
}
