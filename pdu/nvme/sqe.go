package nvme

import "encoding/binary"

// SQELen is the length of a submission queue entry in bytes.
const SQELen = 64

// SGL identifiers that are valid on NVMe/TCP (byte 39 of the SQE).
const (
	SGLInCapsule = 0x01 // data block, offset: the data is in this capsule
	SGLTransport = 0x5A // transport data block: the data moves by C2HData or R2T and H2CData
)

// An SGL is the one descriptor of a submission queue entry (SGL1).
type SGL struct {
	Address uint64 // 0 on NVMe/TCP
	Length  uint32 // bytes of the command's data
	ID      uint8  // type in bits 7:4, subtype in bits 3:0
}

// Bits of the second byte of a submission queue entry.
const (
	FlagFuseFirst  = 0x01 // first command of a fused pair
	FlagFuseSecond = 0x02 // second command of a fused pair
	FlagFuseMask   = 0x03
	FlagSGL        = 0x40 // PSDT 01b: SGL, MPTR a contiguous buffer; the only value for NVMe/TCP
	FlagPSDTMask   = 0xC0
)

// NSIDAll is the broadcast namespace identifier.
const NSIDAll uint32 = 0xFFFFFFFF

// An SQE is a submission queue entry: one command.
type SQE struct {
	Opcode Opcode
	Flags  uint8  // FUSE and PSDT; [FlagSGL] on NVMe/TCP
	CID    uint16 // command identifier, unique among the queue's outstanding commands
	NSID   uint32 // 0 when not used; FCTYPE in bits 7:0 of a fabrics command
	CDW2   uint32
	CDW3   uint32
	MPTR   uint64 // 0 on NVMe/TCP
	SGL    SGL
	CDW10  uint32
	CDW11  uint32
	CDW12  uint32
	CDW13  uint32
	CDW14  uint32
	CDW15  uint32
}

// Append adds the 64 bytes of the entry to b.
func (s *SQE) Append(b []byte) []byte {
	var w [SQELen]byte
	w[0] = byte(s.Opcode)
	w[1] = s.Flags
	binary.LittleEndian.PutUint16(w[2:], s.CID)
	binary.LittleEndian.PutUint32(w[4:], s.NSID)
	binary.LittleEndian.PutUint32(w[8:], s.CDW2)
	binary.LittleEndian.PutUint32(w[12:], s.CDW3)
	binary.LittleEndian.PutUint64(w[16:], s.MPTR)
	binary.LittleEndian.PutUint64(w[24:], s.SGL.Address)
	binary.LittleEndian.PutUint32(w[32:], s.SGL.Length)
	w[39] = s.SGL.ID
	binary.LittleEndian.PutUint32(w[40:], s.CDW10)
	binary.LittleEndian.PutUint32(w[44:], s.CDW11)
	binary.LittleEndian.PutUint32(w[48:], s.CDW12)
	binary.LittleEndian.PutUint32(w[52:], s.CDW13)
	binary.LittleEndian.PutUint32(w[56:], s.CDW14)
	binary.LittleEndian.PutUint32(w[60:], s.CDW15)
	return append(b, w[:]...)
}

// Decode reads the entry from the first 64 bytes of b.
func (s *SQE) Decode(b []byte) error {
	if err := need("SQE", b, SQELen); err != nil {
		return err
	}
	b = b[:SQELen]
	s.Opcode = Opcode(b[0])
	s.Flags = b[1]
	s.CID = binary.LittleEndian.Uint16(b[2:])
	s.NSID = binary.LittleEndian.Uint32(b[4:])
	s.CDW2 = binary.LittleEndian.Uint32(b[8:])
	s.CDW3 = binary.LittleEndian.Uint32(b[12:])
	s.MPTR = binary.LittleEndian.Uint64(b[16:])
	s.SGL.Address = binary.LittleEndian.Uint64(b[24:])
	s.SGL.Length = binary.LittleEndian.Uint32(b[32:])
	s.SGL.ID = b[39]
	s.CDW10 = binary.LittleEndian.Uint32(b[40:])
	s.CDW11 = binary.LittleEndian.Uint32(b[44:])
	s.CDW12 = binary.LittleEndian.Uint32(b[48:])
	s.CDW13 = binary.LittleEndian.Uint32(b[52:])
	s.CDW14 = binary.LittleEndian.Uint32(b[56:])
	s.CDW15 = binary.LittleEndian.Uint32(b[60:])
	return nil
}

// Direction tells which way the command's data goes. It is in the opcode, or
// for a fabrics command in its FCTYPE. A command may still have no data
// (SGL length 0).
func (s *SQE) Direction() Direction {
	if s.Opcode == OpFabrics {
		return Direction(s.NSID & 3)
	}
	return s.Opcode.Direction()
}

// SLBA returns the starting LBA of a Read, Write, Compare, Write Zeroes, Verify
// or Write Uncorrectable command (CDW10 and CDW11).
func (s *SQE) SLBA() uint64 { return uint64(s.CDW11)<<32 | uint64(s.CDW10) }

// Blocks returns the number of logical blocks of those commands: 1 to 65536,
// the 0's based NLB plus one.
func (s *SQE) Blocks() uint32 { return s.CDW12&0xFFFF + 1 }
