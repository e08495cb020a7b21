package nvme

import "encoding/binary"

// ChangedNamespacesLen is the length of a [ChangedNamespaces] page in bytes.
const ChangedNamespacesLen = 4096

const changedMax = ChangedNamespacesLen / 4

// ChangedNamespaces is the Changed Attached Namespace List log page (LID 04).
type ChangedNamespaces struct {
	Overflow bool     // more than 1024 changed: all have to be looked at
	NSIDs    []uint32 // none with Overflow
}

// Append adds the 4096 bytes of the page to b. More than 1024 NSIDs are an
// overflow.
func (c *ChangedNamespaces) Append(b []byte) []byte {
	b, f := grow(b, ChangedNamespacesLen)
	if c.Overflow || len(c.NSIDs) > changedMax {
		binary.LittleEndian.PutUint32(f.b, NSIDAll)
		return b
	}
	for i, id := range c.NSIDs {
		binary.LittleEndian.PutUint32(f.b[4*i:], id)
	}
	return b
}

// Decode reads the page from the first 4096 bytes of b, into the memory that c
// has. The list ends at the first 0.
func (c *ChangedNamespaces) Decode(b []byte) error {
	f, err := open("Changed Attached Namespace List log", b, ChangedNamespacesLen)
	if err != nil {
		return err
	}
	c.NSIDs = c.NSIDs[:0]
	c.Overflow = binary.LittleEndian.Uint32(f.b) == NSIDAll
	if c.Overflow {
		return nil
	}
	for i := range changedMax {
		id := binary.LittleEndian.Uint32(f.b[4*i:])
		if id == 0 {
			break
		}
		c.NSIDs = append(c.NSIDs, id)
	}
	return nil
}
