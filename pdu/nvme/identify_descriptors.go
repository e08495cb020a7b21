package nvme

import "fmt"

// NIDT is a namespace identifier type.
type NIDT uint8

// Namespace identifier types.
const (
	NIDTEUI64 NIDT = 1 // 8 bytes
	NIDTNGUID NIDT = 2 // 16 bytes
	NIDTUUID  NIDT = 3 // 16 bytes
	NIDTCSI   NIDT = 4 // 1 byte
)

// String names the type.
func (t NIDT) String() string {
	switch t {
	case NIDTEUI64:
		return "EUI64"
	case NIDTNGUID:
		return "NGUID"
	case NIDTUUID:
		return "UUID"
	case NIDTCSI:
		return "CSI"
	}
	return fmt.Sprintf("NIDT %d", uint8(t))
}

// length returns the NIDL that the type must have, 0 when the type is not known.
func (t NIDT) length() int {
	switch t {
	case NIDTEUI64:
		return 8
	case NIDTNGUID, NIDTUUID:
		return 16
	case NIDTCSI:
		return 1
	}
	return 0
}

const descriptorHeaderLen = 4

// NamespaceIDs is the Namespace Identification Descriptor list (CNS 03): the
// names that stay with a namespace. An identifier that is all zero is not there.
type NamespaceIDs struct {
	EUI64  [8]byte  // big-endian
	NGUID  [16]byte // big-endian
	UUID   [16]byte // as printed
	CSI    CSI      // I/O command set
	HasCSI bool     // there was a CSI descriptor
}

// Append adds the 4096 bytes of the list to b.
func (n *NamespaceIDs) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	w := f.b
	put := func(t NIDT, id []byte) {
		w[0], w[1] = byte(t), byte(len(id))
		copy(w[descriptorHeaderLen:], id)
		w = w[descriptorHeaderLen+len(id):]
	}
	if n.EUI64 != [8]byte{} {
		put(NIDTEUI64, n.EUI64[:])
	}
	if n.NGUID != [16]byte{} {
		put(NIDTNGUID, n.NGUID[:])
	}
	if n.UUID != [16]byte{} {
		put(NIDTUUID, n.UUID[:])
	}
	if n.HasCSI {
		put(NIDTCSI, []byte{byte(n.CSI)})
	}
	return b
}

// Decode reads the list from the first 4096 bytes of b. Types that are not known
// are passed over; a descriptor that is cut off, or has not the length of its
// type, is an error.
func (n *NamespaceIDs) Decode(b []byte) error {
	f, err := open("namespace descriptor list", b, IdentifyLen)
	if err != nil {
		return err
	}
	*n = NamespaceIDs{}
	for b = f.b; len(b) > 0; {
		t, id, rest, err := nextDescriptor(b)
		if err != nil {
			return err
		}
		switch t {
		case 0:
			return nil
		case NIDTEUI64:
			n.EUI64 = [8]byte(id)
		case NIDTNGUID:
			n.NGUID = [16]byte(id)
		case NIDTUUID:
			n.UUID = [16]byte(id)
		case NIDTCSI:
			n.CSI, n.HasCSI = CSI(id[0]), true
		}
		b = rest
	}
	return nil
}

// nextDescriptor takes one descriptor off b. Type 0 is the end.
func nextDescriptor(b []byte) (t NIDT, id, rest []byte, err error) {
	if b[0] == 0 {
		return 0, nil, nil, nil
	}
	if len(b) < descriptorHeaderLen {
		return 0, nil, nil, fmt.Errorf("nvme: namespace descriptor ends within its header of %d bytes", descriptorHeaderLen)
	}
	t = NIDT(b[0])
	n := int(b[1])
	b = b[descriptorHeaderLen:]
	if want := t.length(); want != 0 && n != want {
		return 0, nil, nil, fmt.Errorf("nvme: namespace descriptor %v has length %d, not %d", t, n, want)
	}
	if n > len(b) {
		return 0, nil, nil, fmt.Errorf("nvme: namespace descriptor %v of %d bytes goes beyond the end of the list", t, n)
	}
	return t, b[:n:n], b[n:], nil
}
