package pdu

import "fmt"

// FES is the Fatal Error Status of a TermReq.
type FES uint16

// Fatal error statuses. 0 and everything from 7 up is reserved.
const (
	FESInvalidHeaderField FES = 0x01 // FEI: offset of the first bad byte in the offending header
	FESSequenceError      FES = 0x02
	FESHeaderDigest       FES = 0x03 // FEI: the digest received
	FESOutOfRange         FES = 0x04 // data transfer out of range
	FESLimitExceeded      FES = 0x05 // C2HTermReq: data transfer limit exceeded; H2CTermReq: R2T limit exceeded
	FESUnsupported        FES = 0x06 // unsupported parameter; FEI: its offset
)

// String returns the specification's name of the status.
func (f FES) String() string {
	switch f {
	case FESInvalidHeaderField:
		return "Invalid PDU Header Field"
	case FESSequenceError:
		return "PDU Sequence Error"
	case FESHeaderDigest:
		return "Header Digest Error"
	case FESOutOfRange:
		return "Data Transfer Out of Range"
	case FESLimitExceeded:
		return "Data Transfer or R2T Limit Exceeded"
	case FESUnsupported:
		return "Unsupported Parameter"
	}
	return fmt.Sprintf("reserved fatal error status %#04x", uint16(f))
}

// Error is a protocol error that ends the connection. It has all that the TermReq needs, which
// is the last PDU that the detecting side sends.
type Error struct {
	FES    FES
	FEI    uint32 // meaning depends on FES
	Type   Type   // of the offending PDU
	Detail string // what was wrong, for people
	Header []byte // copy of the offending header as far as it was there, at most 128 bytes
}

// Error says what was wrong with which PDU.
func (e *Error) Error() string {
	return fmt.Sprintf("protocol error in %s: %s (%s, FEI %#x)", e.Type, e.Detail, e.FES, e.FEI)
}

// Reply reports whether the error may be answered with a TermReq: a TermReq never is.
func (e *Error) Reply() bool { return !e.Type.IsTermReq() }

// NewError returns an error about the PDU whose header starts at hdr (its CH at least; a longer
// slice is cut at 128 bytes). The header is copied.
func NewError(fes FES, fei uint32, hdr []byte, detail string) *Error {
	e := &Error{FES: fes, FEI: fei, Detail: detail}
	if len(hdr) > 0 {
		e.Type = Type(hdr[0])
		e.Header = append([]byte(nil), hdr[:min(len(hdr), MaxHeaderLen)]...)
	}
	return e
}

// Offsets in headers that become FEI.
const (
	offType  = 0
	offFlags = 1
	offHLEN  = 2
	offPDO   = 3
	offPLEN  = 4
)

func headerError(h CommonHeader, fei uint32, detail string) *Error {
	return NewError(FESInvalidHeaderField, fei, h.Append(nil), detail)
}
