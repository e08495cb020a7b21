package fabrics

import (
	"fmt"
	"time"
)

// timeUnit is the unit of the timeouts in CAP and CRTO.
const timeUnit = 500 * time.Millisecond

// CAP is the Controller Capabilities property.
type CAP uint64

// MQES returns the maximum entries of an I/O queue, 0's based.
func (c CAP) MQES() uint16 { return uint16(c) }

// CQR tells whether queues must be contiguous, which fabrics do not care about.
func (c CAP) CQR() bool { return c>>16&1 != 0 }

// AMS returns the arbitration mechanisms besides round robin.
func (c CAP) AMS() uint8 { return uint8(c >> 17 & 3) }

// TO returns the longest time that CSTS.RDY may take to follow CC.EN.
func (c CAP) TO() time.Duration { return time.Duration(c>>24&0xFF) * timeUnit }

// DSTRD returns the doorbell stride, 0 on fabrics.
func (c CAP) DSTRD() uint8 { return uint8(c >> 32 & 0xF) }

// NSSRS tells whether NVM subsystem reset is supported.
func (c CAP) NSSRS() bool { return c>>36&1 != 0 }

// CSS returns the command sets supported: see the CSS constants.
func (c CAP) CSS() uint8 { return uint8(c >> 37) }

// Bits of CAP.CSS.
const (
	CSSNVM  uint8 = 1 << 0 // CAP bit 37: NVM command set
	CSSIOCS uint8 = 1 << 6 // CAP bit 43: one or more I/O command sets, by CNS 1C
	CSSNone uint8 = 1 << 7 // CAP bit 44: admin commands only
)

// BPS tells whether boot partitions are supported.
func (c CAP) BPS() bool { return c>>45&1 != 0 }

// CPS returns the controller power scope.
func (c CAP) CPS() uint8 { return uint8(c >> 46 & 3) }

// MPSMIN returns the smallest memory page size, 2^(12+n) bytes.
func (c CAP) MPSMIN() uint8 { return uint8(c >> 48 & 0xF) }

// MPSMAX returns the largest memory page size, 2^(12+n) bytes.
func (c CAP) MPSMAX() uint8 { return uint8(c >> 52 & 0xF) }

// PMRS tells whether a persistent memory region is supported.
func (c CAP) PMRS() bool { return c>>56&1 != 0 }

// CMBS tells whether a controller memory buffer is supported.
func (c CAP) CMBS() bool { return c>>57&1 != 0 }

// NSSS tells whether NVM subsystem shutdown is supported.
func (c CAP) NSSS() bool { return c>>58&1 != 0 }

// CRWMS tells whether the controller can become ready with media: CRTO.CRWMT holds.
func (c CAP) CRWMS() bool { return c>>59&1 != 0 }

// CRIMS tells whether the controller can become ready independent of media.
func (c CAP) CRIMS() bool { return c>>60&1 != 0 }

// VS is the Version property, and VER of Identify Controller.
type VS uint32

// Versions.
const (
	VS13 VS = 0x00010300
	VS14 VS = 0x00010400
	VS20 VS = 0x00020000
	VS21 VS = 0x00020100
)

// Major returns the major version number.
func (v VS) Major() uint16 { return uint16(v >> 16) }

// Minor returns the minor version number.
func (v VS) Minor() uint8 { return uint8(v >> 8) }

// Tertiary returns the tertiary version number.
func (v VS) Tertiary() uint8 { return uint8(v) }

// String returns the version as 1.4, or 1.2.1 when there is a tertiary number.
func (v VS) String() string {
	if v.Tertiary() == 0 {
		return fmt.Sprintf("%d.%d", v.Major(), v.Minor())
	}
	return fmt.Sprintf("%d.%d.%d", v.Major(), v.Minor(), v.Tertiary())
}

// CC is the Controller Configuration property.
type CC uint32

// CCDefault is the configuration that fabrics controllers expect: entries of 64
// and 16 bytes, 4 KiB pages, round robin, the NVM command set, not enabled.
const CCDefault CC = 0x00460000

// CCEnable is the EN bit.
const CCEnable CC = 1 << 0

// EN tells whether the controller is enabled.
func (c CC) EN() bool { return c&CCEnable != 0 }

// CSS returns the I/O command set selected: see the CCCSS constants.
func (c CC) CSS() uint8 { return uint8(c >> 4 & 7) }

// Values of CC.CSS.
const (
	CCCSSNVM   uint8 = 0
	CCCSSAll   uint8 = 6 // all supported I/O command sets
	CCCSSAdmin uint8 = 7 // admin commands only
)

// MPS returns the memory page size, 2^(12+n) bytes.
func (c CC) MPS() uint8 { return uint8(c >> 7 & 0xF) }

// AMS returns the arbitration mechanism, 0 round robin.
func (c CC) AMS() uint8 { return uint8(c >> 11 & 7) }

// SHN returns the shutdown notification: see the SHN constants.
func (c CC) SHN() uint8 { return uint8(c >> 14 & 3) }

// Values of CC.SHN.
const (
	SHNNone   uint8 = 0
	SHNNormal uint8 = 1
	SHNAbrupt uint8 = 2
)

// IOSQES returns the I/O submission queue entry size, log2 of bytes: 6.
func (c CC) IOSQES() uint8 { return uint8(c >> 16 & 0xF) }

// IOCQES returns the I/O completion queue entry size, log2 of bytes: 4.
func (c CC) IOCQES() uint8 { return uint8(c >> 20 & 0xF) }

// CRIME tells whether the controller becomes ready independent of media.
func (c CC) CRIME() bool { return c>>24&1 != 0 }

// WithEN returns c with EN set to on.
func (c CC) WithEN(on bool) CC {
	if on {
		return c | CCEnable
	}
	return c &^ CCEnable
}

// WithCSS returns c with the command set selected.
func (c CC) WithCSS(css uint8) CC { return c&^(7<<4) | CC(css&7)<<4 }

// WithSHN returns c with the shutdown notification.
func (c CC) WithSHN(shn uint8) CC { return c&^(3<<14) | CC(shn&3)<<14 }

// CSTS is the Controller Status property.
type CSTS uint32

// Bits of CSTS.
const (
	CSTSReady CSTS = 1 << 0
	CSTSFatal CSTS = 1 << 1
)

// RDY tells whether the controller is ready.
func (c CSTS) RDY() bool { return c&CSTSReady != 0 }

// CFS tells whether the controller failed: only a new association helps.
func (c CSTS) CFS() bool { return c&CSTSFatal != 0 }

// SHST returns the shutdown status: see the SHST constants.
func (c CSTS) SHST() uint8 { return uint8(c >> 2 & 3) }

// Values of CSTS.SHST.
const (
	SHSTNormal     uint8 = 0
	SHSTInProgress uint8 = 1
	SHSTComplete   uint8 = 2
)

// NSSRO tells whether an NVM subsystem reset occurred.
func (c CSTS) NSSRO() bool { return c>>4&1 != 0 }

// PP tells whether processing is paused.
func (c CSTS) PP() bool { return c>>5&1 != 0 }

// ST tells whether the shutdown is one of the whole subsystem.
func (c CSTS) ST() bool { return c>>6&1 != 0 }

// WithSHST returns c with the shutdown status.
func (c CSTS) WithSHST(shst uint8) CSTS { return c&^(3<<2) | CSTS(shst&3)<<2 }

// CRTO is the Controller Ready Timeouts property.
type CRTO uint32

// CRWMT returns the longest time to become ready with media.
func (c CRTO) CRWMT() time.Duration { return time.Duration(c&0xFFFF) * timeUnit }

// CRIMT returns the longest time to become ready independent of media.
func (c CRTO) CRIMT() time.Duration { return time.Duration(c>>16) * timeUnit }
