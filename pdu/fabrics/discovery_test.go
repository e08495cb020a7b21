package fabrics

import (
	"encoding/binary"
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestDiscoveryHeader(t *testing.T) {
	want := make([]byte, DiscoveryHeaderLen)
	copy(want, []byte{8, 7, 6, 5, 4, 3, 2, 1, 3, 0, 0, 0, 0, 0, 0, 0x80, 1, 2, 5, 0, 0xDD, 0xCC, 0xBB, 0xAA})
	h := DiscoveryHeader{GENCTR: 0x0102030405060708, NUMREC: 0x8000000000000003, RECFMT: 0x0201, DLPF: DLPFExtended | DLPFAllSubsystem, TDLPL: 0xAABBCCDD}
	require.Equal(t, want, h.Append(nil))
	var got DiscoveryHeader
	require.NoError(t, got.Decode(want))
	require.Equal(t, h, got)
	require.NoError(t, got.Decode(want[:24]), "hosts read only the beginning at times")
	require.Equal(t, h, got)
	var short *nvme.ShortError
	require.ErrorAs(t, got.Decode(want[:23]), &short)
	require.EqualError(t, short, "nvme: discovery log header needs 24 bytes, got 23")
}

// F25: NUMREC is the target's word and must not size anything unchecked.
func TestF25DiscoveryLogBytes(t *testing.T) {
	for _, c := range []struct {
		numrec uint64
		limit  int
		want   int
		err    string
	}{
		{0, 100, 1024, ""},
		{6, 100, 7 * 1024, ""},
		{100, 100, 101 * 1024, ""},
		{101, 100, 0, "claims 101 entries, more than the limit of 100"},
		{math.MaxUint64, 100, 0, "claims 18446744073709551615 entries"},
		{1 << 54, math.MaxInt, 0, "more than the limit"},
		{1, -1, 0, "more than the limit"},
	} {
		h := DiscoveryHeader{NUMREC: c.numrec}
		got, err := h.LogBytes(c.limit)
		if c.err != "" {
			require.ErrorContains(t, err, c.err)
			continue
		}
		require.NoError(t, err)
		require.Equal(t, c.want, got)
	}
	_, err := (&DiscoveryHeader{RECFMT: 1}).LogBytes(1)
	require.ErrorContains(t, err, "record format 1")
}

func entryWire(pad byte) []byte {
	b := make([]byte, DiscoveryEntryLen)
	copy(b, []byte{3, 1, 2, 5, 0x01, 0x02, 0xFF, 0xFF, 0x20, 0x00, 0x07, 0x00})
	for i := 32; i < 64; i++ {
		b[i] = pad
	}
	for i := 512; i < 768; i++ {
		b[i] = pad
	}
	copy(b[32:], "4420")
	copy(b[256:], vecSubNQN)
	copy(b[512:], "192.0.2.10")
	b[768] = 2
	return b
}

func TestDiscoveryEntry(t *testing.T) {
	want := DiscoveryEntry{
		TRTYPE: TRTYPETCP, ADRFAM: ADRFAMIPv4, SUBTYPE: SUBTYPENVM, TREQ: TREQSQFlowControlDisable | 1,
		PORTID: 0x0201, CNTLID: CNTLIDDynamic, ASQSZ: 32, EFLAGS: EFLAGSDuplicate | EFLAGSPersistent | EFLAGSNoCDC,
		TRSVCID: "4420", SubNQN: vecSubNQN, TRADDR: "192.0.2.10", SECTYPE: SECTYPETLS13,
	}
	for _, pad := range []byte{0, ' '} { // nvmet pads with NULs, SPDK with spaces
		var got DiscoveryEntry
		require.NoError(t, got.Decode(entryWire(pad)))
		require.Equal(t, want, got)
	}
	enc, err := want.Append(nil)
	require.NoError(t, err)
	require.Equal(t, entryWire(0), enc)
	require.Equal(t, SecureChannelRequired, want.TREQ.SecureChannel())
}

func TestDiscoveryEntryBounds(t *testing.T) {
	var e DiscoveryEntry
	var short *nvme.ShortError
	require.ErrorAs(t, e.Decode(entryWire(0)[:DiscoveryEntryLen-1]), &short)

	// Fields that are full to the end have no padding and no NUL.
	b := entryWire(0)
	copy(b[32:64], strings.Repeat("5", 32))
	copy(b[512:768], strings.Repeat("a", 256))
	require.NoError(t, e.Decode(b))
	require.Equal(t, strings.Repeat("5", 32), e.TRSVCID)
	require.Equal(t, strings.Repeat("a", 256), e.TRADDR)
	enc, err := e.Append(nil)
	require.NoError(t, err)
	require.Equal(t, b, enc)

	copy(b[256:512], strings.Repeat("n", 256))
	require.ErrorContains(t, e.Decode(b), "SUBNQN of 256 bytes is longer than 223")
	b[256] = 0
	require.ErrorContains(t, e.Decode(b), "SUBNQN is empty")

	for want, bad := range map[string]DiscoveryEntry{
		"SUBNQN is empty":           {},
		"TRSVCID of 33 bytes":       {SubNQN: "n", TRSVCID: strings.Repeat("5", 33)},
		"TRADDR of 257 bytes":       {SubNQN: "n", TRADDR: strings.Repeat("a", 257)},
		`TRADDR "a\x00b" contains`:  {SubNQN: "n", TRADDR: "a\x00b"},
		"SUBNQN of 224 bytes":       {SubNQN: strings.Repeat("n", 224)},
		`TRSVCID "\x00" contains a`: {SubNQN: "n", TRSVCID: "\x00"},
	} {
		got, err := bad.Append([]byte("head"))
		require.ErrorContains(t, err, want)
		require.Equal(t, "head", string(got))
	}
}

func TestDiscoveryNames(t *testing.T) {
	for want, v := range map[string]fmt.Stringer{
		"pcie": TRTYPEPCIe, "rdma": TRTYPERDMA, "fc": TRTYPEFC, "tcp": TRTYPETCP, "loop": TRTYPELoop, "transport type 9": TRTYPE(9),
		"pci": ADRFAMPCI, "ipv4": ADRFAMIPv4, "ipv6": ADRFAMIPv6, "ib": ADRFAMIB, "address family 9": ADRFAM(9),
		"discovery subsystem referral": SUBTYPEReferral, "nvme subsystem": SUBTYPENVM, "current discovery subsystem": SUBTYPECurrent, "subsystem type 9": SUBTYPE(9),
		"not specified": TREQ(0), "required": TREQ(1), "not required, sq flow control disable supported": TREQ(6), "reserved (3)": TREQ(3),
		"none": SECTYPENone, "tls1.2": SECTYPETLS12, "tls1.3": SECTYPETLS13, "security type 9": SECTYPE(9),
	} {
		require.Equal(t, want, v.String())
	}
}

func TestDiscoveryEntryOffsets(t *testing.T) {
	b := entryWire(0)
	for _, c := range []struct {
		off  int
		want uint16
		get  func(*DiscoveryEntry) uint16
	}{
		{4, 0x1234, func(e *DiscoveryEntry) uint16 { return e.PORTID }},
		{6, 0x5678, func(e *DiscoveryEntry) uint16 { return e.CNTLID }},
		{8, 0x9ABC, func(e *DiscoveryEntry) uint16 { return e.ASQSZ }},
		{10, 0xDEF0, func(e *DiscoveryEntry) uint16 { return uint16(e.EFLAGS) }},
	} {
		binary.LittleEndian.PutUint16(b[c.off:], c.want)
		var e DiscoveryEntry
		require.NoError(t, e.Decode(b))
		require.Equal(t, c.want, c.get(&e))
	}
}
