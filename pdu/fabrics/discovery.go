package fabrics

import (
	"encoding/binary"
	"fmt"
	"math"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// Lengths of the discovery log page in bytes.
const (
	DiscoveryHeaderLen = 1024
	DiscoveryEntryLen  = 1024
)

// DLPF is the discovery log page format flags.
type DLPF uint8

// Bits of DLPF.
const (
	DLPFExtended     DLPF = 1 << 0 // EXTDLP
	DLPFPort         DLPF = 1 << 1 // PLEO: entries of this port only
	DLPFAllSubsystem DLPF = 1 << 2 // ALLSUBE
)

// A DiscoveryHeader is the header of the discovery log page (LID 70).
type DiscoveryHeader struct {
	GENCTR uint64 // changes with the content
	NUMREC uint64 // entries that follow
	RECFMT uint16 // 0
	DLPF   DLPF
	TDLPL  uint32 // total length with extended entries, bytes
}

// Append adds the 1024 bytes of the header to b.
func (h *DiscoveryHeader) Append(b []byte) []byte {
	n := len(b)
	b = append(b, make([]byte, DiscoveryHeaderLen)...)
	w := b[n:]
	binary.LittleEndian.PutUint64(w[0:], h.GENCTR)
	binary.LittleEndian.PutUint64(w[8:], h.NUMREC)
	binary.LittleEndian.PutUint16(w[16:], h.RECFMT)
	w[18] = byte(h.DLPF)
	binary.LittleEndian.PutUint32(w[20:], h.TDLPL)
	return b
}

// discoveryHeaderUsed is where the reserved bytes of the header begin.
const discoveryHeaderUsed = 24

// Decode reads the header from b, of which only the first 24 bytes have to be
// there.
func (h *DiscoveryHeader) Decode(b []byte) error {
	if len(b) < discoveryHeaderUsed {
		return &nvme.ShortError{What: "discovery log header", Need: discoveryHeaderUsed, Got: len(b)}
	}
	*h = DiscoveryHeader{
		GENCTR: binary.LittleEndian.Uint64(b[0:]),
		NUMREC: binary.LittleEndian.Uint64(b[8:]),
		RECFMT: binary.LittleEndian.Uint16(b[16:]),
		DLPF:   DLPF(b[18]),
		TDLPL:  binary.LittleEndian.Uint32(b[20:]),
	}
	return nil
}

// LogBytes returns the length of the page with all its entries, without
// extended attributes. An RECFMT that is not 0, and more than limit entries, are
// errors: NUMREC is the controller's word.
func (h *DiscoveryHeader) LogBytes(limit int) (int, error) {
	if h.RECFMT != 0 {
		return 0, fmt.Errorf("fabrics: discovery log has record format %d, only 0 is known", h.RECFMT)
	}
	limit = min(limit, math.MaxInt32/DiscoveryEntryLen-1)
	if limit < 0 || h.NUMREC > uint64(limit) {
		return 0, fmt.Errorf("fabrics: discovery log claims %d entries, more than the limit of %d", h.NUMREC, limit)
	}
	return DiscoveryHeaderLen + int(h.NUMREC)*DiscoveryEntryLen, nil
}

// TRTYPE is a transport type.
type TRTYPE uint8

// Transport types.
const (
	TRTYPEPCIe TRTYPE = 0
	TRTYPERDMA TRTYPE = 1
	TRTYPEFC   TRTYPE = 2
	TRTYPETCP  TRTYPE = 3
	TRTYPELoop TRTYPE = 254
)

// String names the transport as nvme-cli does.
func (t TRTYPE) String() string {
	switch t {
	case TRTYPEPCIe:
		return "pcie"
	case TRTYPERDMA:
		return "rdma"
	case TRTYPEFC:
		return "fc"
	case TRTYPETCP:
		return "tcp"
	case TRTYPELoop:
		return "loop"
	}
	return fmt.Sprintf("transport type %d", uint8(t))
}

// ADRFAM is an address family.
type ADRFAM uint8

// Address families.
const (
	ADRFAMPCI  ADRFAM = 0
	ADRFAMIPv4 ADRFAM = 1
	ADRFAMIPv6 ADRFAM = 2
	ADRFAMIB   ADRFAM = 3
	ADRFAMFC   ADRFAM = 4
	ADRFAMLoop ADRFAM = 254
)

// String names the address family as nvme-cli does.
func (a ADRFAM) String() string {
	switch a {
	case ADRFAMPCI:
		return "pci"
	case ADRFAMIPv4:
		return "ipv4"
	case ADRFAMIPv6:
		return "ipv6"
	case ADRFAMIB:
		return "ib"
	case ADRFAMFC:
		return "fc"
	case ADRFAMLoop:
		return "loop"
	}
	return fmt.Sprintf("address family %d", uint8(a))
}

// SUBTYPE is the type of the subsystem of an entry.
type SUBTYPE uint8

// Subsystem types.
const (
	SUBTYPEReferral SUBTYPE = 1 // another discovery subsystem
	SUBTYPENVM      SUBTYPE = 2 // an NVM subsystem
	SUBTYPECurrent  SUBTYPE = 3 // the discovery subsystem that was asked
)

// String names the subsystem type.
func (s SUBTYPE) String() string {
	switch s {
	case SUBTYPEReferral:
		return "discovery subsystem referral"
	case SUBTYPENVM:
		return "nvme subsystem"
	case SUBTYPECurrent:
		return "current discovery subsystem"
	}
	return fmt.Sprintf("subsystem type %d", uint8(s))
}

// TREQ is the transport requirements of an entry.
type TREQ uint8

// TREQSQFlowControlDisable tells that SQ flow control may be disabled.
const TREQSQFlowControlDisable TREQ = 1 << 2

// SecureChannel returns whether a secure channel is needed: see the constants.
func (t TREQ) SecureChannel() SecureChannel { return SecureChannel(t & 3) }

// String describes the requirements.
func (t TREQ) String() string {
	s := t.SecureChannel().String()
	if t&TREQSQFlowControlDisable != 0 {
		s += ", sq flow control disable supported"
	}
	return s
}

// SecureChannel is bits 1:0 of TREQ.
type SecureChannel uint8

// Values of SecureChannel.
const (
	SecureChannelNotSpecified SecureChannel = 0
	SecureChannelRequired     SecureChannel = 1
	SecureChannelNotRequired  SecureChannel = 2
)

// String names the value.
func (s SecureChannel) String() string {
	switch s {
	case SecureChannelNotSpecified:
		return "not specified"
	case SecureChannelRequired:
		return "required"
	case SecureChannelNotRequired:
		return "not required"
	}
	return fmt.Sprintf("reserved (%d)", uint8(s))
}

// EFLAGS is the flags of an entry.
type EFLAGS uint16

// Bits of EFLAGS.
const (
	EFLAGSDuplicate  EFLAGS = 1 << 0 // DUPRETINFO: other ports return the same data
	EFLAGSPersistent EFLAGS = 1 << 1 // EPCSD: explicit persistent connections are supported
	EFLAGSNoCDC      EFLAGS = 1 << 2 // NCC: no CDC connectivity
)

// SECTYPE is the security of a TCP transport.
type SECTYPE uint8

// Security types.
const (
	SECTYPENone  SECTYPE = 0
	SECTYPETLS12 SECTYPE = 1 // no longer used
	SECTYPETLS13 SECTYPE = 2
)

// String names the security type.
func (s SECTYPE) String() string {
	switch s {
	case SECTYPENone:
		return "none"
	case SECTYPETLS12:
		return "tls1.2"
	case SECTYPETLS13:
		return "tls1.3"
	}
	return fmt.Sprintf("security type %d", uint8(s))
}

// A DiscoveryEntry is one entry of the discovery log page: one way to one
// subsystem. Strings are as the controller sent them, without their padding:
// quote them when they are shown.
type DiscoveryEntry struct {
	TRTYPE  TRTYPE
	ADRFAM  ADRFAM
	SUBTYPE SUBTYPE
	TREQ    TREQ
	PORTID  uint16
	CNTLID  uint16 // [CNTLIDDynamic], [CNTLIDStatic], or the controller
	ASQSZ   uint16 // entries of the admin queue at most, not 0's based
	EFLAGS  EFLAGS
	TRSVCID string  // the port
	SubNQN  string  // SUBNQN
	TRADDR  string  // the address; IPv6 may have a %scope
	SECTYPE SECTYPE // of TSAS; means something for TCP only
}

// Append adds the 1024 bytes of the entry to b, strings padded with NULs. One
// that does not fit is an error, and b comes back as it was.
func (e *DiscoveryEntry) Append(b []byte) ([]byte, error) {
	if err := fitNQN("SUBNQN", e.SubNQN); err != nil {
		return b, err
	}
	if err := fit("TRSVCID", e.TRSVCID, 32); err != nil {
		return b, err
	}
	if err := fit("TRADDR", e.TRADDR, 256); err != nil {
		return b, err
	}
	n := len(b)
	b = append(b, make([]byte, DiscoveryEntryLen)...)
	w := b[n:]
	w[0] = byte(e.TRTYPE)
	w[1] = byte(e.ADRFAM)
	w[2] = byte(e.SUBTYPE)
	w[3] = byte(e.TREQ)
	binary.LittleEndian.PutUint16(w[4:], e.PORTID)
	binary.LittleEndian.PutUint16(w[6:], e.CNTLID)
	binary.LittleEndian.PutUint16(w[8:], e.ASQSZ)
	binary.LittleEndian.PutUint16(w[10:], uint16(e.EFLAGS))
	copy(w[32:], e.TRSVCID)
	copy(w[256:], e.SubNQN)
	copy(w[512:], e.TRADDR)
	w[768] = byte(e.SECTYPE)
	return b, nil
}

// Decode reads the entry from the first 1024 bytes of b. A SUBNQN that is
// empty, or longer than [NQNMaxLen], is an error.
func (e *DiscoveryEntry) Decode(b []byte) error {
	if len(b) < DiscoveryEntryLen {
		return &nvme.ShortError{What: "discovery log entry", Need: DiscoveryEntryLen, Got: len(b)}
	}
	*e = DiscoveryEntry{
		TRTYPE:  TRTYPE(b[0]),
		ADRFAM:  ADRFAM(b[1]),
		SUBTYPE: SUBTYPE(b[2]),
		TREQ:    TREQ(b[3]),
		PORTID:  binary.LittleEndian.Uint16(b[4:]),
		CNTLID:  binary.LittleEndian.Uint16(b[6:]),
		ASQSZ:   binary.LittleEndian.Uint16(b[8:]),
		EFLAGS:  EFLAGS(binary.LittleEndian.Uint16(b[10:])),
		TRSVCID: trim(b[32:64]),
		SubNQN:  cstring(b[256:512]),
		TRADDR:  trim(b[512:768]),
		SECTYPE: SECTYPE(b[768]),
	}
	if err := fitNQN("SUBNQN", e.SubNQN); err != nil {
		return fmt.Errorf("discovery log entry: %w", err)
	}
	return nil
}
