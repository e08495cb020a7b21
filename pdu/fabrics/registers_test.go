package fabrics

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// capFields lists the accessors in the order of the bits.
func capFields(c CAP) []any {
	return []any{
		c.MQES(), c.CQR(), c.AMS(), c.TO(), c.DSTRD(), c.NSSRS(), c.CSS(), c.BPS(), c.CPS(),
		c.MPSMIN(), c.MPSMAX(), c.PMRS(), c.CMBS(), c.NSSS(), c.CRWMS(), c.CRIMS(),
	}
}

func TestCAP(t *testing.T) {
	require.Equal(t,
		[]any{uint16(127), true, uint8(0), 15 * time.Second, uint8(0), false, CSSNVM, false, uint8(0), uint8(0), uint8(0), false, false, false, true, false},
		capFields(0x080000201E01007F), "the vector")

	zero := capFields(0)
	for i, c := range []struct {
		lo, hi int
		want   any
	}{
		{0, 15, uint16(0xFFFF)},
		{16, 16, true},
		{17, 18, uint8(3)},
		{24, 31, 127500 * time.Millisecond},
		{32, 35, uint8(0xF)},
		{36, 36, true},
		{37, 44, uint8(0xFF)},
		{45, 45, true},
		{46, 47, uint8(3)},
		{48, 51, uint8(0xF)},
		{52, 55, uint8(0xF)},
		{56, 56, true},
		{57, 57, true},
		{58, 58, true},
		{59, 59, true},
		{60, 60, true},
	} {
		bits := CAP(1<<(c.hi+1) - 1<<c.lo)
		want := append([]any{}, zero...)
		want[i] = c.want
		require.Equal(t, want, capFields(bits), "bits %d:%d", c.hi, c.lo)
	}
	require.Equal(t, CSSIOCS, CAP(1<<43).CSS())
	require.Equal(t, CSSNone, CAP(1<<44).CSS())
}

func TestVS(t *testing.T) {
	for v, want := range map[VS]string{VS13: "1.3", VS14: "1.4", VS20: "2.0", VS21: "2.1", 0x00010201: "1.2.1"} {
		require.Equal(t, want, v.String())
	}
}

func TestCC(t *testing.T) {
	fields := func(c CC) []any {
		return []any{c.EN(), c.CSS(), c.MPS(), c.AMS(), c.SHN(), c.IOSQES(), c.IOCQES(), c.CRIME()}
	}
	require.Equal(t, []any{true, uint8(0), uint8(0), uint8(0), uint8(0), uint8(6), uint8(4), false}, fields(0x00460001))
	zero := fields(0)
	for i, c := range []struct {
		bits CC
		want any
	}{
		{1, true},
		{7 << 4, CCCSSAdmin},
		{0xF << 7, uint8(0xF)},
		{7 << 11, uint8(7)},
		{3 << 14, uint8(3)},
		{0xF << 16, uint8(0xF)},
		{0xF << 20, uint8(0xF)},
		{1 << 24, true},
	} {
		want := append([]any{}, zero...)
		want[i] = c.want
		require.Equal(t, want, fields(c.bits), "bits 0x%X", uint32(c.bits))
	}
	require.Equal(t, CC(0x00460001), CCDefault.WithEN(true))
	require.Equal(t, CCDefault, CC(0x00460001).WithEN(false))
	require.Equal(t, CC(0x00464001), CC(0x00460001).WithSHN(SHNNormal))
	require.Equal(t, CC(0x00468001), CC(0x00464001).WithSHN(SHNAbrupt))
	require.Equal(t, CC(0x00460060), CCDefault.WithCSS(CCCSSAll))
	require.Equal(t, CCDefault, CC(0x00460070).WithCSS(CCCSSNVM))
}

func TestCSTS(t *testing.T) {
	fields := func(c CSTS) []any {
		return []any{c.RDY(), c.CFS(), c.SHST(), c.NSSRO(), c.PP(), c.ST()}
	}
	zero := fields(0)
	for i, c := range []struct {
		bits CSTS
		want any
	}{{1, true}, {2, true}, {3 << 2, uint8(3)}, {1 << 4, true}, {1 << 5, true}, {1 << 6, true}} {
		want := append([]any{}, zero...)
		want[i] = c.want
		require.Equal(t, want, fields(c.bits), "bits 0x%X", uint32(c.bits))
	}
	require.Equal(t, CSTS(0x9), CSTSReady.WithSHST(SHSTComplete))
	require.Equal(t, CSTSReady, CSTS(0xD).WithSHST(SHSTNormal))
}

func TestCRTO(t *testing.T) {
	c := CRTO(0x0002000A)
	require.Equal(t, 5*time.Second, c.CRWMT())
	require.Equal(t, time.Second, c.CRIMT())
}
