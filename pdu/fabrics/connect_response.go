package fabrics

import (
	"fmt"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// A ConnectResponse is the result of a Connect command that succeeded.
type ConnectResponse struct {
	CNTLID uint16 // the controller
	ATR    bool   // authentication is required before anything else
	ASCR   bool   // authentication and a secure channel are required
	SQHD   uint16 // see [ConnectResponse.SQFlowControl]
}

// SQFlowControl tells whether SQHD has to be minded on this queue. The
// controller says by SQHD FFFFh that it agreed to do without.
func (r *ConnectResponse) SQFlowControl() bool { return r.SQHD != nvme.SQHDFlowControlDisabled }

// CQE builds the completion of the Connect command cid.
func (r *ConnectResponse) CQE(cid uint16) nvme.CQE {
	c := nvme.CQE{DW0: uint32(r.CNTLID), SQHD: r.SQHD, CID: cid}
	if r.ATR {
		c.DW0 |= 1 << 17
	}
	if r.ASCR {
		c.DW0 |= 1 << 18
	}
	return c
}

// DecodeCQE reads the completion of a Connect command; a command that failed
// is a [ConnectError].
func (r *ConnectResponse) DecodeCQE(c *nvme.CQE) error {
	if !c.Status.OK() {
		e := &ConnectError{Status: c.Status}
		if c.Status.Code() == StatusConnectInvalidParameters {
			e.IPO, e.IATTR = uint16(c.DW0), c.DW0&(1<<16) != 0
		}
		return e
	}
	*r = ConnectResponse{
		CNTLID: uint16(c.DW0),
		ATR:    c.DW0&(1<<17) != 0,
		ASCR:   c.DW0&(1<<18) != 0,
		SQHD:   c.SQHD,
	}
	return nil
}

// Byte offsets that IPO has for the fields of Connect. HOSTID and CNTLID and
// the NQNs are in the data, the others in the SQE.
const (
	IPORECFMT  uint16 = 40
	IPOQID     uint16 = 42
	IPOSQSIZE  uint16 = 44
	IPOCATTR   uint16 = 46
	IPOKATO    uint16 = 48
	IPOHostID  uint16 = 0
	IPOCNTLID  uint16 = 16
	IPOSubNQN  uint16 = 256
	IPOHostNQN uint16 = 512
)

func ipoName(ipo uint16, data bool) string {
	switch {
	case data && ipo < 16:
		return "HOSTID"
	case data && ipo < 18:
		return "CNTLID"
	case data && ipo >= 256 && ipo < 512:
		return "SUBNQN"
	case data && ipo >= 512 && ipo < 768:
		return "HOSTNQN"
	case data:
		return fmt.Sprintf("data byte %d", ipo)
	case ipo >= 40 && ipo < 42:
		return "RECFMT"
	case ipo >= 42 && ipo < 44:
		return "QID"
	case ipo >= 44 && ipo < 46:
		return "SQSIZE"
	case ipo == 46:
		return "CATTR"
	case ipo >= 48 && ipo < 52:
		return "KATO"
	}
	return fmt.Sprintf("SQE byte %d", ipo)
}

// A ConnectError is a Connect command that the controller refused. It unwraps to
// its nvme.Status.
type ConnectError struct {
	Status nvme.Status
	IPO    uint16 // with Connect Invalid Parameters: byte offset of the field that is wrong
	IATTR  bool   // IPO is in the data, not in the SQE
}

// Field names the field that the controller found wrong, or "" when it named none.
func (e *ConnectError) Field() string {
	if e.Status.Code() != StatusConnectInvalidParameters {
		return ""
	}
	return ipoName(e.IPO, e.IATTR)
}

func (e *ConnectError) Error() string {
	t := "Connect: " + e.Status.Describe(StatusName(e.Status.Code()))
	if f := e.Field(); f != "" {
		t += ": the controller does not accept " + f
	}
	return t
}

// Unwrap returns the status.
func (e *ConnectError) Unwrap() error { return e.Status }

// Retryable tells whether the same Connect may succeed later.
func (e *ConnectError) Retryable() bool { return Retryable(e.Status) }

// ConnectInvalid builds the completion Connect Invalid Parameters (do not retry)
// for the Connect command cid. ipo is one of the IPO constants.
func ConnectInvalid(cid, ipo uint16, data bool) nvme.CQE {
	c := nvme.CQE{
		DW0: uint32(ipo), SQHD: nvme.SQHDFlowControlDisabled, CID: cid,
		Status: StatusConnectInvalidParameters.Status().WithDNR(),
	}
	if data {
		c.DW0 |= 1 << 16
	}
	return c
}
