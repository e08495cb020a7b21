package nvme

import (
	"fmt"
	"math"
)

// IdentifyController is the Identify Controller data structure (CNS 01). Vendor
// specific bytes are not kept.
type IdentifyController struct {
	VID       uint16         // PCI vendor identifier
	SSVID     uint16         // PCI subsystem vendor identifier
	SN        string         // serial number
	MN        string         // model number
	FR        string         // firmware revision
	RAB       uint8          // recommended arbitration burst
	IEEE      [3]byte        // OUI of the vendor, little-endian as on the wire
	CMIC      uint8          // multi-path and sharing capabilities, see the CMIC constants
	MDTS      uint8          // maximum data transfer size, see [IdentifyController.MaxTransfer]
	CNTLID    uint16         // controller identifier, that of the Connect response
	VER       uint32         // version, as the property VS
	RTD3R     uint32         // RTD3 resume latency, µs
	RTD3E     uint32         // RTD3 entry latency, µs: how long a shutdown may take
	OAES      uint32         // optional asynchronous events, the bits of the AEC constants
	CTRATT    uint32         // controller attributes, see the CTRATT constants
	RRLS      uint16         // read recovery levels
	CNTRLTYPE ControllerType // controller type
	FGUID     [16]byte       // FRU globally unique identifier
	CRDT1     uint16         // command retry delay for CRD 1, units of 100 ms
	CRDT2     uint16         // command retry delay for CRD 2, units of 100 ms
	CRDT3     uint16         // command retry delay for CRD 3, units of 100 ms
	OACS      uint16         // optional admin commands, see the OACS constants
	ACL       uint8          // concurrent Aborts, 0's based
	AERL      uint8          // outstanding Asynchronous Event Requests, 0's based
	FRMW      uint8          // firmware updates
	LPA       uint8          // log page attributes, see the LPA constants
	ELPE      uint8          // error log entries, 0's based
	NPSS      uint8          // power states, 0's based
	AVSCC     uint8          // admin vendor specific command format
	APSTA     uint8          // autonomous power state transitions
	WCTEMP    uint16         // warning temperature, K
	CCTEMP    uint16         // critical temperature, K
	MTFA      uint16         // maximum time for firmware activation, units of 100 ms
	HMPRE     uint32         // host memory buffer preferred size, units of 4 KiB
	HMMIN     uint32         // host memory buffer minimum size, units of 4 KiB
	TNVMCAP   Uint128        // total capacity, bytes
	UNVMCAP   Uint128        // unallocated capacity, bytes
	RPMBS     uint32         // replay protected memory block
	EDSTT     uint16         // extended self-test time, minutes
	DSTO      uint8          // self-test options
	FWUG      uint8          // firmware update granularity, units of 4 KiB
	KAS       uint16         // keep alive granularity, units of 100 ms; 0 = no keep alive
	HCTMA     uint16         // host controlled thermal management
	MNTMT     uint16         // minimum thermal management temperature, K
	MXTMT     uint16         // maximum thermal management temperature, K
	SANICAP   uint32         // sanitize capabilities
	HMMINDS   uint32         // host memory buffer minimum descriptor size, units of 4 KiB
	HMMAXD    uint16         // host memory maximum descriptors
	NSETIDMAX uint16         // highest NVM set identifier
	ENDGIDMAX uint16         // highest endurance group identifier
	ANATT     uint8          // longest time that an ANA group is in the change state, seconds
	ANACAP    uint8          // ANA capabilities, see the ANACAP constants
	ANAGRPMAX uint32         // highest ANA group identifier
	NANAGRPID uint32         // number of ANA groups
	PELS      uint32         // persistent event log size, units of 64 KiB
	DOMAINID  uint16         // domain identifier
	MEGCAP    Uint128        // maximum endurance group capacity, bytes
	SQES      uint8          // submission queue entry size, log2: minimum in bits 3:0, maximum in 7:4; 0x66
	CQES      uint8          // completion queue entry size, likewise; 0x44
	MAXCMD    uint16         // outstanding commands per I/O queue; 0 = not given
	NN        uint32         // highest NSID
	ONCS      uint16         // optional NVM commands, see the ONCS constants
	FUSES     uint16         // fused operations, bit 0 Compare and Write
	FNA       uint8          // format attributes
	VWC       uint8          // volatile write cache, see the VWC constants
	AWUN      uint16         // atomic write unit, logical blocks, 0's based
	AWUPF     uint16         // atomic write unit over power failures, logical blocks, 0's based
	NVSCC     uint8          // I/O vendor specific command format (ICSVSCC)
	NWPC      uint8          // namespace write protection capabilities
	ACWU      uint16         // atomic compare and write unit, logical blocks, 0's based
	CDFS      uint16         // copy descriptor formats supported, bit n = format n (OCFS)
	SGLS      uint32         // SGL support, see the SGLS constants
	MNAN      uint32         // namespaces allowed at most; 0 = NN
	MAXDNA    Uint128        // maximum domain namespace attachments
	MAXCNA    uint32         // maximum I/O controller namespace attachments
	SUBNQN    string         // NVM subsystem qualified name
	IOCCSZ    uint32         // I/O command capsule size, units of 16 bytes, see [IdentifyController.InCapsuleBytes]
	IORCSZ    uint32         // I/O response capsule size, units of 16 bytes
	ICDOFF    uint16         // in-capsule data offset, units of 16 bytes; 0 on NVMe/TCP
	FCATT     uint8          // fabrics controller attributes, bit 0: 0 dynamic, 1 static controllers
	MSDBD     uint8          // SGL data block descriptors per command; 0 = no limit
	OFCS      uint16         // optional fabrics commands, bit 0 Disconnect
	DCTYPE    uint8          // type of a discovery controller
	PSD       [32][32]byte   // power state descriptors
}

// Append adds the 4096 bytes of the structure to b. Strings longer than their
// fields (SN 20, MN 40, FR 8, SUBNQN 255 bytes) are cut.
func (c *IdentifyController) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	c.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b. The strings come
// without padding but otherwise as sent: quote them when they are shown.
func (c *IdentifyController) Decode(b []byte) error {
	f, err := open("Identify Controller", b, IdentifyLen)
	if err != nil {
		return err
	}
	c.fields(f)
	return nil
}

func (c *IdentifyController) fields(f fields) {
	f.u16(0, &c.VID)
	f.u16(2, &c.SSVID)
	f.ascii(4, 20, &c.SN)
	f.ascii(24, 40, &c.MN)
	f.ascii(64, 8, &c.FR)
	f.u8(72, &c.RAB)
	f.raw(73, c.IEEE[:])
	f.u8(76, &c.CMIC)
	f.u8(77, &c.MDTS)
	f.u16(78, &c.CNTLID)
	f.u32(80, &c.VER)
	f.u32(84, &c.RTD3R)
	f.u32(88, &c.RTD3E)
	f.u32(92, &c.OAES)
	f.u32(96, &c.CTRATT)
	f.u16(100, &c.RRLS)
	f.u8(111, (*uint8)(&c.CNTRLTYPE))
	f.raw(112, c.FGUID[:])
	f.u16(128, &c.CRDT1)
	f.u16(130, &c.CRDT2)
	f.u16(132, &c.CRDT3)
	f.u16(256, &c.OACS)
	f.u8(258, &c.ACL)
	f.u8(259, &c.AERL)
	f.u8(260, &c.FRMW)
	f.u8(261, &c.LPA)
	f.u8(262, &c.ELPE)
	f.u8(263, &c.NPSS)
	f.u8(264, &c.AVSCC)
	f.u8(265, &c.APSTA)
	f.u16(266, &c.WCTEMP)
	f.u16(268, &c.CCTEMP)
	f.u16(270, &c.MTFA)
	f.u32(272, &c.HMPRE)
	f.u32(276, &c.HMMIN)
	f.u128(280, &c.TNVMCAP)
	f.u128(296, &c.UNVMCAP)
	f.u32(312, &c.RPMBS)
	f.u16(316, &c.EDSTT)
	f.u8(318, &c.DSTO)
	f.u8(319, &c.FWUG)
	f.u16(320, &c.KAS)
	f.u16(322, &c.HCTMA)
	f.u16(324, &c.MNTMT)
	f.u16(326, &c.MXTMT)
	f.u32(328, &c.SANICAP)
	f.u32(332, &c.HMMINDS)
	f.u16(336, &c.HMMAXD)
	f.u16(338, &c.NSETIDMAX)
	f.u16(340, &c.ENDGIDMAX)
	f.u8(342, &c.ANATT)
	f.u8(343, &c.ANACAP)
	f.u32(344, &c.ANAGRPMAX)
	f.u32(348, &c.NANAGRPID)
	f.u32(352, &c.PELS)
	f.u16(356, &c.DOMAINID)
	f.u128(368, &c.MEGCAP)
	f.u8(512, &c.SQES)
	f.u8(513, &c.CQES)
	f.u16(514, &c.MAXCMD)
	f.u32(516, &c.NN)
	f.u16(520, &c.ONCS)
	f.u16(522, &c.FUSES)
	f.u8(524, &c.FNA)
	f.u8(525, &c.VWC)
	f.u16(526, &c.AWUN)
	f.u16(528, &c.AWUPF)
	f.u8(530, &c.NVSCC)
	f.u8(531, &c.NWPC)
	f.u16(532, &c.ACWU)
	f.u16(534, &c.CDFS)
	f.u32(536, &c.SGLS)
	f.u32(540, &c.MNAN)
	f.u128(544, &c.MAXDNA)
	f.u32(560, &c.MAXCNA)
	f.cstring(768, 255, &c.SUBNQN) // the 256th byte is a NUL
	f.u32(1792, &c.IOCCSZ)
	f.u32(1796, &c.IORCSZ)
	f.u16(1800, &c.ICDOFF)
	f.u8(1802, &c.FCATT)
	f.u8(1803, &c.MSDBD)
	f.u16(1804, &c.OFCS)
	f.u8(1806, &c.DCTYPE)
	for i := range c.PSD {
		f.raw(2048+32*i, c.PSD[i][:])
	}
}

// MaxTransfer returns the most data that one command may move, in bytes; 0 is
// no limit. The unit is taken as 4096 bytes, the smallest that CAP.MPSMIN can
// give. A value beyond what 64 bits hold limits nothing and counts as no limit.
func (c *IdentifyController) MaxTransfer() uint64 {
	const unit = 12 // log2 of 4096
	if c.MDTS == 0 || c.MDTS > 63-unit {
		return 0
	}
	return 1 << (unit + c.MDTS)
}

// InCapsuleBytes returns how much data a command capsule of an I/O queue may
// carry: IOCCSZ*16 - 64, never below 0 nor above 2 GiB - 1. The value is the
// controller's word; a caller that sets memory aside for it wants its own bound.
func (c *IdentifyController) InCapsuleBytes() int {
	n := int64(c.IOCCSZ)*16 - SQELen
	return int(min(max(n, 0), math.MaxInt32))
}

// ANALogBytes returns the greatest length of the ANA log page in bytes:
// 16 + NANAGRPID*32 + 4 for each namespace that there may be.
func (c *IdentifyController) ANALogBytes() uint64 {
	n := c.MNAN
	if n == 0 {
		n = c.NN
	}
	return anaHeaderLen + uint64(c.NANAGRPID)*anaGroupLen + uint64(n)*4
}

// Bits of CMIC.
const (
	CMICMultiPort       uint8 = 1 << 0
	CMICMultiController uint8 = 1 << 1
	CMICSRIOV           uint8 = 1 << 2
	CMICANA             uint8 = 1 << 3 // ANA reporting
)

// ControllerType is the value of CNTRLTYPE.
type ControllerType uint8

// Controller types.
const (
	ControllerTypeNotReported ControllerType = 0
	ControllerTypeIO          ControllerType = 1
	ControllerTypeDiscovery   ControllerType = 2
	ControllerTypeAdmin       ControllerType = 3
)

// String names the controller type.
func (t ControllerType) String() string {
	switch t {
	case ControllerTypeNotReported:
		return "not reported"
	case ControllerTypeIO:
		return "I/O controller"
	case ControllerTypeDiscovery:
		return "discovery controller"
	case ControllerTypeAdmin:
		return "administrative controller"
	}
	return fmt.Sprintf("controller type %d", uint8(t))
}

// Bits of CTRATT.
const (
	CTRATTHostID128          uint32 = 1 << 0
	CTRATTNonOpPermissive    uint32 = 1 << 1
	CTRATTNVMSets            uint32 = 1 << 2
	CTRATTReadRecovery       uint32 = 1 << 3
	CTRATTEnduranceGroups    uint32 = 1 << 4
	CTRATTPredictableLatency uint32 = 1 << 5
	CTRATTTBKAS              uint32 = 1 << 6 // traffic based keep alive
	CTRATTGranularity        uint32 = 1 << 7
	CTRATTSQAssociations     uint32 = 1 << 8
	CTRATTUUIDList           uint32 = 1 << 9
	CTRATTMultiDomain        uint32 = 1 << 10
	CTRATTFixedCapacity      uint32 = 1 << 11
	CTRATTVariableCapacity   uint32 = 1 << 12
	CTRATTDeleteEG           uint32 = 1 << 13
	CTRATTDeleteNVMSet       uint32 = 1 << 14
	CTRATTELBAS              uint32 = 1 << 15 // extended LBA formats
	CTRATTMDTSNoMetadata     uint32 = 1 << 16 // MDTS and size limits exclude metadata
	CTRATTFDP                uint32 = 1 << 19
)

// Bits of OACS.
const (
	OACSSecurity       uint16 = 1 << 0
	OACSFormat         uint16 = 1 << 1
	OACSFirmware       uint16 = 1 << 2
	OACSNSManagement   uint16 = 1 << 3
	OACSSelfTest       uint16 = 1 << 4
	OACSDirectives     uint16 = 1 << 5
	OACSMI             uint16 = 1 << 6
	OACSVirtualization uint16 = 1 << 7
	OACSDoorbell       uint16 = 1 << 8
	OACSLBAStatus      uint16 = 1 << 9
	OACSLockdown       uint16 = 1 << 10
)

// Bits of LPA.
const (
	LPASMARTPerNS      uint8 = 1 << 0
	LPAEffects         uint8 = 1 << 1
	LPAExtended        uint8 = 1 << 2 // offset and 32-bit NUMD in Get Log Page
	LPATelemetry       uint8 = 1 << 3
	LPAPersistentEvent uint8 = 1 << 4
	LPASupportedPages  uint8 = 1 << 5 // pages 00, 05, 12, 13
	LPATelemetryArea4  uint8 = 1 << 6
)

// Bits of ANACAP.
const (
	ANACAPOptimized      uint8 = 1 << 0
	ANACAPNonOptimized   uint8 = 1 << 1
	ANACAPInaccessible   uint8 = 1 << 2
	ANACAPPersistentLoss uint8 = 1 << 3
	ANACAPChange         uint8 = 1 << 4
	ANACAPGroupConstant  uint8 = 1 << 6 // ANAGRPID does not change while attached
	ANACAPGroupNonZero   uint8 = 1 << 7 // non-zero ANAGRPID in Namespace Management
)

// Bits of ONCS.
const (
	ONCSCompare            uint16 = 1 << 0
	ONCSWriteUncorrectable uint16 = 1 << 1
	ONCSDatasetManagement  uint16 = 1 << 2
	ONCSWriteZeroes        uint16 = 1 << 3
	ONCSSaveSelect         uint16 = 1 << 4
	ONCSReservations       uint16 = 1 << 5
	ONCSTimestamp          uint16 = 1 << 6
	ONCSVerify             uint16 = 1 << 7
	ONCSCopy               uint16 = 1 << 8
	ONCSCopyAtomicity      uint16 = 1 << 9
	ONCSFastCopy           uint16 = 1 << 10
)

// Bits of VWC.
const (
	VWCPresent      uint8 = 1 << 0
	VWCFlushAllMask uint8 = 3 << 1 // what Flush with NSID FFFFFFFFh does
	VWCFlushAllNo   uint8 = 2 << 1 // not supported
	VWCFlushAllYes  uint8 = 3 << 1 // supported
)

// FUSESCompareWrite is the bit of FUSES for fused Compare and Write.
const FUSESCompareWrite uint16 = 1 << 0

// FCATTStatic is the bit of FCATT of a static controller.
const FCATTStatic uint8 = 1 << 0

// OFCSDisconnect is the bit of OFCS for the Disconnect command.
const OFCSDisconnect uint16 = 1 << 0

// Bits of SGLS.
const (
	SGLSSupportMask     uint32 = 3 << 0 // 0: no SGLs at all
	SGLSDwordAligned    uint32 = 2 << 0 // supported with dword alignment
	SGLSKeyed           uint32 = 1 << 2
	SGLSBitBucket       uint32 = 1 << 16
	SGLSByteAlignedMPTR uint32 = 1 << 17
	SGLSLargerSGL       uint32 = 1 << 18
	SGLSMPTRSGL         uint32 = 1 << 19
	SGLSOffset          uint32 = 1 << 20 // in-capsule addresses
	SGLSTransport       uint32 = 1 << 21 // transport SGL data block
)
