package nvme

import (
	"testing"

	"github.com/stretchr/testify/require"
)

const headerLen = 8 // the common header of a PDU; the entry follows it

func TestVectorSQE(t *testing.T) {
	fabrics := func(fctype uint32) SQE { return SQE{Opcode: OpFabrics, Flags: FlagSGL, NSID: fctype} }
	connect := fabrics(1)
	connect.CDW11, connect.CDW12 = 31, 120000
	connectIO := fabrics(1)
	connectIO.CDW10, connectIO.CDW11 = 1<<16, 127
	get := fabrics(4)
	get.CDW10 = 1
	set := fabrics(0)
	set.CDW11, set.CDW12 = 0x14, 0x00460001

	for _, c := range []struct {
		v    vector
		want SQE
		cid  uint16
		sgl  SGL
		dir  Direction
	}{
		{vecConnectAdmin, connect, 1, SGL{Length: 1024, ID: SGLInCapsule}, DirHostToController},
		{vecPropertyGet, get, 2, SGL{ID: SGLTransport}, DirNone},
		{vecPropertySet, set, 3, SGL{ID: SGLTransport}, DirNone},
		{vecIdentify, Identify(CNSController, 0, 0), 4, SGL{Length: 4096, ID: SGLTransport}, DirControllerToHost},
		{vecConnectIO, connectIO, 0x10, SGL{Length: 1024, ID: SGLInCapsule}, DirHostToController},
		{vecWriteR2T, Write(1, 0x100, 15), 0x11, SGL{Length: 8192, ID: SGLTransport}, DirHostToController},
		{vecWriteInCapsule, Write(1, 0x200, 0), 0x12, SGL{Length: 512, ID: SGLInCapsule}, DirHostToController},
		{vecRead, Read(1, 0x200, 0), 0x13, SGL{Length: 512, ID: SGLTransport}, DirControllerToHost},
	} {
		t.Run(c.v.name, func(t *testing.T) {
			wire := c.v.bytes(t)[headerLen:][:SQELen]
			c.want.CID, c.want.SGL = c.cid, c.sgl
			var got SQE
			require.NoError(t, got.Decode(wire))
			require.Equal(t, c.want, got)
			require.Equal(t, c.dir, got.Direction())
			require.Equal(t, wire, c.want.Append(nil))
		})
	}
}

func TestVectorCQE(t *testing.T) {
	for _, c := range []struct {
		v    vector
		want CQE
	}{
		{vecConnectResp, CQE{DW0: 1, SQHD: 1, CID: 1}},
		{vecCAP, CQE{DW0: 0x1E01007F, DW1: 0x08000020, SQHD: 2, CID: 2}},
		{vecPropertySetResp, CQE{SQHD: 3, CID: 3}},
		{vecConnectIOResp, CQE{DW0: 1, SQHD: 1, CID: 0x10}},
		{vecWriteR2TResp, CQE{SQHD: 2, CID: 0x11}},
		{vecWriteInCapsuleResp, CQE{SQHD: 3, CID: 0x12}},
		{vecReadResp, CQE{SQHD: 4, CID: 0x13}},
		{vecTransient, CQE{SQHD: 5, CID: 0x21, Status: StatusTransientTransportError.Status()}},
		{vecConnectInvalid, CQE{DW0: 0x00010100, SQHD: 0xFFFF, CID: 1, Status: 0x8304}},
	} {
		t.Run(c.v.name, func(t *testing.T) {
			wire := c.v.bytes(t)[headerLen:][:CQELen]
			var got CQE
			require.NoError(t, got.Decode(wire))
			require.Equal(t, c.want, got)
			require.Equal(t, wire, c.want.Append(nil))
		})
	}
	c := CQE{DW0: 0x1E01007F, DW1: 0x08000020}
	require.Equal(t, uint64(0x080000201E01007F), c.Result())
}

// Every field has a place of its own, and the entry takes no other bytes.
func TestSQEOffsets(t *testing.T) {
	for _, c := range []struct {
		off, n int
		s      SQE
	}{
		{0, 1, SQE{Opcode: 0xFF}},
		{1, 1, SQE{Flags: 0xFF}},
		{2, 2, SQE{CID: 0xFFFF}},
		{4, 4, SQE{NSID: 0xFFFFFFFF}},
		{8, 4, SQE{CDW2: 0xFFFFFFFF}},
		{12, 4, SQE{CDW3: 0xFFFFFFFF}},
		{16, 8, SQE{MPTR: 0xFFFFFFFFFFFFFFFF}},
		{24, 8, SQE{SGL: SGL{Address: 0xFFFFFFFFFFFFFFFF}}},
		{32, 4, SQE{SGL: SGL{Length: 0xFFFFFFFF}}},
		{39, 1, SQE{SGL: SGL{ID: 0xFF}}},
		{40, 4, SQE{CDW10: 0xFFFFFFFF}},
		{44, 4, SQE{CDW11: 0xFFFFFFFF}},
		{48, 4, SQE{CDW12: 0xFFFFFFFF}},
		{52, 4, SQE{CDW13: 0xFFFFFFFF}},
		{56, 4, SQE{CDW14: 0xFFFFFFFF}},
		{60, 4, SQE{CDW15: 0xFFFFFFFF}},
	} {
		want := make([]byte, SQELen)
		for i := range c.n {
			want[c.off+i] = 0xFF
		}
		require.Equal(t, want, c.s.Append(nil))
		var got SQE
		require.NoError(t, got.Decode(want))
		require.Equal(t, c.s, got)
	}
}

func TestShortEntries(t *testing.T) {
	var short *ShortError
	require.ErrorAs(t, new(SQE).Decode(make([]byte, SQELen-1)), &short)
	require.EqualError(t, short, "nvme: SQE needs 64 bytes, got 63")
	require.ErrorAs(t, new(CQE).Decode(make([]byte, CQELen-1)), &short)
	require.EqualError(t, short, "nvme: CQE needs 16 bytes, got 15")
}

// The phase tag means nothing on fabrics: whatever a target sends is no status.
func TestPhaseTagIgnored(t *testing.T) {
	wire := make([]byte, CQELen)
	wire[14] = 1
	var c CQE
	require.NoError(t, c.Decode(wire))
	require.True(t, c.Status.OK())
	c.Status = 1
	require.Equal(t, make([]byte, CQELen), c.Append(nil))
}

func TestEntriesDoNotAllocate(t *testing.T) {
	s, c := Read(1, 2, 3), CQE{DW0: 1, CID: 2}
	buf := make([]byte, 0, SQELen+CQELen)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		b := s.Append(buf)
		b = c.Append(b)
		if s.Decode(b) != nil || c.Decode(b[SQELen:]) != nil {
			panic("decode failed")
		}
	}))
	require.Equal(t, Read(1, 2, 3), s)
	require.Equal(t, CQE{DW0: 1, CID: 2}, c)
}

func BenchmarkSQEAppend(b *testing.B) {
	s := Read(1, 2, 3)
	buf := make([]byte, 0, SQELen)
	b.ReportAllocs()
	for b.Loop() {
		buf = s.Append(buf[:0])
	}
}

func BenchmarkCQEDecode(b *testing.B) {
	wire := (&CQE{DW0: 1, CID: 2}).Append(nil)
	var c CQE
	b.ReportAllocs()
	for b.Loop() {
		if err := c.Decode(wire); err != nil {
			b.Fatal(err)
		}
	}
}
