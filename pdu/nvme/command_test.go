package nvme

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestReadWriteCommands(t *testing.T) {
	for op, build := range map[Opcode]func(uint32, uint64, uint16) SQE{
		0x02: Read, 0x01: Write, 0x05: Compare, 0x08: WriteZeroes, 0x0C: Verify, 0x04: WriteUncorrectable,
	} {
		s := build(7, 0x1122334455667788, 0xFFFF)
		require.Equal(t, SQE{Opcode: op, Flags: 0x40, NSID: 7, CDW10: 0x55667788, CDW11: 0x11223344, CDW12: 0xFFFF}, s)
		require.Equal(t, uint64(0x1122334455667788), s.SLBA())
		require.Equal(t, uint32(65536), s.Blocks())
		s.CDW12 |= RWFUA | RWLR
		require.Equal(t, uint32(65536), s.Blocks(), "flags are not part of NLB")
	}
	s := Read(1, 0, 0)
	require.Equal(t, uint32(1), s.Blocks())
}

func TestOtherCommands(t *testing.T) {
	for name, c := range map[string]struct{ got, want SQE }{
		"flush":        {Flush(3), SQE{Opcode: 0x00, Flags: 0x40, NSID: 3}},
		"dsm":          {DatasetManagement(3, 255, DSMDeallocate), SQE{Opcode: 0x09, Flags: 0x40, NSID: 3, CDW10: 255, CDW11: 4}},
		"identify":     {Identify(CNSAttachedControllers, 3, 0xABCD), SQE{Opcode: 0x06, Flags: 0x40, NSID: 3, CDW10: 0xABCD0012}},
		"identify csi": {IdentifyCSI(CNSNamespaceIOCS, 3, CSIZNS), SQE{Opcode: 0x06, Flags: 0x40, NSID: 3, CDW10: 5, CDW11: 0x02000000}},
		"set features": {SetFeatures(FIDAsyncEventConfig, 0, 0x80000900, true), SQE{Opcode: 0x09, Flags: 0x40, CDW10: 0x8000000B, CDW11: 0x80000900}},
		"get features": {GetFeatures(FIDNumberOfQueues, 0, SelectSupported), SQE{Opcode: 0x0A, Flags: 0x40, CDW10: 0x307}},
		"aer":          {AsyncEventRequest(), SQE{Opcode: 0x0C, Flags: 0x40}},
		"keep alive":   {KeepAlive(), SQE{Opcode: 0x18, Flags: 0x40}},
		"abort":        {Abort(0x0102, 0xA0B0), SQE{Opcode: 0x08, Flags: 0x40, CDW10: 0xA0B00102}},
		"log": {
			GetLogPage(NSIDAll, LIDANA, 0x12346, 0x1122334455667788, true),
			SQE{Opcode: 0x02, Flags: 0x40, NSID: 0xFFFFFFFF, CDW10: 0x2345800C, CDW11: 1, CDW12: 0x55667788, CDW13: 0x11223344},
		},
		"log of nothing": {GetLogPage(0, LIDSMART, 0, 0, false), SQE{Opcode: 0x02, Flags: 0x40, CDW10: 2}},
	} {
		require.Equal(t, c.want, c.got, name)
	}
}

func TestLogRequest(t *testing.T) {
	r := LogRequest{LID: LIDPersistentEvent, LSP: 0x7F, RAE: true, NUMD: 0xFFFFFFFF, LSI: 0xABCD, Offset: 1 << 40, UUIDIndex: 0x7F, OT: true, CSI: CSIZNS}
	s := r.SQE(9)
	require.Equal(t, SQE{Opcode: 0x02, Flags: 0x40, NSID: 9, CDW10: 0xFFFFFF0D, CDW11: 0xABCDFFFF, CDW13: 1 << 8, CDW14: 0x0280007F}, s)
	var got LogRequest
	got.DecodeSQE(&s)
	require.Equal(t, r, got)
	require.Equal(t, uint64(1<<34), got.Bytes())

	s = GetLogPage(0, LIDDiscovery, 256, 1024, false)
	got.DecodeSQE(&s)
	require.Equal(t, LogRequest{LID: 0x70, NUMD: 255, Offset: 1024}, got)
	require.Equal(t, uint64(1024), got.Bytes())
}

// F15: the counts are 0's based in both halves, both ways.
func TestF15NumberOfQueues(t *testing.T) {
	for _, c := range []struct {
		sqs, cqs int
		want     uint32
	}{
		{1, 1, 0},
		{4, 4, 0x00030003},
		{2, 5, 0x00040001},
		{65535, 65535, 0xFFFEFFFE},
		{0, -1, 0},
		{65536, 1 << 30, 0xFFFEFFFE}, // FFFFh is not valid in a request
	} {
		require.Equal(t, c.want, NumberOfQueues(c.sqs, c.cqs))
	}
	sqs, cqs := ParseNumberOfQueues(0x007F003E)
	require.Equal(t, 63, sqs)
	require.Equal(t, 128, cqs)
	sqs, cqs = ParseNumberOfQueues(0xFFFFFFFF)
	require.Equal(t, 65536, sqs)
	require.Equal(t, 65536, cqs)
}

func TestOpcodeDirections(t *testing.T) {
	for d, ops := range map[Direction][]Opcode{
		DirNone:             {OpFlush, OpWriteUncorrectable, OpWriteZeroes, OpVerify, OpAbort, OpKeepAlive, OpAsyncEventRequest},
		DirHostToController: {OpWrite, OpCompare, OpDatasetManagement, OpCopy, OpReservationRegister, OpReservationAcquire, OpReservationRelease, OpSetFeatures, OpSecuritySend},
		DirControllerToHost: {OpRead, OpReservationReport, OpIdentify, OpGetLogPage, OpGetFeatures, OpSecurityReceive},
	} {
		for _, op := range ops {
			require.Equal(t, d, op.Direction(), "opcode 0x%02X", uint8(op))
		}
	}
	for fctype, d := range map[uint32]Direction{
		0x00: DirNone, 0x01: DirHostToController, 0x04: DirNone, 0x05: DirHostToController, 0x06: DirControllerToHost, 0x08: DirNone,
		0xABCDEF02: DirControllerToHost, // bytes 5 to 7 are reserved
	} {
		s := SQE{Opcode: OpFabrics, NSID: fctype}
		require.Equal(t, d, s.Direction(), "FCTYPE 0x%02X", fctype)
	}
}

func TestOpcodeNames(t *testing.T) {
	require.Equal(t, "Identify", OpIdentify.AdminName())
	require.Equal(t, "Delete I/O Submission Queue", Opcode(0).AdminName())
	require.Equal(t, "Flush", Opcode(0).NVMName())
	require.Equal(t, "Keep Alive", Opcode(0x18).AdminName())
	require.Equal(t, "Cancel", Opcode(0x18).NVMName())
	require.Equal(t, "Fabrics", OpFabrics.AdminName())
	require.Equal(t, "Fabrics", OpFabrics.NVMName())
	require.Equal(t, "vendor specific admin opcode 0xC1", Opcode(0xC1).AdminName())
	require.Equal(t, "admin opcode 0x03", Opcode(3).AdminName())
	require.Equal(t, "vendor specific I/O opcode 0x80", Opcode(0x80).NVMName())
	require.Equal(t, "I/O opcode 0x03", Opcode(3).NVMName())
}
