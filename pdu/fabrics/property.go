package fabrics

import (
	"fmt"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// A Property is the byte offset of a controller property (OFST).
type Property uint32

// Controller properties.
const (
	PropertyCAP  Property = 0x00 // 8 bytes, [CAP]
	PropertyVS   Property = 0x08 // [VS]
	PropertyCC   Property = 0x14 // [CC]
	PropertyCSTS Property = 0x1C // [CSTS]
	PropertyNSSR Property = 0x20 // write [NSSRReset] to reset the subsystem
	PropertyCRTO Property = 0x68 // [CRTO]
)

// NSSRReset is the value of NSSR that resets the NVM subsystem, "NVMe".
const NSSRReset uint32 = 0x4E564D65

// String names the property.
func (p Property) String() string {
	switch p {
	case PropertyCAP:
		return "CAP"
	case PropertyVS:
		return "VS"
	case PropertyCC:
		return "CC"
	case PropertyCSTS:
		return "CSTS"
	case PropertyNSSR:
		return "NSSR"
	case PropertyCRTO:
		return "CRTO"
	}
	return fmt.Sprintf("property 0x%X", uint32(p))
}

// Wide tells whether the property has 8 bytes; all others have 4.
func (p Property) Wide() bool { return p == PropertyCAP }

// PropertyGet is the Property Get command. The value is the Result of its
// completion.
type PropertyGet struct {
	OFST Property
	Wide bool // ATTRIB: 8 bytes instead of 4
}

// GetProperty returns the Property Get command for p with the right width.
func GetProperty(p Property) PropertyGet { return PropertyGet{OFST: p, Wide: p.Wide()} }

// SQE builds the command.
func (g *PropertyGet) SQE() nvme.SQE {
	s := command(TypePropertyGet)
	s.CDW10 = attrib(g.Wide)
	s.CDW11 = uint32(g.OFST)
	return s
}

// DecodeSQE reads the command; a size other than 4 or 8 bytes is an error.
func (g *PropertyGet) DecodeSQE(s *nvme.SQE) error {
	if err := expect(TypePropertyGet, s); err != nil {
		return err
	}
	wide, err := decodeAttrib(s)
	if err != nil {
		return err
	}
	*g = PropertyGet{OFST: Property(s.CDW11), Wide: wide}
	return nil
}

// PropertyResult builds the completion of the Property Get command cid. Only the
// low half of a value of 4 bytes is set.
func PropertyResult(cid uint16, value uint64) nvme.CQE {
	return nvme.CQE{DW0: uint32(value), DW1: uint32(value >> 32), CID: cid}
}

// PropertySet is the Property Set command.
type PropertySet struct {
	OFST  Property
	Wide  bool   // ATTRIB: 8 bytes instead of 4
	Value uint64 // the low half of it when not Wide
}

// SetProperty returns the Property Set command for p with the right width.
func SetProperty(p Property, value uint64) PropertySet {
	return PropertySet{OFST: p, Wide: p.Wide(), Value: value}
}

// SQE builds the command.
func (p *PropertySet) SQE() nvme.SQE {
	s := command(TypePropertySet)
	s.CDW10 = attrib(p.Wide)
	s.CDW11 = uint32(p.OFST)
	s.CDW12 = uint32(p.Value)
	if p.Wide {
		s.CDW13 = uint32(p.Value >> 32)
	}
	return s
}

// DecodeSQE reads the command; a size other than 4 or 8 bytes is an error.
func (p *PropertySet) DecodeSQE(s *nvme.SQE) error {
	if err := expect(TypePropertySet, s); err != nil {
		return err
	}
	wide, err := decodeAttrib(s)
	if err != nil {
		return err
	}
	*p = PropertySet{OFST: Property(s.CDW11), Wide: wide, Value: uint64(s.CDW12)}
	if wide {
		p.Value |= uint64(s.CDW13) << 32
	}
	return nil
}

func attrib(wide bool) uint32 {
	if wide {
		return 1
	}
	return 0
}

func decodeAttrib(s *nvme.SQE) (wide bool, err error) {
	switch a := s.CDW10 & 7; a {
	case 0:
		return false, nil
	case 1:
		return true, nil
	default:
		return false, fmt.Errorf("fabrics: %v of %v: ATTRIB %d is not a size; 0 is 4 bytes, 1 is 8", Type(s), Property(s.CDW11), a)
	}
}

// Disconnect is the Disconnect command of an I/O queue.
type Disconnect struct {
	RECFMT uint16 // 0
}

// SQE builds the command.
func (d *Disconnect) SQE() nvme.SQE {
	s := command(TypeDisconnect)
	s.CDW10 = uint32(d.RECFMT)
	return s
}

// DecodeSQE reads the command.
func (d *Disconnect) DecodeSQE(s *nvme.SQE) error {
	if err := expect(TypeDisconnect, s); err != nil {
		return err
	}
	d.RECFMT = uint16(s.CDW10)
	return nil
}
