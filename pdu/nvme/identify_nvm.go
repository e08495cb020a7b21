package nvme

// IdentifyNamespaceNVM is the NVM Command Set Identify Namespace data structure
// (CNS 05, CSI 0).
type IdentifyNamespaceNVM struct {
	LBSTM uint64                        // storage tag mask
	PIC   uint8                         // protection information capabilities
	ELBAF [LBAFormats]ExtendedLBAFormat // one for each LBA format
}

// Append adds the 4096 bytes of the structure to b.
func (n *IdentifyNamespaceNVM) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	n.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b.
func (n *IdentifyNamespaceNVM) Decode(b []byte) error {
	f, err := open("Identify Namespace, NVM command set", b, IdentifyLen)
	if err != nil {
		return err
	}
	n.fields(f)
	return nil
}

func (n *IdentifyNamespaceNVM) fields(f fields) {
	f.u64(0, &n.LBSTM)
	f.u8(8, &n.PIC)
	for i := range n.ELBAF {
		f.u32(12+4*i, (*uint32)(&n.ELBAF[i]))
	}
}

// An ExtendedLBAFormat tells more about an LBA format of the same index.
type ExtendedLBAFormat uint32

// STS returns the storage tag size in bits.
func (e ExtendedLBAFormat) STS() uint8 { return uint8(e & 0x7F) }

// PIF returns the protection information format: 0 16b guard, 1 32b, 2 64b,
// 3 qualified by QPIF.
func (e ExtendedLBAFormat) PIF() uint8 { return uint8(e >> 7 & 3) }

// QPIF returns the qualified protection information format.
func (e ExtendedLBAFormat) QPIF() uint8 { return uint8(e >> 9 & 0xF) }

// IdentifyControllerNVM is the NVM Command Set Identify Controller data structure
// (CNS 06, CSI 0). A limit of 0 is no limit reported.
type IdentifyControllerNVM struct {
	VSL   uint8  // Verify, log2 in units of 4096 bytes
	WZSL  uint8  // Write Zeroes, likewise
	WUSL  uint8  // Write Uncorrectable, likewise
	DMRL  uint8  // Dataset Management, ranges
	DMRSL uint32 // Dataset Management, logical blocks of one range
	DMSL  uint64 // Dataset Management, logical blocks of one command
}

// Append adds the 4096 bytes of the structure to b.
func (c *IdentifyControllerNVM) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	c.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b.
func (c *IdentifyControllerNVM) Decode(b []byte) error {
	f, err := open("Identify Controller, NVM command set", b, IdentifyLen)
	if err != nil {
		return err
	}
	c.fields(f)
	return nil
}

func (c *IdentifyControllerNVM) fields(f fields) {
	f.u8(0, &c.VSL)
	f.u8(1, &c.WZSL)
	f.u8(2, &c.WUSL)
	f.u8(3, &c.DMRL)
	f.u32(4, &c.DMRSL)
	f.u64(8, &c.DMSL)
}
