// Package nvme holds what travels inside NVMe/TCP capsules: submission and
// completion queue entries, opcodes, status codes, and the data structures of
// Identify, Get Log Page, Get Features and Set Features.
//
// Every structure has two methods: Append adds its wire form to a slice, and
// Decode reads it from one. Both ways are there because a target needs them as
// much as a host. Decode checks every length before it uses it, keeps no
// reference to its input, and reports a [ShortError] when bytes are missing.
// Bytes that the specification reserves are sent as zero and ignored when read.
//
// Names are those of the NVM Express specifications; a value that they call
// "0's based" is stored as it is on the wire unless the comment says otherwise.
package nvme

import "fmt"

// A ShortError says that the input ended before the structure did.
type ShortError struct {
	What string // the structure, by its name in the specification
	Need int    // bytes that the structure takes
	Got  int    // bytes that there were
}

func (e *ShortError) Error() string {
	return fmt.Sprintf("nvme: %s needs %d bytes, got %d", e.What, e.Need, e.Got)
}

// need reports a ShortError when b is shorter than n bytes.
func need(what string, b []byte, n int) error {
	if len(b) < n {
		return &ShortError{What: what, Need: n, Got: len(b)}
	}
	return nil
}
