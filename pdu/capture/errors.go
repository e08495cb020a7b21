package capture

import (
	"errors"
	"fmt"
	"time"

	"github.com/nvstage/nvstage/pdu"
)

// What can be wrong with a connection in a capture, beside the protocol errors, which are
// [*pdu.Error]. Each comes wrapped in an [*Error].
var (
	// ErrNoStart: ICReq and ICResp were not captured, so the digests in use are unknown. The
	// connection is not decoded.
	ErrNoStart = errors.New("the start of the connection was not captured")
	// ErrGap: bytes are missing from the capture. Inside a PDU whose length is known decoding goes
	// on with the next PDU; otherwise this direction is lost.
	ErrGap = errors.New("bytes were not captured")
	// ErrTooLong: a PDU, or what waits for a lost segment, is above Config.MaxBuffer.
	ErrTooLong = errors.New("more than may be buffered")
	// ErrCut: the connection or the capture ends inside a PDU.
	ErrCut = errors.New("ends inside a PDU")
	// ErrTLS: the connection uses TLS and cannot be decoded.
	ErrTLS = errors.New("the connection is encrypted by TLS")
)

// Error is what is wrong with one direction of one connection.
type Error struct {
	Time  time.Time // of the packet where it was noticed
	Frame int       // number of that packet, from 1
	Conn  Conn
	To    pdu.Role
	Err   error
}

// Error says where, who spoke to whom, and what is wrong.
func (e *Error) Error() string {
	from, to := e.Conn.Host, e.Conn.Controller
	if e.To == pdu.Host {
		from, to = to, from
	}
	return fmt.Sprintf("capture: packet %d, %s > %s: %v", e.Frame, from, to, e.Err)
}

// Unwrap returns Err.
func (e *Error) Unwrap() error { return e.Err }
