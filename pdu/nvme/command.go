package nvme

// The functions of this file build the commands of commands.md: PSDT is set
// for SGLs, and CID and SGL are left to the queue that sends them.

// rw builds a command that names a range of blocks.
func rw(op Opcode, nsid uint32, slba uint64, nlb0 uint16) SQE {
	return SQE{
		Opcode: op, Flags: FlagSGL, NSID: nsid,
		CDW10: uint32(slba), CDW11: uint32(slba >> 32), CDW12: uint32(nlb0),
	}
}

// Read builds a Read of nlb0+1 blocks from slba.
func Read(nsid uint32, slba uint64, nlb0 uint16) SQE { return rw(OpRead, nsid, slba, nlb0) }

// Write builds a Write of nlb0+1 blocks from slba.
func Write(nsid uint32, slba uint64, nlb0 uint16) SQE { return rw(OpWrite, nsid, slba, nlb0) }

// Compare builds a Compare of nlb0+1 blocks from slba.
func Compare(nsid uint32, slba uint64, nlb0 uint16) SQE { return rw(OpCompare, nsid, slba, nlb0) }

// WriteZeroes builds a Write Zeroes of nlb0+1 blocks from slba; see [RWDEAC].
func WriteZeroes(nsid uint32, slba uint64, nlb0 uint16) SQE {
	return rw(OpWriteZeroes, nsid, slba, nlb0)
}

// Verify builds a Verify of nlb0+1 blocks from slba.
func Verify(nsid uint32, slba uint64, nlb0 uint16) SQE { return rw(OpVerify, nsid, slba, nlb0) }

// WriteUncorrectable builds a Write Uncorrectable of nlb0+1 blocks from slba.
func WriteUncorrectable(nsid uint32, slba uint64, nlb0 uint16) SQE {
	return rw(OpWriteUncorrectable, nsid, slba, nlb0)
}

// Bits of CDW12 of the commands above.
const (
	RWSTC      uint32 = 1 << 24 // storage tag check
	RWDEAC     uint32 = 1 << 25 // Write Zeroes: deallocate
	RWPRCHKRef uint32 = 1 << 26 // check the reference tag
	RWPRCHKApp uint32 = 1 << 27 // check the application tag
	RWPRCHKGrd uint32 = 1 << 28 // check the guard
	RWPRACT    uint32 = 1 << 29 // protection information is added and stripped by the controller
	RWFUA      uint32 = 1 << 30 // force unit access
	RWLR       uint32 = 1 << 31 // limited retry
)

// Flush builds a Flush of the namespace.
func Flush(nsid uint32) SQE { return SQE{Opcode: OpFlush, Flags: FlagSGL, NSID: nsid} }

// Attributes of Dataset Management (CDW11).
const (
	DSMIntegralRead  uint32 = 1 << 0 // IDR
	DSMIntegralWrite uint32 = 1 << 1 // IDW
	DSMDeallocate    uint32 = 1 << 2 // AD
)

// DatasetManagement builds a Dataset Management command for nr0+1 ranges, whose
// data are as many [DSMRange] structures.
func DatasetManagement(nsid uint32, nr0 uint8, attributes uint32) SQE {
	return SQE{Opcode: OpDatasetManagement, Flags: FlagSGL, NSID: nsid, CDW10: uint32(nr0), CDW11: attributes}
}

// Identify builds an Identify for the structure cns. cntid is 0 where the
// structure is not of another controller. The data is always 4096 bytes.
func Identify(cns CNS, nsid uint32, cntid uint16) SQE {
	return SQE{Opcode: OpIdentify, Flags: FlagSGL, NSID: nsid, CDW10: uint32(cntid)<<16 | uint32(cns)}
}

// IdentifyCSI builds an Identify for a structure of the I/O command set csi
// (CNS 05, 06, 07, 1A, 1B).
func IdentifyCSI(cns CNS, nsid uint32, csi CSI) SQE {
	s := Identify(cns, nsid, 0)
	s.CDW11 = uint32(csi) << 24
	return s
}

// GetLogPage builds a Get Log Page that reads the given number of dwords (at
// least 1) from a byte offset, which must be a multiple of 4. rae retains the
// asynchronous event that the page would clear. For the other fields see
// [LogRequest].
func GetLogPage(nsid uint32, lid LID, dwords uint32, offset uint64, rae bool) SQE {
	r := LogRequest{LID: lid, NUMD: max(dwords, 1) - 1, Offset: offset, RAE: rae}
	return r.SQE(nsid)
}

// A LogRequest is the parameters of a Get Log Page command.
type LogRequest struct {
	LID       LID
	LSP       uint8  // log specific parameter, 7 bits
	RAE       bool   // retain the asynchronous event
	NUMD      uint32 // dwords to read, 0's based
	LSI       uint16 // log specific identifier
	Offset    uint64 // LPO: bytes, or an index with OT
	UUIDIndex uint8  // 7 bits
	OT        bool   // the offset is an index
	CSI       CSI
}

// SQE builds the command.
func (r *LogRequest) SQE(nsid uint32) SQE {
	return SQE{
		Opcode: OpGetLogPage, Flags: FlagSGL, NSID: nsid,
		CDW10: r.NUMD<<16 | bit(r.RAE, 15) | uint32(r.LSP&0x7F)<<8 | uint32(r.LID),
		CDW11: uint32(r.LSI)<<16 | r.NUMD>>16,
		CDW12: uint32(r.Offset),
		CDW13: uint32(r.Offset >> 32),
		CDW14: uint32(r.CSI)<<24 | bit(r.OT, 23) | uint32(r.UUIDIndex&0x7F),
	}
}

// DecodeSQE reads the parameters from a Get Log Page command.
func (r *LogRequest) DecodeSQE(s *SQE) {
	*r = LogRequest{
		LID:       LID(s.CDW10),
		LSP:       uint8(s.CDW10>>8) & 0x7F,
		RAE:       s.CDW10&(1<<15) != 0,
		NUMD:      s.CDW11<<16 | s.CDW10>>16,
		LSI:       uint16(s.CDW11 >> 16),
		Offset:    uint64(s.CDW13)<<32 | uint64(s.CDW12),
		UUIDIndex: uint8(s.CDW14) & 0x7F,
		OT:        s.CDW14&(1<<23) != 0,
		CSI:       CSI(s.CDW14 >> 24),
	}
}

// Bytes returns the length of the data of the command.
func (r *LogRequest) Bytes() uint64 { return (uint64(r.NUMD) + 1) * 4 }

// SetFeatures builds a Set Features. save asks to keep the value over resets.
func SetFeatures(fid FID, nsid, cdw11 uint32, save bool) SQE {
	return SQE{
		Opcode: OpSetFeatures, Flags: FlagSGL, NSID: nsid,
		CDW10: bit(save, 31) | uint32(fid), CDW11: cdw11,
	}
}

// Selects which value Get Features returns.
const (
	SelectCurrent   uint8 = 0
	SelectDefault   uint8 = 1
	SelectSaved     uint8 = 2
	SelectSupported uint8 = 3 // the capabilities of the feature
)

// GetFeatures builds a Get Features; sel is one of the Select constants.
func GetFeatures(fid FID, nsid uint32, sel uint8) SQE {
	return SQE{
		Opcode: OpGetFeatures, Flags: FlagSGL, NSID: nsid,
		CDW10: uint32(sel&7)<<8 | uint32(fid),
	}
}

// AsyncEventRequest builds an Asynchronous Event Request, which stays
// outstanding until there is an event.
func AsyncEventRequest() SQE { return SQE{Opcode: OpAsyncEventRequest, Flags: FlagSGL} }

// KeepAlive builds a Keep Alive.
func KeepAlive() SQE { return SQE{Opcode: OpKeepAlive, Flags: FlagSGL} }

// Abort builds an Abort of the command cid of the queue sqid. Bit 0 of the
// result is 1 when that command was not aborted.
func Abort(sqid, cid uint16) SQE {
	return SQE{Opcode: OpAbort, Flags: FlagSGL, CDW10: uint32(cid)<<16 | uint32(sqid)}
}

func bit(set bool, n uint) uint32 {
	if set {
		return 1 << n
	}
	return 0
}
