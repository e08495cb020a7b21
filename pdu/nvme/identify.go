package nvme

import (
	"encoding/binary"
	"fmt"
)

// IdentifyLen is the length of the data of every Identify command in bytes.
const IdentifyLen = 4096

// CNS says which structure an Identify command returns (CDW10 bits 7:0).
type CNS uint8

// Structures of Identify.
const (
	CNSNamespace            CNS = 0x00 // [IdentifyNamespace]
	CNSController           CNS = 0x01 // [IdentifyController]
	CNSActiveNSList         CNS = 0x02 // [NamespaceList]
	CNSNSDescriptors        CNS = 0x03 // [NamespaceIDs]
	CNSNVMSetList           CNS = 0x04
	CNSNamespaceIOCS        CNS = 0x05 // for CSI 0: [IdentifyNamespaceNVM]
	CNSControllerIOCS       CNS = 0x06 // for CSI 0: [IdentifyControllerNVM]
	CNSActiveNSListIOCS     CNS = 0x07 // [NamespaceList]
	CNSNamespaceIndependent CNS = 0x08 // [IdentifyNamespaceIndependent]
	CNSAllocatedNSList      CNS = 0x10 // [NamespaceList]
	CNSAllocatedNamespace   CNS = 0x11 // [IdentifyNamespace]
	CNSAttachedControllers  CNS = 0x12 // [ControllerList]
	CNSControllers          CNS = 0x13 // [ControllerList]
	CNSPrimaryCapabilities  CNS = 0x14
	CNSSecondaryList        CNS = 0x15
	CNSGranularityList      CNS = 0x16
	CNSUUIDList             CNS = 0x17
	CNSDomainList           CNS = 0x18
	CNSEnduranceGroupList   CNS = 0x19
	CNSAllocatedNSListIOCS  CNS = 0x1A // [NamespaceList]
	CNSAllocatedNSIOCS      CNS = 0x1B
	CNSIOCSCombinations     CNS = 0x1C // 512 vectors of 64 bits, by profile index
)

// CSI is an I/O command set identifier.
type CSI uint8

// I/O command sets.
const (
	CSINVM CSI = 0
	CSIKV  CSI = 1
	CSIZNS CSI = 2
)

// String names the I/O command set.
func (c CSI) String() string {
	switch c {
	case CSINVM:
		return "NVM"
	case CSIKV:
		return "Key Value"
	case CSIZNS:
		return "Zoned Namespace"
	}
	return fmt.Sprintf("CSI 0x%02X", uint8(c))
}

// A NamespaceList is up to 1024 namespace identifiers in ascending order
// (CNS 02, 07, 10, 1A).
type NamespaceList []uint32

const namespaceListMax = IdentifyLen / 4

// Append adds the 4096 bytes of the list to b. Identifiers beyond the 1024th
// are left out: the host asks for those with the next command.
func (l NamespaceList) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	for i, id := range l[:min(len(l), namespaceListMax)] {
		binary.LittleEndian.PutUint32(f.b[4*i:], id)
	}
	return b
}

// Decode reads a list that was asked for with NSID 0; see [NamespaceList.DecodeAfter].
func (l *NamespaceList) Decode(b []byte) error { return l.DecodeAfter(b, 0) }

// DecodeAfter reads a list that was asked for with the NSID start from 4096
// bytes, into the memory that l has. Identifiers that are not ascending from
// start, or not valid, are an error: a host that goes on from the last one
// would never come to an end.
func (l *NamespaceList) DecodeAfter(b []byte, start uint32) error {
	f, err := open("namespace list", b, IdentifyLen)
	if err != nil {
		return err
	}
	*l = (*l)[:0]
	for i := range namespaceListMax {
		id := binary.LittleEndian.Uint32(f.b[4*i:])
		if id == 0 {
			return nil
		}
		if id <= start || id == NSIDAll {
			return fmt.Errorf("nvme: namespace list: entry %d is NSID 0x%X after 0x%X; a valid list ascends", i, id, start)
		}
		*l = append(*l, id)
		start = id
	}
	return nil
}

// A ControllerList is up to 2047 controller identifiers (CNS 12, 13).
type ControllerList []uint16

const controllerListMax = IdentifyLen/2 - 1

// Append adds the 4096 bytes of the list to b. Identifiers beyond the 2047th
// are left out.
func (l ControllerList) Append(b []byte) []byte {
	l = l[:min(len(l), controllerListMax)]
	b, f := grow(b, IdentifyLen)
	binary.LittleEndian.PutUint16(f.b, uint16(len(l)))
	for i, id := range l {
		binary.LittleEndian.PutUint16(f.b[2+2*i:], id)
	}
	return b
}

// Decode reads the list from 4096 bytes, into the memory that l has.
func (l *ControllerList) Decode(b []byte) error {
	f, err := open("controller list", b, IdentifyLen)
	if err != nil {
		return err
	}
	n := int(binary.LittleEndian.Uint16(f.b))
	if n > controllerListMax {
		return fmt.Errorf("nvme: controller list claims %d entries, there is room for %d", n, controllerListMax)
	}
	*l = (*l)[:0]
	for i := range n {
		*l = append(*l, binary.LittleEndian.Uint16(f.b[2+2*i:]))
	}
	return nil
}
