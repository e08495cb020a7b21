package fabrics

import "github.com/nvstage/nvstage/pdu/nvme"

// Status codes of fabrics commands. The first ones have other meanings for
// NVM commands.
const (
	StatusConnectIncompatibleFormat nvme.Code = 0x180 // RECFMT is not 0
	StatusConnectControllerBusy     nvme.Code = 0x181 // no controller is free; later
	StatusConnectInvalidParameters  nvme.Code = 0x182 // see [ConnectError]
	StatusConnectRestartDiscovery   nvme.Code = 0x183 // the subsystem moved
	StatusConnectInvalidHost        nvme.Code = 0x184 // the host NQN is not allowed
	StatusInvalidQueueType          nvme.Code = 0x185 // Disconnect on the admin queue
	StatusDiscoverRestart           nvme.Code = nvme.StatusDiscoverRestart
	StatusAuthenticationRequired    nvme.Code = nvme.StatusAuthenticationRequired
)

// StatusName returns the name of the code as the answer to a fabrics command.
func StatusName(c nvme.Code) string {
	switch c {
	case StatusConnectIncompatibleFormat:
		return "Connect Incompatible Format"
	case StatusConnectControllerBusy:
		return "Connect Controller Busy"
	case StatusConnectInvalidParameters:
		return "Connect Invalid Parameters"
	case StatusConnectRestartDiscovery:
		return "Connect Restart Discovery"
	case StatusConnectInvalidHost:
		return "Connect Invalid Host"
	case StatusInvalidQueueType:
		return "Invalid Queue Type"
	}
	return c.Name()
}

// Retryable is nvme.Status.Retryable for the status of a fabrics command.
func Retryable(s nvme.Status) bool {
	return s.Retryable() || !s.DNR() && s.Code() == StatusConnectControllerBusy
}

// A StatusError is the failure of a fabrics command other than Connect. It
// unwraps to its nvme.Status.
type StatusError struct {
	Command FCTYPE
	Status  nvme.Status
}

func (e *StatusError) Error() string {
	return e.Command.String() + ": " + e.Status.Describe(StatusName(e.Status.Code()))
}

// Unwrap returns the status.
func (e *StatusError) Unwrap() error { return e.Status }

// CommandError returns nil when s is success, and else a [StatusError].
func CommandError(t FCTYPE, s nvme.Status) error {
	if s.OK() {
		return nil
	}
	return &StatusError{Command: t, Status: s}
}
