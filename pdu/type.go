package pdu

import "fmt"

// Type is the PDU-Type, byte 0 of every PDU.
type Type uint8

// PDU types. 0x08 and everything above 0x09 is reserved.
const (
	TypeICReq       Type = 0x00 // Initialize Connection Request, host to controller
	TypeICResp      Type = 0x01 // Initialize Connection Response, controller to host
	TypeH2CTermReq  Type = 0x02 // Host to Controller Terminate Connection Request
	TypeC2HTermReq  Type = 0x03 // Controller to Host Terminate Connection Request
	TypeCapsuleCmd  Type = 0x04 // Command Capsule, host to controller
	TypeCapsuleResp Type = 0x05 // Response Capsule, controller to host
	TypeH2CData     Type = 0x06 // Host to Controller Data
	TypeC2HData     Type = 0x07 // Controller to Host Data
	TypeR2T         Type = 0x09 // Ready to Transfer, controller to host
)

// Sizes in bytes.
const (
	CommonHeaderLen = 8   // CH, the first bytes of every PDU
	DigestLen       = 4   // HDGST and DDGST
	MaxHeaderLen    = 128 // largest HLEN of any type
	MaxTermReqLen   = 152 // largest PLEN of a TermReq
	MaxPDO          = 144 // largest offset of DATA in a PDU: 72 + 4 rounded up to a multiple of 72 (CPDA 17)
	MinMaxH2CData   = 4096
	MaxAlign        = 31 // largest HPDA and CPDA, which are 0's based dwords
)

const (
	icLen      = 128
	dataLen    = 24 // H2CData, C2HData, R2T, CapsuleResp and TermReq share this HLEN
	capsuleLen = 72
)

// String returns the specification's name of the type.
func (t Type) String() string {
	switch t {
	case TypeICReq:
		return "ICReq"
	case TypeICResp:
		return "ICResp"
	case TypeH2CTermReq:
		return "H2CTermReq"
	case TypeC2HTermReq:
		return "C2HTermReq"
	case TypeCapsuleCmd:
		return "CapsuleCmd"
	case TypeCapsuleResp:
		return "CapsuleResp"
	case TypeH2CData:
		return "H2CData"
	case TypeC2HData:
		return "C2HData"
	case TypeR2T:
		return "R2T"
	}
	return fmt.Sprintf("PDU type %#02x", uint8(t))
}

// HeaderLen returns the HLEN that the type must have, in bytes, or 0 for a reserved type.
func (t Type) HeaderLen() int {
	switch t {
	case TypeICReq, TypeICResp:
		return icLen
	case TypeCapsuleCmd:
		return capsuleLen
	case TypeH2CTermReq, TypeC2HTermReq, TypeCapsuleResp, TypeH2CData, TypeC2HData, TypeR2T:
		return dataLen
	}
	return 0
}

// IsTermReq reports whether the PDU ends the connection.
func (t Type) IsTermReq() bool { return t == TypeH2CTermReq || t == TypeC2HTermReq }

// digested reports whether PDUs of this type carry HDGST once header digests are negotiated.
func (t Type) digested() bool {
	switch t {
	case TypeCapsuleCmd, TypeCapsuleResp, TypeH2CData, TypeC2HData, TypeR2T:
		return true
	}
	return false
}

// Flags is byte 1 of every PDU.
type Flags uint8

// Flag bits; bits 7:4 are reserved.
const (
	FlagHDGST   Flags = 1 << 0 // HDGSTF: a header digest follows the header
	FlagDDGST   Flags = 1 << 1 // DDGSTF: a data digest follows the data
	FlagLast    Flags = 1 << 2 // LAST_PDU: last data PDU of a read, or of an R2T
	FlagSuccess Flags = 1 << 3 // SUCCESS: stands for a CapsuleResp with status 0
)

// Has reports whether every bit of want is set.
func (f Flags) Has(want Flags) bool { return f&want == want }

// Role is the end of the connection that receives.
type Role uint8

// The two ends of a connection.
const (
	Host       Role = iota // receives ICResp, C2HTermReq, CapsuleResp, C2HData, R2T
	Controller             // receives ICReq, H2CTermReq, CapsuleCmd, H2CData
)

// Receives reports whether PDUs of type t travel towards r.
func (r Role) Receives(t Type) bool {
	switch t {
	case TypeICResp, TypeC2HTermReq, TypeCapsuleResp, TypeC2HData, TypeR2T:
		return r == Host
	case TypeICReq, TypeH2CTermReq, TypeCapsuleCmd, TypeH2CData:
		return r == Controller
	}
	return false
}
