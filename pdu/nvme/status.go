package nvme

import "fmt"

// A Status is the 16-bit status word of a completion queue entry with the phase
// tag (bit 0) cleared: SC in bits 8:1, SCT in 11:9, CRD in 13:12, M in 14 and
// DNR in 15. It is an error, except when [Status.OK].
//
// The text of a Status is that of an admin or NVM command. A few command
// specific codes mean something else for fabrics commands; package fabrics wraps
// the Status of those with the right text.
type Status uint16

// Bits of a Status.
const (
	statusPhase Status = 1 << 0
	StatusMore  Status = 1 << 14 // M: the error log has more about this command
	StatusDNR   Status = 1 << 15 // do not retry: the same command would fail again
)

// SCT is a status code type.
type SCT uint8

// Status code types.
const (
	SCTGeneric         SCT = 0
	SCTCommandSpecific SCT = 1
	SCTMedia           SCT = 2
	SCTPath            SCT = 3
	SCTVendor          SCT = 7
)

// String names the status code type.
func (t SCT) String() string {
	switch t {
	case SCTGeneric:
		return "generic"
	case SCTCommandSpecific:
		return "command specific"
	case SCTMedia:
		return "media and data integrity"
	case SCTPath:
		return "path related"
	case SCTVendor:
		return "vendor specific"
	}
	return fmt.Sprintf("reserved SCT %d", uint8(t))
}

// OK tells whether the command succeeded: the whole status field is zero.
// A non-zero SCT with SC 0 is a failure, and so is anything else unknown.
func (s Status) OK() bool { return s&^statusPhase == 0 }

// Code returns SCT<<8|SC, to compare with the constants of type [Code].
func (s Status) Code() Code { return Code(s >> 1 & 0x7FF) }

// SC returns the status code.
func (s Status) SC() uint8 { return uint8(s >> 1) }

// SCT returns the status code type.
func (s Status) SCT() SCT { return SCT(s >> 9 & 7) }

// CRD returns the command retry delay: 0 none, n = wait CRDTn of Identify
// Controller (units of 100 ms). Only set when the host enabled ACRE.
func (s Status) CRD() uint8 { return uint8(s >> 12 & 3) }

// More tells whether the controller's error log has more about this command.
func (s Status) More() bool { return s&StatusMore != 0 }

// DNR tells whether the controller asks not to retry the command.
func (s Status) DNR() bool { return s&StatusDNR != 0 }

// WithDNR returns s with the do-not-retry bit set.
func (s Status) WithDNR() Status { return s | StatusDNR }

// WithMore returns s with the more bit set.
func (s Status) WithMore() Status { return s | StatusMore }

// WithCRD returns s with the command retry delay set to crd, 0 to 3.
func (s Status) WithCRD(crd uint8) Status { return s&^(3<<12) | Status(crd&3)<<12 }

// Name returns the specification's name of the status code.
func (s Status) Name() string { return s.Code().Name() }

// Error describes the status: name, number, and the retry bits that are set.
func (s Status) Error() string { return s.Describe(s.Name()) }

// Describe is Error with another name for the status code, for commands that
// give it another meaning.
func (s Status) Describe(name string) string {
	t := fmt.Sprintf("NVMe status 0x%03X %s", uint16(s.Code()), name)
	if s.CRD() != 0 {
		t += fmt.Sprintf(", retry after CRDT%d", s.CRD())
	}
	if s.More() {
		t += ", more in the error log"
	}
	if s.DNR() {
		t += ", do not retry"
	}
	return t
}

// Is makes errors.Is(err, nvme.StatusXxx) compare the status code only,
// whatever CRD, M and DNR say.
func (s Status) Is(target error) bool {
	c, ok := target.(Code)
	return ok && s.Code() == c
}

// Retryable tells whether sending the command again, here or on another path,
// may succeed. DNR always wins. It says nothing about whether a second
// execution is safe: that is the caller's to know.
func (s Status) Retryable() bool { return !s.DNR() && s.Code().transient() }
