package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// Errors that callers tell apart with errors.Is. Those of an NVMe status are compared with the
// constants of package nvme: errors.Is(err, nvme.StatusInvalidField).
var (
	// ErrPathLost means that the connection to the controller is gone. Whether a command that was
	// outstanding has been executed is unknown.
	ErrPathLost = queue.ErrPathLost
	// ErrTimeout means that the controller did not answer within a limit of [Options].
	ErrTimeout = queue.ErrTimeout
	// ErrClosed means that this side closed the [Subsystem].
	ErrClosed = queue.ErrClosed
	// ErrDigest means that data arrived damaged, also when it was read again.
	ErrDigest = queue.ErrDigest
	// ErrDigestsRefused means that the controller did not grant the digests that were asked for.
	ErrDigestsRefused = queue.ErrDigestsRefused
	// ErrProtocol means that the controller broke the NVMe/TCP protocol, and that this side therefore
	// ended the association. It is an ErrPathLost too.
	ErrProtocol = queue.ErrProtocol
	// ErrTerminated means that the controller ended the association because of what it takes for a
	// mistake of this side, and said so (C2HTermReq). It is an ErrPathLost too.
	ErrTerminated = queue.ErrTerminated
	// ErrAuth means that the controller wants the host to authenticate.
	ErrAuth = errors.New("authentication required, which is not supported yet")
	// ErrController means that the controller's answers contradict the specification or each other,
	// or that it reports a fatal failure.
	ErrController = errors.New("controller not usable")
	// ErrNoNamespace means that no namespace with this NSID is active.
	ErrNoNamespace = errors.New("namespace is not active")
	// ErrMetadata means that the namespace's blocks have metadata, which NVMe/TCP hosts cannot skip.
	ErrMetadata = errors.New("namespace has metadata or protection information, which is not supported")
	// ErrUnaligned means that a write does not begin and end at block boundaries.
	ErrUnaligned = errors.New("write is not aligned to blocks")
	// ErrRange means that a range is not within the namespace.
	ErrRange = errors.New("range is not within the namespace")
	// ErrTooLarge means that one [Read] of a [Feed] is larger than MaxIO.
	ErrTooLarge = errors.New("read is larger than the limit")
	// ErrIdentity means that the host has no usable NQN and ID.
	ErrIdentity = errors.New("no usable host identity")
)

// OpError is the error of everything that talks to a controller: what was tried, where, what came of
// it, and what may help.
type OpError struct {
	Op         string // what was tried, as "connect" or "read of 4096 bytes at 512 of namespace 1"
	Controller string // NQN of the subsystem
	Path       string // address that was tried, host:port
	QID        uint16 // queue that it was tried on, 0 the admin queue
	CID        uint16 // command identifier, where a command failed
	Err        error  // the cause
	Hint       string // what to do next, "" when nothing is known
}

// Error is one line.
func (e *OpError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "nvmetcp: %s: %q at %s", e.Op, e.Controller, e.Path)
	if e.QID != 0 {
		fmt.Fprintf(&b, ", queue %d", e.QID)
	}
	b.WriteString(": ")
	if q, ok := e.Err.(*queue.Error); ok { // whose text would name the address again
		fmt.Fprintf(&b, "%s: %v", q.Op, q.Err)
	} else {
		b.WriteString(e.Err.Error())
	}
	if e.Hint != "" {
		b.WriteString("; ")
		b.WriteString(e.Hint)
	}
	return b.String()
}

// Unwrap returns the cause.
func (e *OpError) Unwrap() error { return e.Err }

// Retryable reports whether what failed with err may succeed when it is simply tried again, perhaps
// after a pause, and on a new association when err is an [ErrPathLost]. It is about reads and about
// connecting, which may be repeated at will. A write whose outcome is unknown, which is one that
// failed with ErrPathLost, is a different matter: the old controller may still execute it.
func Retryable(err error) bool {
	var (
		status  nvme.Status
		connect *fabrics.ConnectError
		dns     *net.DNSError
		netErr  net.Error
	)
	switch {
	case err == nil, errors.Is(err, ErrClosed), errors.Is(err, ErrDigestsRefused),
		errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return false
	case errors.As(err, &connect):
		return connect.Retryable()
	case errors.As(err, &status):
		return status.Retryable()
	case errors.As(err, &dns):
		return !dns.IsNotFound
	case errors.Is(err, ErrDigest), errors.Is(err, ErrPathLost), errors.Is(err, ErrTimeout):
		return true
	}
	return errors.As(err, &netErr)
}

// hint says what a person may do about err.
func hint(err error, hostNQN string, t Target) string {
	var (
		connect *fabrics.ConnectError
		dns     *net.DNSError
		netErr  net.Error
	)
	switch {
	case errors.As(err, &connect):
		return connectHint(connect, hostNQN, t)
	case errors.Is(err, context.Canceled), errors.Is(err, context.DeadlineExceeded):
		return ""
	case errors.Is(err, ErrDigestsRefused):
		return "turn HeaderDigest and DataDigest off here, or on at the target"
	case errors.As(err, &dns):
		return "check the name, or give an IP address"
	case errors.Is(err, syscall.ECONNREFUSED):
		return "nothing listens there: check the address and the port (4420 is usual for I/O, 8009 for discovery), and that the target runs"
	case errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return "there is no route: check the address and the network"
	case errors.Is(err, syscall.EADDRNOTAVAIL) && t.HostTraddr != "":
		return fmt.Sprintf("HostTraddr %s is not an address of this machine now", t.HostTraddr)
	case errors.Is(err, syscall.ENODEV) && t.HostIface != "":
		return fmt.Sprintf("HostIface %s is not an interface of this machine now", t.HostIface)
	case errors.Is(err, syscall.EPERM):
		return privilegeHint(err)
	case errors.As(err, &netErr) && netErr.Timeout():
		if op := (*net.OpError)(nil); errors.As(err, &op) && op.Op != "dial" {
			return "does an NVMe/TCP controller listen there?"
		}
		return "check the address, routes and firewalls"
	case errors.Is(err, nvme.StatusANAInaccessible), errors.Is(err, nvme.StatusANAPersistentLoss):
		return "the target does not serve the namespace at this address: try another one of the subsystem, discovery lists them"
	case errors.Is(err, nvme.StatusDataSGLLengthInvalid):
		return "the controller refuses transfers of this size: lower MaxIO"
	case errors.Is(err, nvme.StatusAuthenticationRequired):
		return ErrAuth.Error()
	case errors.Is(err, io.ErrUnexpectedEOF):
		return "Linux targets close without a word when they dislike something: see their log"
	}
	return ""
}

// privilegeHint says what a socket option needs that may not be set.
func privilegeHint(err error) string {
	var call *os.SyscallError
	if !errors.As(err, &call) {
		return ""
	}
	switch option, _, _ := strings.Cut(call.Syscall, " "); option {
	case "SO_BINDTODEVICE":
		return "binding to HostIface needs CAP_NET_RAW here"
	case "SO_PRIORITY":
		return "a Socket.Priority of more than 6 needs CAP_NET_ADMIN"
	case "SO_BUSY_POLL":
		return "more Socket.BusyPoll than net.core.busy_read needs CAP_NET_ADMIN"
	}
	return ""
}

func connectHint(e *fabrics.ConnectError, hostNQN string, t Target) string {
	switch code := e.Status.Code(); {
	case code == fabrics.StatusConnectInvalidHost:
		return fmt.Sprintf("host NQN %q is not allowed on subsystem %q: add it to allowed_hosts on the target", hostNQN, t.NQN)
	case code == fabrics.StatusConnectControllerBusy:
		return "the subsystem has no controller free: try later, or disconnect another host"
	case code == fabrics.StatusConnectRestartDiscovery:
		return "the subsystem has moved: read the discovery log again"
	case code == nvme.StatusAuthenticationRequired:
		return ErrAuth.Error()
	case code == fabrics.StatusConnectInvalidParameters && e.IATTR && e.IPO == fabrics.IPOSubNQN:
		return fmt.Sprintf("no subsystem %q at %s: list what is there with discovery", t.NQN, t.Addr)
	case code == fabrics.StatusConnectInvalidParameters && e.IATTR && e.IPO == fabrics.IPOHostNQN:
		return fmt.Sprintf("the target does not take host NQN %q", hostNQN)
	}
	return ""
}

// wrap makes the OpError of a command or a connection attempt. An error that already is one stays.
func (c *controller) wrap(op string, qid uint16, err error) error {
	if err == nil {
		return nil
	}
	if oe := (*OpError)(nil); errors.As(err, &oe) {
		return err
	}
	return c.opError(op, qid, err)
}

func (c *controller) opError(op string, qid uint16, err error) *OpError {
	// Once the association is over, the controller may close a queue's connection before this side does. What ended the
	// association says more then.
	if cause := c.Err(); ofConnection(err) && cause != nil && !ofConnection(cause) && !errors.Is(cause, ErrClosed) {
		err = &queue.Error{QID: qid, Addr: c.addr, Op: "association", Err: cause}
	}
	return &OpError{Op: op, Controller: c.target.NQN, Path: c.addr, QID: qid, Err: err, Hint: hint(err, c.id.nqn, c.target)}
}

// ofConnection tells whether err is the end of a queue whose connection ended, for whatever reason.
func ofConnection(err error) bool {
	var e *queue.Error
	return errors.As(err, &e) && e.Op == queue.OpConnection
}
