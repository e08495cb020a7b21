package fabrics

import (
	"encoding/hex"
	"fmt"
)

// A HostID is the 128-bit host identifier (HOSTID), in the byte order of a UUID
// as it is printed.
type HostID [16]byte

// IsZero tells whether the identifier is all zero, which is not valid.
func (h HostID) IsZero() bool { return h == HostID{} }

// String returns the identifier as a lower case UUID.
func (h HostID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], h[0:4])
	hex.Encode(b[9:13], h[4:6])
	hex.Encode(b[14:18], h[6:8])
	hex.Encode(b[19:23], h[8:10])
	hex.Encode(b[24:36], h[10:16])
	b[8], b[13], b[18], b[23] = '-', '-', '-', '-'
	return string(b[:])
}

// NQN returns the host NQN that is made of the identifier, in the UUID form.
func (h HostID) NQN() string { return UUIDNQNPrefix + h.String() }

// ParseHostID reads a UUID of 36 characters, upper or lower case.
func ParseHostID(s string) (HostID, error) {
	bad := func() (HostID, error) {
		return HostID{}, fmt.Errorf("fabrics: host ID %q is not a UUID, like 12345678-9abc-def0-1234-56789abcdef0", s)
	}
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return bad()
	}
	h, err := hex.DecodeString(s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36])
	if err != nil {
		return bad()
	}
	return HostID(h), nil
}
