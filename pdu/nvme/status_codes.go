package nvme

import "fmt"

// A Code is a status code without the retry bits: SCT<<8 | SC.
type Code uint16

// Status returns the status word for the code, with CRD, M and DNR zero.
func (c Code) Status() Status { return Status(c&0x7FF) << 1 }

// Error makes a Code usable as the target of errors.Is.
func (c Code) Error() string { return c.Status().Error() }

// Generic command status (SCT 0).
const (
	StatusSuccess                  Code = 0x000
	StatusInvalidOpcode            Code = 0x001
	StatusInvalidField             Code = 0x002
	StatusCommandIDConflict        Code = 0x003
	StatusDataTransferError        Code = 0x004
	StatusAbortedPowerLoss         Code = 0x005
	StatusInternalError            Code = 0x006
	StatusAbortRequested           Code = 0x007
	StatusAbortedSQDeletion        Code = 0x008
	StatusFusedFailed              Code = 0x009
	StatusFusedMissing             Code = 0x00A
	StatusInvalidNamespace         Code = 0x00B
	StatusCommandSequenceError     Code = 0x00C
	StatusInvalidSGLSegment        Code = 0x00D
	StatusInvalidSGLCount          Code = 0x00E
	StatusDataSGLLengthInvalid     Code = 0x00F
	StatusMetadataSGLLengthInvalid Code = 0x010
	StatusSGLTypeInvalid           Code = 0x011
	StatusInvalidCMBUse            Code = 0x012
	StatusPRPOffsetInvalid         Code = 0x013
	StatusAtomicWriteUnitExceeded  Code = 0x014
	StatusOperationDenied          Code = 0x015
	StatusSGLOffsetInvalid         Code = 0x016
	StatusHostIDInconsistent       Code = 0x018
	StatusKeepAliveExpired         Code = 0x019
	StatusKeepAliveInvalid         Code = 0x01A
	StatusAbortedPreempt           Code = 0x01B
	StatusSanitizeFailed           Code = 0x01C
	StatusSanitizeInProgress       Code = 0x01D
	StatusSGLGranularityInvalid    Code = 0x01E
	StatusNotSupportedInCMB        Code = 0x01F
	StatusWriteProtected           Code = 0x020
	StatusCommandInterrupted       Code = 0x021
	StatusTransientTransportError  Code = 0x022
	StatusProhibitedByLockdown     Code = 0x023
	StatusMediaNotReady            Code = 0x024
	StatusInvalidKeyTag            Code = 0x025
	StatusHostDispersedNotEnabled  Code = 0x026
	StatusHostIDNotInitialized     Code = 0x027
	StatusIncorrectKey             Code = 0x028
	StatusFDPDisabled              Code = 0x029
	StatusInvalidPlacementHandles  Code = 0x02A
	StatusLBAOutOfRange            Code = 0x080
	StatusCapacityExceeded         Code = 0x081
	StatusNamespaceNotReady        Code = 0x082
	StatusReservationConflict      Code = 0x083
	StatusFormatInProgress         Code = 0x084
	StatusKVInvalidValueSize       Code = 0x085
	StatusKVInvalidKeySize         Code = 0x086
	StatusKVKeyNotFound            Code = 0x087
	StatusKVUnrecovered            Code = 0x088
	StatusKVKeyExists              Code = 0x089
)

// Command specific status (SCT 1). With fabrics commands 0x180 to 0x18F have
// other meanings, which package fabrics names.
const (
	StatusCompletionQueueInvalid       Code = 0x100
	StatusInvalidQueueID               Code = 0x101
	StatusInvalidQueueSize             Code = 0x102
	StatusAbortLimitExceeded           Code = 0x103
	StatusAERLimitExceeded             Code = 0x105
	StatusInvalidFirmwareSlot          Code = 0x106
	StatusInvalidFirmwareImage         Code = 0x107
	StatusInvalidLogPage               Code = 0x109
	StatusInvalidFormat                Code = 0x10A
	StatusFirmwareNeedsReset           Code = 0x10B
	StatusInvalidQueueDeletion         Code = 0x10C
	StatusFeatureNotSaveable           Code = 0x10D
	StatusFeatureNotChangeable         Code = 0x10E
	StatusFeatureNotNSSpecific         Code = 0x10F
	StatusFirmwareNeedsSubsystemReset  Code = 0x110
	StatusFirmwareNeedsControllerReset Code = 0x111
	StatusFirmwareMaxTimeViolation     Code = 0x112
	StatusFirmwareProhibited           Code = 0x113
	StatusOverlappingRange             Code = 0x114
	StatusNSInsufficientCapacity       Code = 0x115
	StatusNSIDUnavailable              Code = 0x116
	StatusNSAlreadyAttached            Code = 0x118
	StatusNSPrivate                    Code = 0x119
	StatusNSNotAttached                Code = 0x11A
	StatusThinProvisioningNotSupported Code = 0x11B
	StatusControllerListInvalid        Code = 0x11C
	StatusSelfTestInProgress           Code = 0x11D
	StatusBootPartitionProtected       Code = 0x11E
	StatusInvalidControllerID          Code = 0x11F
	StatusInvalidSecondaryState        Code = 0x120
	StatusInvalidResourceCount         Code = 0x121
	StatusInvalidResourceID            Code = 0x122
	StatusSanitizePMREnabled           Code = 0x123
	StatusANAGroupInvalid              Code = 0x124
	StatusANAAttachFailed              Code = 0x125
	StatusInsufficientCapacity         Code = 0x126
	StatusAttachmentLimitExceeded      Code = 0x127
	StatusProhibitionNotSupported      Code = 0x128
	StatusIOCSNotSupported             Code = 0x129
	StatusIOCSNotEnabled               Code = 0x12A
	StatusIOCSCombinationRejected      Code = 0x12B
	StatusInvalidIOCS                  Code = 0x12C
	StatusIdentifierUnavailable        Code = 0x12D
	StatusInvalidDiscoveryInfo         Code = 0x12F
	StatusZoningLocked                 Code = 0x130
	StatusZoningNotFound               Code = 0x131
	StatusInsufficientDiscovery        Code = 0x132
	StatusZoningBadOriginator          Code = 0x134
	StatusStreamAllocationFailed       Code = 0x17F
	StatusConflictingAttributes        Code = 0x180
	StatusInvalidProtectionInfo        Code = 0x181
	StatusReadOnlyRange                Code = 0x182
	StatusCommandSizeLimitExceeded     Code = 0x183
	StatusIncompatibleNamespace        Code = 0x185
	StatusFastCopyNotPossible          Code = 0x186
	StatusOverlappingIORange           Code = 0x187
	StatusInsufficientResources        Code = 0x189
	StatusDiscoverRestart              Code = 0x190
	StatusAuthenticationRequired       Code = 0x191
	StatusZoneBoundaryError            Code = 0x1B8
	StatusZoneFull                     Code = 0x1B9
	StatusZoneReadOnly                 Code = 0x1BA
	StatusZoneOffline                  Code = 0x1BB
	StatusZoneInvalidWrite             Code = 0x1BC
	StatusTooManyActiveZones           Code = 0x1BD
	StatusTooManyOpenZones             Code = 0x1BE
	StatusZoneInvalidTransition        Code = 0x1BF
)

// Media and data integrity errors (SCT 2).
const (
	StatusWriteFault           Code = 0x280
	StatusUnrecoveredReadError Code = 0x281
	StatusGuardCheckError      Code = 0x282
	StatusAppTagCheckError     Code = 0x283
	StatusRefTagCheckError     Code = 0x284
	StatusCompareFailure       Code = 0x285
	StatusAccessDenied         Code = 0x286
	StatusUnwritten            Code = 0x287
	StatusStorageTagCheckError Code = 0x288
)

// Path related status (SCT 3). The last two are made up by hosts.
const (
	StatusInternalPathError      Code = 0x300
	StatusANAPersistentLoss      Code = 0x301
	StatusANAInaccessible        Code = 0x302
	StatusANATransition          Code = 0x303
	StatusControllerPathingError Code = 0x360
	StatusHostPathingError       Code = 0x370
	StatusAbortedByHost          Code = 0x371
)

// Name returns the specification's name of the code for admin and NVM commands,
// or a text with the type and number for a code that it does not know.
func (c Code) Name() string {
	switch c {
	case StatusSuccess:
		return "Success"
	case StatusInvalidOpcode:
		return "Invalid Opcode"
	case StatusInvalidField:
		return "Invalid Field"
	case StatusCommandIDConflict:
		return "Command ID Conflict"
	case StatusDataTransferError:
		return "Data Transfer Error"
	case StatusAbortedPowerLoss:
		return "Aborted - Power Loss"
	case StatusInternalError:
		return "Internal Error"
	case StatusAbortRequested:
		return "Abort Requested"
	case StatusAbortedSQDeletion:
		return "Aborted - SQ Deletion"
	case StatusFusedFailed:
		return "Aborted - Failed Fused Command"
	case StatusFusedMissing:
		return "Aborted - Missing Fused Command"
	case StatusInvalidNamespace:
		return "Invalid Namespace or Format"
	case StatusCommandSequenceError:
		return "Command Sequence Error"
	case StatusInvalidSGLSegment:
		return "Invalid SGL Segment Descriptor"
	case StatusInvalidSGLCount:
		return "Invalid Number of SGL Descriptors"
	case StatusDataSGLLengthInvalid:
		return "Data SGL Length Invalid"
	case StatusMetadataSGLLengthInvalid:
		return "Metadata SGL Length Invalid"
	case StatusSGLTypeInvalid:
		return "SGL Descriptor Type Invalid"
	case StatusInvalidCMBUse:
		return "Invalid Use of Controller Memory Buffer"
	case StatusPRPOffsetInvalid:
		return "PRP Offset Invalid"
	case StatusAtomicWriteUnitExceeded:
		return "Atomic Write Unit Exceeded"
	case StatusOperationDenied:
		return "Operation Denied"
	case StatusSGLOffsetInvalid:
		return "SGL Offset Invalid"
	case StatusHostIDInconsistent:
		return "Host Identifier Inconsistent Format"
	case StatusKeepAliveExpired:
		return "Keep Alive Timeout Expired"
	case StatusKeepAliveInvalid:
		return "Keep Alive Timeout Invalid"
	case StatusAbortedPreempt:
		return "Aborted - Preempt and Abort"
	case StatusSanitizeFailed:
		return "Sanitize Failed"
	case StatusSanitizeInProgress:
		return "Sanitize In Progress"
	case StatusSGLGranularityInvalid:
		return "SGL Data Block Granularity Invalid"
	case StatusNotSupportedInCMB:
		return "Command Not Supported for Queue in CMB"
	case StatusWriteProtected:
		return "Namespace is Write Protected"
	case StatusCommandInterrupted:
		return "Command Interrupted"
	case StatusTransientTransportError:
		return "Transient Transport Error"
	case StatusProhibitedByLockdown:
		return "Command Prohibited by Lockdown"
	case StatusMediaNotReady:
		return "Admin Command Media Not Ready"
	case StatusInvalidKeyTag:
		return "Invalid Key Tag"
	case StatusHostDispersedNotEnabled:
		return "Host Dispersed Namespace Support Not Enabled"
	case StatusHostIDNotInitialized:
		return "Host Identifier Not Initialized"
	case StatusIncorrectKey:
		return "Incorrect Key"
	case StatusFDPDisabled:
		return "FDP Disabled"
	case StatusInvalidPlacementHandles:
		return "Invalid Placement Handle List"
	case StatusLBAOutOfRange:
		return "LBA Out of Range"
	case StatusCapacityExceeded:
		return "Capacity Exceeded"
	case StatusNamespaceNotReady:
		return "Namespace Not Ready"
	case StatusReservationConflict:
		return "Reservation Conflict"
	case StatusFormatInProgress:
		return "Format in Progress"
	case StatusKVInvalidValueSize:
		return "Invalid Value Size"
	case StatusKVInvalidKeySize:
		return "Invalid Key Size"
	case StatusKVKeyNotFound:
		return "KV Key Does Not Exist"
	case StatusKVUnrecovered:
		return "Unrecovered Error"
	case StatusKVKeyExists:
		return "Key Exists"
	case StatusCompletionQueueInvalid:
		return "Completion Queue Invalid"
	case StatusInvalidQueueID:
		return "Invalid Queue Identifier"
	case StatusInvalidQueueSize:
		return "Invalid Queue Size"
	case StatusAbortLimitExceeded:
		return "Abort Command Limit Exceeded"
	case StatusAERLimitExceeded:
		return "Asynchronous Event Request Limit Exceeded"
	case StatusInvalidFirmwareSlot:
		return "Invalid Firmware Slot"
	case StatusInvalidFirmwareImage:
		return "Invalid Firmware Image"
	case StatusInvalidLogPage:
		return "Invalid Log Page"
	case StatusInvalidFormat:
		return "Invalid Format"
	case StatusFirmwareNeedsReset:
		return "Firmware Activation Requires Conventional Reset"
	case StatusInvalidQueueDeletion:
		return "Invalid Queue Deletion"
	case StatusFeatureNotSaveable:
		return "Feature Identifier Not Saveable"
	case StatusFeatureNotChangeable:
		return "Feature Not Changeable"
	case StatusFeatureNotNSSpecific:
		return "Feature Not Namespace Specific"
	case StatusFirmwareNeedsSubsystemReset:
		return "Firmware Activation Requires NVM Subsystem Reset"
	case StatusFirmwareNeedsControllerReset:
		return "Firmware Activation Requires Controller Level Reset"
	case StatusFirmwareMaxTimeViolation:
		return "Firmware Activation Requires Maximum Time Violation"
	case StatusFirmwareProhibited:
		return "Firmware Activation Prohibited"
	case StatusOverlappingRange:
		return "Overlapping Range"
	case StatusNSInsufficientCapacity:
		return "Namespace Insufficient Capacity"
	case StatusNSIDUnavailable:
		return "Namespace Identifier Unavailable"
	case StatusNSAlreadyAttached:
		return "Namespace Already Attached"
	case StatusNSPrivate:
		return "Namespace Is Private"
	case StatusNSNotAttached:
		return "Namespace Not Attached"
	case StatusThinProvisioningNotSupported:
		return "Thin Provisioning Not Supported"
	case StatusControllerListInvalid:
		return "Controller List Invalid"
	case StatusSelfTestInProgress:
		return "Device Self-test In Progress"
	case StatusBootPartitionProtected:
		return "Boot Partition Write Prohibited"
	case StatusInvalidControllerID:
		return "Invalid Controller Identifier"
	case StatusInvalidSecondaryState:
		return "Invalid Secondary Controller State"
	case StatusInvalidResourceCount:
		return "Invalid Number of Controller Resources"
	case StatusInvalidResourceID:
		return "Invalid Resource Identifier"
	case StatusSanitizePMREnabled:
		return "Sanitize Prohibited While Persistent Memory Region is Enabled"
	case StatusANAGroupInvalid:
		return "ANA Group Identifier Invalid"
	case StatusANAAttachFailed:
		return "ANA Attach Failed"
	case StatusInsufficientCapacity:
		return "Insufficient Capacity"
	case StatusAttachmentLimitExceeded:
		return "Namespace Attachment Limit Exceeded"
	case StatusProhibitionNotSupported:
		return "Prohibition of Command Execution Not Supported"
	case StatusIOCSNotSupported:
		return "I/O Command Set Not Supported"
	case StatusIOCSNotEnabled:
		return "I/O Command Set Not Enabled"
	case StatusIOCSCombinationRejected:
		return "I/O Command Set Combination Rejected"
	case StatusInvalidIOCS:
		return "Invalid I/O Command Set"
	case StatusIdentifierUnavailable:
		return "Identifier Unavailable"
	case StatusInvalidDiscoveryInfo:
		return "Invalid Discovery Information"
	case StatusZoningLocked:
		return "Zoning Data Structure Locked"
	case StatusZoningNotFound:
		return "Zoning Data Structure Not Found"
	case StatusInsufficientDiscovery:
		return "Insufficient Discovery Resources"
	case StatusZoningBadOriginator:
		return "Fabric Zoning Originator Invalid"
	case StatusStreamAllocationFailed:
		return "Stream Resource Allocation Failed"
	case StatusConflictingAttributes:
		return "Conflicting Attributes"
	case StatusInvalidProtectionInfo:
		return "Invalid Protection Information"
	case StatusReadOnlyRange:
		return "Attempted Write to Read Only Range"
	case StatusCommandSizeLimitExceeded:
		return "Command Size Limit Exceeded"
	case StatusIncompatibleNamespace:
		return "Incompatible Namespace or Format"
	case StatusFastCopyNotPossible:
		return "Fast Copy Not Possible"
	case StatusOverlappingIORange:
		return "Overlapping I/O Range"
	case StatusInsufficientResources:
		return "Insufficient Resources"
	case StatusDiscoverRestart:
		return "Discover Restart"
	case StatusAuthenticationRequired:
		return "Authentication Required"
	case StatusZoneBoundaryError:
		return "Zoned Boundary Error"
	case StatusZoneFull:
		return "Zone Is Full"
	case StatusZoneReadOnly:
		return "Zone Is Read Only"
	case StatusZoneOffline:
		return "Zone Is Offline"
	case StatusZoneInvalidWrite:
		return "Zone Invalid Write"
	case StatusTooManyActiveZones:
		return "Too Many Active Zones"
	case StatusTooManyOpenZones:
		return "Too Many Open Zones"
	case StatusZoneInvalidTransition:
		return "Invalid Zone State Transition"
	case StatusWriteFault:
		return "Write Fault"
	case StatusUnrecoveredReadError:
		return "Unrecovered Read Error"
	case StatusGuardCheckError:
		return "End-to-end Guard Check Error"
	case StatusAppTagCheckError:
		return "End-to-end Application Tag Check Error"
	case StatusRefTagCheckError:
		return "End-to-end Reference Tag Check Error"
	case StatusCompareFailure:
		return "Compare Failure"
	case StatusAccessDenied:
		return "Access Denied"
	case StatusUnwritten:
		return "Deallocated or Unwritten Logical Block"
	case StatusStorageTagCheckError:
		return "End-to-end Storage Tag Check Error"
	case StatusInternalPathError:
		return "Internal Path Error"
	case StatusANAPersistentLoss:
		return "Asymmetric Access Persistent Loss"
	case StatusANAInaccessible:
		return "Asymmetric Access Inaccessible"
	case StatusANATransition:
		return "Asymmetric Access Transition"
	case StatusControllerPathingError:
		return "Controller Pathing Error"
	case StatusHostPathingError:
		return "Host Pathing Error"
	case StatusAbortedByHost:
		return "Command Aborted By Host"
	}
	return fmt.Sprintf("unknown %s status 0x%02X", SCT(c>>8&7), uint8(c))
}

// transient holds the codes after which the same command may succeed: the
// condition passes, or another path does not have it.
func (c Code) transient() bool {
	switch c {
	case StatusDataTransferError,
		StatusAbortedPowerLoss,
		StatusInternalError,
		StatusAbortedSQDeletion,
		StatusSanitizeFailed,
		StatusSanitizeInProgress,
		StatusCommandInterrupted,
		StatusTransientTransportError,
		StatusMediaNotReady,
		StatusNamespaceNotReady,
		StatusFormatInProgress,
		StatusDiscoverRestart,
		StatusInternalPathError,
		StatusANAPersistentLoss,
		StatusANAInaccessible,
		StatusANATransition,
		StatusControllerPathingError,
		StatusHostPathingError,
		StatusAbortedByHost:
		return true
	}
	return false
}
