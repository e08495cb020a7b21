package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Host is who connects. The zero value is this machine: its NQN and ID are those of
// /etc/nvme/hostnqn and /etc/nvme/hostid, where the system's NVMe tools keep them. When there are
// none, an identity is made once and kept in the user's configuration directory (on Linux
// ~/.config/nvstage), so that the machine stays the same host to its targets.
//
// NQN and ID belong together: a target may refuse, or take for another, a host that shows one NQN
// with two IDs. Of a given ID the NQN is made, and of a given NQN that contains a UUID the ID;
// for another NQN the ID must be given too.
type Host struct {
	NQN string // HOSTNQN, the name that targets' allow lists have
	ID  HostID // HOSTID
}

// Connect attempts, when the controller is busy or refuses a queue for the moment.
const (
	connectAttempts = 6
	connectBackoff  = 50 * time.Millisecond // doubles with each attempt
)

// Connect makes an association with a controller of the target's subsystem: the admin queue, the
// controller's initialisation, and the I/O queues. opts may be nil.
//
// A controller that is busy, or still holds queues of an association that has just ended, is tried
// again a few times, each time with a new controller. Whatever else fails is returned at once as an
// *[OpError].
func (h Host) Connect(ctx context.Context, t Target, opts *Options) (*Subsystem, error) {
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	id, err := h.identity(systemDir, userDir)
	if err != nil {
		return nil, err
	}
	if t.NQN == "" {
		return nil, errors.New("nvmetcp: Target.NQN is empty; list the subsystems at an address with Host.Discover")
	}
	if err := fabrics.ValidateNQN(t.NQN); err != nil {
		return nil, fmt.Errorf("nvmetcp: Target.NQN: %w", err)
	}
	if t.Addr, err = withPort(t.Addr, DefaultPort); err != nil {
		return nil, err
	}
	var c *controller
	err = again(ctx, &o, t, func() (err error) {
		c, err = connect(ctx, id, t, &o)
		return err
	})
	if err != nil {
		return nil, err
	}
	return newSubsystem(c), nil
}

// again calls connect, and calls it again when the controller has no room at the moment.
func again(ctx context.Context, o *Options, t Target, connect func() error) error {
	var was error // that it was busy
	for attempt, pause := 1, connectBackoff; ; attempt, pause = attempt+1, pause*2 {
		err := connect()
		switch {
		case err != nil && !busy(err) && was != nil && ctx.Err() != nil: // in the middle of another attempt
			return fmt.Errorf("%w: %w", ended(ctx), was)
		case err == nil || attempt == connectAttempts || !busy(err):
			return err
		}
		was = err
		o.Logger.Info("controller is busy, connecting again", "subsystem", t.NQN, "addr", t.Addr, "in", pause, "err", err)
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ended(ctx), err)
		}
	}
}

// busy tells whether a new association may succeed right after this error. On an I/O queue there are
// more such answers than on the admin queue: what the controller remembers of an older association
// makes it see a duplicate queue, or a controller identifier that has gone.
func busy(err error) bool {
	var ce *fabrics.ConnectError
	if !errors.As(err, &ce) || ce.Status.DNR() {
		return false
	}
	switch ce.Status.Code() {
	case fabrics.StatusConnectControllerBusy:
		return true
	case nvme.StatusInvalidQueueID, nvme.StatusCommandSequenceError:
		var oe *OpError
		return errors.As(err, &oe) && oe.QID != 0
	case fabrics.StatusConnectInvalidParameters:
		return ce.IATTR && ce.IPO == fabrics.IPOCNTLID || !ce.IATTR && ce.IPO == fabrics.IPOQID
	}
	return false
}
