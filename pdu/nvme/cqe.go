package nvme

import "encoding/binary"

// CQELen is the length of a completion queue entry in bytes.
const CQELen = 16

// SQHDFlowControlDisabled is the SQHD of a Connect response that says that SQ
// flow control is off on this queue.
const SQHDFlowControlDisabled = 0xFFFF

// A CQE is a completion queue entry: the end of one command.
type CQE struct {
	DW0    uint32 // command specific result
	DW1    uint32 // command specific result; high half of a Property Get value
	SQHD   uint16 // submission queue head; ignored when SQ flow control is off
	SQID   uint16 // reserved on fabrics
	CID    uint16 // of the command that ended
	Status Status
}

// Append adds the 16 bytes of the entry to b, with phase tag 0.
func (c *CQE) Append(b []byte) []byte {
	var w [CQELen]byte
	binary.LittleEndian.PutUint32(w[0:], c.DW0)
	binary.LittleEndian.PutUint32(w[4:], c.DW1)
	binary.LittleEndian.PutUint16(w[8:], c.SQHD)
	binary.LittleEndian.PutUint16(w[10:], c.SQID)
	binary.LittleEndian.PutUint16(w[12:], c.CID)
	binary.LittleEndian.PutUint16(w[14:], uint16(c.Status&^statusPhase))
	return append(b, w[:]...)
}

// Decode reads the entry from the first 16 bytes of b. The phase tag means
// nothing on fabrics and is dropped.
func (c *CQE) Decode(b []byte) error {
	if err := need("CQE", b, CQELen); err != nil {
		return err
	}
	b = b[:CQELen]
	c.DW0 = binary.LittleEndian.Uint32(b[0:])
	c.DW1 = binary.LittleEndian.Uint32(b[4:])
	c.SQHD = binary.LittleEndian.Uint16(b[8:])
	c.SQID = binary.LittleEndian.Uint16(b[10:])
	c.CID = binary.LittleEndian.Uint16(b[12:])
	c.Status = Status(binary.LittleEndian.Uint16(b[14:])) &^ statusPhase
	return nil
}

// Result returns DW1:DW0, the 64-bit result of a Property Get.
func (c *CQE) Result() uint64 { return uint64(c.DW1)<<32 | uint64(c.DW0) }
