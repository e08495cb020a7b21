package nvme

import (
	"encoding/binary"
	"testing"

	"github.com/stretchr/testify/require"
)

func anaWire() []byte {
	b := binary.LittleEndian.AppendUint64(nil, 7) // CHGCNT
	b = append(b, 2, 0, 0, 0, 0, 0, 0, 0)         // NAGD 2
	b = append(b, 1, 0, 0, 0, 2, 0, 0, 0)         // AGID 1, 2 NSIDs
	b = append(b, 5, 0, 0, 0, 0, 0, 0, 0, 1)      // CHGCNT 5, optimized
	b = append(b, make([]byte, 15)...)
	b = append(b, 1, 0, 0, 0, 3, 0, 0, 0)
	b = append(b, 9, 0, 0, 0, 0, 0, 0, 0) // AGID 9, no NSIDs
	b = append(b, 6, 0, 0, 0, 0, 0, 0, 0, 0xF)
	return append(b, make([]byte, 15)...)
}

func TestANALog(t *testing.T) {
	wire := anaWire()
	want := ANALog{CHGCNT: 7, Groups: []ANAGroup{
		{AGID: 1, CHGCNT: 5, State: ANAOptimized, NSIDs: []uint32{1, 3}},
		{AGID: 9, CHGCNT: 6, State: ANAChange},
	}}
	var l ANALog
	require.NoError(t, l.Decode(wire))
	require.Equal(t, want, l)
	require.Equal(t, wire, l.Append(nil))
	require.NoError(t, l.Decode(append(anaWire(), 1, 2, 3)), "a buffer may be longer than the page")
	require.Equal(t, want, l)

	require.NoError(t, l.Check(9))
	require.ErrorContains(t, l.Check(8), "group identifier 9 is not in 1 to ANAGRPMAX 8")
}

func TestANALogMalformed(t *testing.T) {
	var l ANALog
	for n := range len(anaWire()) {
		require.Error(t, l.Decode(anaWire()[:n]), "%d bytes", n)
	}
	set := func(off int, v uint32) []byte {
		b := anaWire()
		binary.LittleEndian.PutUint32(b[off:], v)
		return b
	}
	require.ErrorContains(t, l.Decode(set(16, 0)), "AGID 0")
	require.ErrorContains(t, l.Decode(set(32, 0)), "state 0")
	require.ErrorContains(t, l.Decode(set(20, 0xFFFFFFFF)), "ends within the 4294967295 NSIDs of group descriptor 1 of 2")
	require.ErrorContains(t, l.Decode(set(20, 0x40000000)), "NSIDs", "4 times this is 0 in 32 bits")
	require.ErrorContains(t, l.Decode(set(8, 0xFFFF)), "group descriptor 3 of 65535")
}

func TestANAStates(t *testing.T) {
	for s := range ANAState(16) {
		require.Equal(t, s == 1 || s == 2, s.Usable(), "state %d", s)
	}
	require.Equal(t, "persistent loss", ANAPersistentLoss.String())
	require.Equal(t, "reserved ANA state 0x5", ANAState(5).String())
}

func TestChangedNamespaces(t *testing.T) {
	c := ChangedNamespaces{NSIDs: []uint32{3, 9}}
	wire := c.Append(nil)
	require.Len(t, wire, ChangedNamespacesLen)
	require.Equal(t, []byte{3, 0, 0, 0, 9, 0, 0, 0, 0}, wire[:9])
	var got ChangedNamespaces
	require.NoError(t, got.Decode(wire))
	require.Equal(t, c, got)

	c.NSIDs = make([]uint32, 1025)
	wire = c.Append(nil)
	require.Equal(t, []byte{0xFF, 0xFF, 0xFF, 0xFF, 0, 0, 0, 0}, wire[:8])
	require.NoError(t, got.Decode(wire))
	require.True(t, got.Overflow)
	require.Empty(t, got.NSIDs)
}

func TestEffects(t *testing.T) {
	var l EffectsLog
	l.IO[OpWrite] = EffectsSupported | EffectsLBAContent | 2<<16
	wire := l.Append(nil)
	require.Equal(t, []byte{3, 0, 2, 0}, wire[1024+4:][:4])
	require.Equal(t, uint8(2), l.IO[OpWrite].CSE())

	var s SupportedLog
	s.LIDs[LIDANA] = 1
	require.True(t, s.Supports(LIDANA))
	require.False(t, s.Supports(LIDSMART))
}

func TestFirmwareLogEmptySlot(t *testing.T) {
	l := FirmwareLog{AFI: 1, FRS: [7]string{0: "1.0"}}
	wire := l.Append(nil)
	require.Equal(t, "1.0     ", string(wire[8:16]))
	require.Equal(t, make([]byte, 8), wire[16:24], "an empty slot is zero")
}

func TestErrorEntryStatusWithoutPhase(t *testing.T) {
	wire := make([]byte, ErrorEntryLen)
	wire[12] = 0x05
	var e ErrorEntry
	require.NoError(t, e.Decode(wire))
	require.ErrorIs(t, e.Status, StatusInvalidField)
	require.Equal(t, StatusInvalidField.Status(), e.Status)
}

func TestAsyncEvent(t *testing.T) {
	for dw0, c := range map[uint32]struct {
		want AsyncEvent
		text string
	}{
		0x00040002: {AsyncEvent{AsyncEventNotice, NoticeNamespaceAttribute, LIDChangedNamespaces}, "notice: namespace attribute changed"},
		0x000C0302: {AsyncEvent{AsyncEventNotice, NoticeANA, LIDANA}, "notice: asymmetric namespace access changed"},
		0x0070F002: {AsyncEvent{AsyncEventNotice, NoticeDiscoveryLog, LIDDiscovery}, "notice: discovery log changed"},
		0x00010300: {AsyncEvent{AsyncEventError, EventPersistentError, LIDErrorInformation}, "error: persistent internal error"},
		0x00020101: {AsyncEvent{AsyncEventSMART, EventTemperature, LIDSMART}, "health: temperature threshold"},
		0x00800006: {AsyncEvent{AsyncEventIOCS, EventReservationLog, LIDReservationNotification}, "reservation log page available"},
		0x00C0AA07: {AsyncEvent{AsyncEventVendor, 0xAA, 0xC0}, "event type 7 info 0xAA log page 0xC0"},
	} {
		got := ParseAsyncEvent(dw0)
		require.Equal(t, c.want, got)
		require.Equal(t, dw0, got.DW0())
		require.Equal(t, c.text, got.String())
	}
}

func TestTimestamp(t *testing.T) {
	ts := Timestamp{Milliseconds: 0x0102030405060708, Attributes: 0x0B}
	wire := ts.Append(nil)
	require.Equal(t, []byte{8, 7, 6, 5, 4, 3, 0x0B, 0}, wire)
	var got Timestamp
	require.NoError(t, got.Decode(wire))
	require.Equal(t, Timestamp{Milliseconds: 0x030405060708, Attributes: 0x0B}, got)
}
