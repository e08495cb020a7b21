package nvme

import "fmt"

// An Opcode is the first byte of a submission queue entry. Admin and I/O
// commands use the same numbers for different things, so the text of an opcode
// is known only together with its queue: see [Opcode.AdminName] and
// [Opcode.NVMName].
type Opcode uint8

// Admin command opcodes.
const (
	OpDeleteSQ           Opcode = 0x00 // not valid on fabrics
	OpCreateSQ           Opcode = 0x01 // not valid on fabrics
	OpGetLogPage         Opcode = 0x02
	OpDeleteCQ           Opcode = 0x04 // not valid on fabrics
	OpCreateCQ           Opcode = 0x05 // not valid on fabrics
	OpIdentify           Opcode = 0x06
	OpAbort              Opcode = 0x08
	OpSetFeatures        Opcode = 0x09
	OpGetFeatures        Opcode = 0x0A
	OpAsyncEventRequest  Opcode = 0x0C
	OpNSManagement       Opcode = 0x0D
	OpFirmwareCommit     Opcode = 0x10
	OpFirmwareDownload   Opcode = 0x11
	OpDeviceSelfTest     Opcode = 0x14
	OpNSAttachment       Opcode = 0x15
	OpKeepAlive          Opcode = 0x18
	OpDirectiveSend      Opcode = 0x19
	OpDirectiveReceive   Opcode = 0x1A
	OpVirtualization     Opcode = 0x1C
	OpMISend             Opcode = 0x1D
	OpMIReceive          Opcode = 0x1E
	OpCapacityManagement Opcode = 0x20
	OpDiscoveryInfoMgmt  Opcode = 0x21
	OpLockdown           Opcode = 0x24
	OpDoorbellBuffer     Opcode = 0x7C
	OpFormatNVM          Opcode = 0x80
	OpSecuritySend       Opcode = 0x81
	OpSecurityReceive    Opcode = 0x82
	OpSanitize           Opcode = 0x84
	OpGetLBAStatus       Opcode = 0x86
)

// OpFabrics is the opcode of every fabrics command, on any queue; what it is,
// and which way its data goes, is said by the FCTYPE in byte 4.
const OpFabrics Opcode = 0x7F

// I/O command opcodes of the NVM command set, and those that all sets share.
const (
	OpFlush               Opcode = 0x00
	OpWrite               Opcode = 0x01
	OpRead                Opcode = 0x02
	OpWriteUncorrectable  Opcode = 0x04
	OpCompare             Opcode = 0x05
	OpWriteZeroes         Opcode = 0x08
	OpDatasetManagement   Opcode = 0x09
	OpVerify              Opcode = 0x0C
	OpReservationRegister Opcode = 0x0D
	OpReservationReport   Opcode = 0x0E
	OpReservationAcquire  Opcode = 0x11
	OpIOManagementReceive Opcode = 0x12
	OpReservationRelease  Opcode = 0x15
	OpCancel              Opcode = 0x18
	OpCopy                Opcode = 0x19
	OpIOManagementSend    Opcode = 0x1D
	OpZoneManagementSend  Opcode = 0x79
	OpZoneManagementRecv  Opcode = 0x7A
	OpZoneAppend          Opcode = 0x7D
)

// A Direction tells which way the data of a command goes.
type Direction uint8

// Directions, with the values of bits 1:0 of an opcode or FCTYPE.
const (
	DirNone             Direction = 0 // no data
	DirHostToController Direction = 1 // as Write
	DirControllerToHost Direction = 2 // as Read
	DirBoth             Direction = 3 // bidirectional
)

// String names the direction.
func (d Direction) String() string {
	switch d {
	case DirNone:
		return "none"
	case DirHostToController:
		return "host to controller"
	case DirControllerToHost:
		return "controller to host"
	case DirBoth:
		return "bidirectional"
	}
	return fmt.Sprintf("Direction(%d)", uint8(d))
}

// Direction returns bits 1:0 of the opcode, which by rule are the direction of
// the data. For [OpFabrics] the rule does not hold: use [SQE.Direction].
func (o Opcode) Direction() Direction { return Direction(o & 3) }

// AdminName names the opcode as a command of the admin queue.
func (o Opcode) AdminName() string {
	switch o {
	case OpDeleteSQ:
		return "Delete I/O Submission Queue"
	case OpCreateSQ:
		return "Create I/O Submission Queue"
	case OpGetLogPage:
		return "Get Log Page"
	case OpDeleteCQ:
		return "Delete I/O Completion Queue"
	case OpCreateCQ:
		return "Create I/O Completion Queue"
	case OpIdentify:
		return "Identify"
	case OpAbort:
		return "Abort"
	case OpSetFeatures:
		return "Set Features"
	case OpGetFeatures:
		return "Get Features"
	case OpAsyncEventRequest:
		return "Asynchronous Event Request"
	case OpNSManagement:
		return "Namespace Management"
	case OpFirmwareCommit:
		return "Firmware Commit"
	case OpFirmwareDownload:
		return "Firmware Image Download"
	case OpDeviceSelfTest:
		return "Device Self-test"
	case OpNSAttachment:
		return "Namespace Attachment"
	case OpKeepAlive:
		return "Keep Alive"
	case OpDirectiveSend:
		return "Directive Send"
	case OpDirectiveReceive:
		return "Directive Receive"
	case OpVirtualization:
		return "Virtualization Management"
	case OpMISend:
		return "NVMe-MI Send"
	case OpMIReceive:
		return "NVMe-MI Receive"
	case OpCapacityManagement:
		return "Capacity Management"
	case OpDiscoveryInfoMgmt:
		return "Discovery Information Management"
	case OpLockdown:
		return "Lockdown"
	case OpDoorbellBuffer:
		return "Doorbell Buffer Config"
	case OpFabrics:
		return "Fabrics"
	case OpFormatNVM:
		return "Format NVM"
	case OpSecuritySend:
		return "Security Send"
	case OpSecurityReceive:
		return "Security Receive"
	case OpSanitize:
		return "Sanitize"
	case OpGetLBAStatus:
		return "Get LBA Status"
	}
	if o >= 0xC0 {
		return fmt.Sprintf("vendor specific admin opcode 0x%02X", uint8(o))
	}
	return fmt.Sprintf("admin opcode 0x%02X", uint8(o))
}

// NVMName names the opcode as a command of an I/O queue of the NVM command set.
func (o Opcode) NVMName() string {
	switch o {
	case OpFlush:
		return "Flush"
	case OpWrite:
		return "Write"
	case OpRead:
		return "Read"
	case OpWriteUncorrectable:
		return "Write Uncorrectable"
	case OpCompare:
		return "Compare"
	case OpWriteZeroes:
		return "Write Zeroes"
	case OpDatasetManagement:
		return "Dataset Management"
	case OpVerify:
		return "Verify"
	case OpReservationRegister:
		return "Reservation Register"
	case OpReservationReport:
		return "Reservation Report"
	case OpReservationAcquire:
		return "Reservation Acquire"
	case OpIOManagementReceive:
		return "I/O Management Receive"
	case OpReservationRelease:
		return "Reservation Release"
	case OpCancel:
		return "Cancel"
	case OpCopy:
		return "Copy"
	case OpIOManagementSend:
		return "I/O Management Send"
	case OpZoneManagementSend:
		return "Zone Management Send"
	case OpZoneManagementRecv:
		return "Zone Management Receive"
	case OpZoneAppend:
		return "Zone Append"
	case OpFabrics:
		return "Fabrics"
	}
	if o >= 0x80 {
		return fmt.Sprintf("vendor specific I/O opcode 0x%02X", uint8(o))
	}
	return fmt.Sprintf("I/O opcode 0x%02X", uint8(o))
}
