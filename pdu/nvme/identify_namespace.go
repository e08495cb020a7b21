package nvme

import (
	"fmt"
	"math/bits"
)

// LBAFormats is the number of LBA formats that Identify Namespace has room for.
const LBAFormats = 64

// IdentifyNamespace is the Identify Namespace data structure (CNS 00, 11). All
// of it is zero for an NSID that is not active. Vendor specific bytes are not
// kept.
type IdentifyNamespace struct {
	NSZE     uint64                // size, logical blocks
	NCAP     uint64                // capacity, logical blocks
	NUSE     uint64                // utilization, logical blocks
	NSFEAT   uint8                 // features, see the NSFEAT constants
	NLBAF    uint8                 // LBA formats, 0's based
	FLBAS    uint8                 // formatted LBA size, see [IdentifyNamespace.FormatIndex]
	MC       uint8                 // metadata capabilities: bit 0 extended LBA, bit 1 separate buffer
	DPC      uint8                 // protection capabilities: bits 2:0 types 1 to 3, bit 3 PI first, bit 4 PI last
	DPS      uint8                 // protection settings: bits 2:0 type (0 off), bit 3 PI at the start of the metadata
	NMIC     uint8                 // multi-path and sharing, bit 0 shared
	RESCAP   uint8                 // reservation capabilities
	FPI      uint8                 // format progress
	DLFEAT   uint8                 // deallocation: bits 2:0 what reads return (1 zeros, 2 ones), bit 3 Write Zeroes deallocates
	NAWUN    uint16                // atomic write unit, logical blocks, 0's based
	NAWUPF   uint16                // atomic write unit over power failures, logical blocks, 0's based
	NACWU    uint16                // atomic compare and write unit, logical blocks, 0's based
	NABSN    uint16                // atomic boundary size, logical blocks, 0's based
	NABO     uint16                // atomic boundary offset, logical blocks
	NABSPF   uint16                // atomic boundary size over power failures, logical blocks, 0's based
	NOIOB    uint16                // optimal I/O boundary, logical blocks
	NVMCAP   Uint128               // capacity, bytes
	NPWG     uint16                // preferred write granularity, logical blocks, 0's based
	NPWA     uint16                // preferred write alignment, logical blocks, 0's based
	NPDG     uint16                // preferred deallocate granularity, logical blocks, 0's based
	NPDA     uint16                // preferred deallocate alignment, logical blocks, 0's based
	NOWS     uint16                // optimal write size, logical blocks, 0's based
	MSSRL    uint16                // Copy: logical blocks of one source range
	MCL      uint32                // Copy: logical blocks of all source ranges
	MSRC     uint8                 // Copy: source ranges, 0's based
	ANAGRPID uint32                // ANA group identifier
	NSATTR   uint8                 // attributes, bit 0 write protected
	NVMSETID uint16                // NVM set identifier
	ENDGID   uint16                // endurance group identifier
	NGUID    [16]byte              // globally unique identifier, big-endian; zero = none
	EUI64    [8]byte               // IEEE extended unique identifier, big-endian; zero = none
	LBAF     [LBAFormats]LBAFormat // LBA formats
}

// An LBAFormat is one entry of the table of LBA formats.
type LBAFormat struct {
	MS    uint16 // metadata, bytes per logical block
	LBADS uint8  // log2 of the bytes of a logical block, at least 9; 0 = not available
	RP    uint8  // relative performance, 0 (best) to 3
}

// Append adds the 4096 bytes of the structure to b.
func (n *IdentifyNamespace) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	n.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b.
func (n *IdentifyNamespace) Decode(b []byte) error {
	f, err := open("Identify Namespace", b, IdentifyLen)
	if err != nil {
		return err
	}
	n.fields(f)
	return nil
}

func (n *IdentifyNamespace) fields(f fields) {
	f.u64(0, &n.NSZE)
	f.u64(8, &n.NCAP)
	f.u64(16, &n.NUSE)
	f.u8(24, &n.NSFEAT)
	f.u8(25, &n.NLBAF)
	f.u8(26, &n.FLBAS)
	f.u8(27, &n.MC)
	f.u8(28, &n.DPC)
	f.u8(29, &n.DPS)
	f.u8(30, &n.NMIC)
	f.u8(31, &n.RESCAP)
	f.u8(32, &n.FPI)
	f.u8(33, &n.DLFEAT)
	f.u16(34, &n.NAWUN)
	f.u16(36, &n.NAWUPF)
	f.u16(38, &n.NACWU)
	f.u16(40, &n.NABSN)
	f.u16(42, &n.NABO)
	f.u16(44, &n.NABSPF)
	f.u16(46, &n.NOIOB)
	f.u128(48, &n.NVMCAP)
	f.u16(64, &n.NPWG)
	f.u16(66, &n.NPWA)
	f.u16(68, &n.NPDG)
	f.u16(70, &n.NPDA)
	f.u16(72, &n.NOWS)
	f.u16(74, &n.MSSRL)
	f.u32(76, &n.MCL)
	f.u8(80, &n.MSRC)
	f.u32(92, &n.ANAGRPID)
	f.u8(99, &n.NSATTR)
	f.u16(100, &n.NVMSETID)
	f.u16(102, &n.ENDGID)
	f.raw(104, n.NGUID[:])
	f.raw(120, n.EUI64[:])
	for i := range n.LBAF {
		l := &n.LBAF[i]
		f.u16(128+4*i, &l.MS)
		f.u8(128+4*i+2, &l.LBADS)
		rp := l.RP & 3
		f.u8(128+4*i+3, &rp)
		if f.decode {
			l.RP = rp & 3
		}
	}
}

// FormatIndex returns the index of the LBA format in use: FLBAS bits 3:0, with
// bits 6:5 above them.
func (n *IdentifyNamespace) FormatIndex() int {
	return int(n.FLBAS&0x0F | n.FLBAS>>1&0x30)
}

// Format returns the LBA format in use.
func (n *IdentifyNamespace) Format() LBAFormat { return n.LBAF[n.FormatIndex()] }

// BlockSize returns the bytes of data in a logical block, without metadata, or
// 0 when the format is not valid: below 512 bytes, or above 2 GiB.
func (n *IdentifyNamespace) BlockSize() uint32 {
	ds := n.Format().LBADS
	if ds < 9 || ds > 31 {
		return 0
	}
	return 1 << ds
}

// MetadataSize returns the bytes of metadata of a logical block.
func (n *IdentifyNamespace) MetadataSize() int { return int(n.Format().MS) }

// ExtendedLBA tells whether metadata is interleaved: it follows the data of
// each block in the same buffer. Without it, metadata has a buffer of its own,
// which NVMe/TCP cannot transfer.
func (n *IdentifyNamespace) ExtendedLBA() bool { return n.FLBAS&(1<<4) != 0 && n.MetadataSize() != 0 }

// Bytes returns the size of the namespace in bytes without metadata, or an error
// when the format is not valid or the size is more than 63 bits hold.
func (n *IdentifyNamespace) Bytes() (int64, error) {
	bs := n.BlockSize()
	if bs == 0 {
		return 0, fmt.Errorf("nvme: Identify Namespace: LBA format %d has LBADS %d, valid are 9 to 31", n.FormatIndex(), n.Format().LBADS)
	}
	hi, lo := bits.Mul64(n.NSZE, uint64(bs))
	if hi != 0 || lo>>63 != 0 {
		return 0, fmt.Errorf("nvme: Identify Namespace: NSZE of %d blocks of %d bytes is beyond 2^63 bytes", n.NSZE, bs)
	}
	return int64(lo), nil
}

// Bits of NSFEAT.
const (
	NSFEATThin             uint8 = 1 << 0
	NSFEATAtomics          uint8 = 1 << 1 // NAWUN, NAWUPF, NACWU are valid
	NSFEATDeallocatedError uint8 = 1 << 2
	NSFEATIDsNotReused     uint8 = 1 << 3
	NSFEATOPTPERF          uint8 = 3 << 4 // NPWG to NOWS are valid
)
