package queue

import (
	"errors"
	"fmt"

	"github.com/nvstage/nvstage/pdu"
)

// Errors that callers tell apart with errors.Is.
var (
	// ErrPathLost means that the connection is gone. Whether a command that was outstanding has been
	// executed is unknown.
	ErrPathLost = errors.New("connection to the controller lost")
	// ErrClosed means that the queue was closed from this side.
	ErrClosed = errors.New("queue closed")
	// ErrTimeout means that a command or the connection set-up took longer than its limit.
	ErrTimeout = errors.New("timed out")
	// ErrDigest is a data digest error: the payload arrived damaged. The command failed, the queue
	// goes on, and the command may be retried.
	ErrDigest = errors.New("data digest error")
	// ErrDigestsRefused means that the controller did not grant the digests that were asked for.
	ErrDigestsRefused = errors.New("controller did not grant the digests asked for")
	// ErrProtocol means that the controller broke the protocol; the chain has a *pdu.Error.
	ErrProtocol = errors.New("controller broke the NVMe/TCP protocol")
	// ErrTerminated means that the controller ended the connection with C2HTermReq; the chain has a *TermError.
	ErrTerminated = errors.New("controller terminated the connection")
)

// Error is why a queue ended, and the error of each command that was outstanding then.
// errors.Is(err, ErrPathLost) holds for all of them except ErrClosed.
type Error struct {
	QID  uint16
	Addr string // the controller's
	Op   string // what the queue was doing, OpConnection when the other side or the network ended it
	Err  error
}

// OpConnection is the Op of an Error that is the connection's own end: closed, reset, unreachable.
const OpConnection = "connection"

// Error names the queue, the address, what was going on, and the cause.
func (e *Error) Error() string {
	return fmt.Sprintf("queue %d to %s: %s: %v", e.QID, e.Addr, e.Op, e.Err)
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// Is makes every end of a queue that this side did not ask for an ErrPathLost.
func (e *Error) Is(target error) bool {
	return target == ErrPathLost && !errors.Is(e.Err, ErrClosed)
}

// TermError is a C2HTermReq: what the controller complained of.
type TermError struct {
	pdu.TermReq
}

// Error tells the controller's complaint.
func (e *TermError) Error() string { return ErrTerminated.Error() + ": " + e.TermReq.String() }

// Is makes it an ErrTerminated.
func (e *TermError) Is(target error) bool { return target == ErrTerminated }
