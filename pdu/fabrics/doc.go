// Package fabrics holds the parts of NVMe over Fabrics that travel in capsules:
// the Connect, Property Get, Property Set and Disconnect commands, the
// controller properties, the discovery log page, and the names of hosts and
// subsystems.
//
// Every structure goes both ways, as a target needs them as much as a host.
// Lengths from the wire are checked before they are used.
package fabrics

import (
	"bytes"
	"fmt"
	"strings"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// FCTYPE says which fabrics command an SQE with opcode 7Fh is (byte 4). Bits
// 1:0 are the direction of its data.
type FCTYPE uint8

// Fabrics commands.
const (
	TypePropertySet FCTYPE = 0x00
	TypeConnect     FCTYPE = 0x01
	TypePropertyGet FCTYPE = 0x04
	TypeAuthSend    FCTYPE = 0x05
	TypeAuthReceive FCTYPE = 0x06
	TypeDisconnect  FCTYPE = 0x08
)

// String names the command.
func (t FCTYPE) String() string {
	switch t {
	case TypePropertySet:
		return "Property Set"
	case TypeConnect:
		return "Connect"
	case TypePropertyGet:
		return "Property Get"
	case TypeAuthSend:
		return "Authentication Send"
	case TypeAuthReceive:
		return "Authentication Receive"
	case TypeDisconnect:
		return "Disconnect"
	}
	if t >= 0xC0 {
		return fmt.Sprintf("vendor specific fabrics command 0x%02X", uint8(t))
	}
	return fmt.Sprintf("fabrics command 0x%02X", uint8(t))
}

// Type returns the FCTYPE of an SQE. It means something only when the opcode is
// nvme.OpFabrics.
func Type(s *nvme.SQE) FCTYPE { return FCTYPE(s.NSID) }

// command starts the SQE of a fabrics command without data.
func command(t FCTYPE) nvme.SQE {
	return nvme.SQE{
		Opcode: nvme.OpFabrics, Flags: nvme.FlagSGL, NSID: uint32(t),
		SGL: nvme.SGL{ID: nvme.SGLTransport},
	}
}

// expect reports an error when s is not the fabrics command t.
func expect(t FCTYPE, s *nvme.SQE) error {
	if s.Opcode != nvme.OpFabrics {
		return fmt.Errorf("fabrics: SQE with opcode 0x%02X is not a %v command", uint8(s.Opcode), t)
	}
	if got := Type(s); got != t {
		return fmt.Errorf("fabrics: SQE is a %v command, not %v", got, t)
	}
	return nil
}

// cstring returns the text before the first NUL of a field, or all of it.
func cstring(b []byte) string {
	if i := bytes.IndexByte(b, 0); i >= 0 {
		b = b[:i]
	}
	return string(b)
}

// trim returns the text of a field without its padding, NULs or spaces.
func trim(b []byte) string { return strings.TrimRight(cstring(b), " ") }
