package nvmetcp

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// Subsystem is an NVM subsystem that a [Host] is connected to. Its methods may be called from any
// goroutine.
type Subsystem struct {
	ctrl   *controller
	closed atomic.Bool
	close  func() error
}

func newSubsystem(c *controller) *Subsystem {
	s := &Subsystem{ctrl: c}
	s.close = sync.OnceValue(func() error {
		s.closed.Store(true)
		c.closing.Store(true)
		var err error
		if c.Err() == nil {
			err = c.shutdown()
		}
		c.release()
		return err
	})
	return s
}

// path returns the controller to use for the next command, and ErrClosed when there is not to be one.
func (s *Subsystem) path() (*controller, error) {
	if s.closed.Load() {
		return s.ctrl, ErrClosed
	}
	return s.ctrl, nil
}

// Close shuts the controller down in an orderly way (CC.SHN), waits for it as long as it says that it
// needs, though at most a minute, and closes all connections. Close when reads and writes have
// returned: those that have not will fail. Everything is released whatever the result, which is an
// error when the controller did not confirm the shutdown. Closing again returns the same.
func (s *Subsystem) Close() error { return s.close() }

// Done is closed when the association has ended, by Close or by a loss that Err explains.
func (s *Subsystem) Done() <-chan struct{} { return s.ctrl.ended }

// Err is nil while the association lives, and then says why it ended: ErrClosed after Close,
// otherwise an ErrPathLost.
func (s *Subsystem) Err() error { return s.ctrl.wrap("association", 0, s.ctrl.Err()) }

// ControllerInfo describes a controller and the queues to it.
type ControllerInfo struct {
	NQN      string                  // of the subsystem, SUBNQN
	HostNQN  string                  // who this host is to it
	HostID   HostID                  // likewise
	Addr     string                  // of the admin queue, host:port
	CNTLID   uint16                  // controller identifier
	CAP      fabrics.CAP             // capabilities
	VS       fabrics.VS              // version
	KATO     time.Duration           // keep alive timeout, 0 for none
	Identify nvme.IdentifyController // Identify Controller data
	Admin    queue.Info              // the admin queue
	Queues   []queue.Info            // the I/O queues, QID 1 first: drivers, digests, and every fallback with its reason
	Pinning  Pinning                 // where the I/O queues' threads run
}

// Controller describes the controller in use.
func (s *Subsystem) Controller() ControllerInfo {
	c := s.ctrl
	i := ControllerInfo{
		NQN: c.target.NQN, HostNQN: c.id.nqn, HostID: c.id.id, Addr: c.addr, CNTLID: c.cntlid,
		CAP: c.cap, VS: c.vs, KATO: c.kato, Identify: c.identify, Pinning: c.pinning,
	}
	i.Pinning.CPUs = nil
	for _, q := range c.queues() {
		info := q.Info()
		info.Notes = slices.Concat(info.Notes, c.notes[info.QID])
		if info.QID == 0 {
			i.Admin = info
			continue
		}
		i.Queues = append(i.Queues, info)
		i.Pinning.CPUs = append(i.Pinning.CPUs, info.CPU) // what was chosen, unless it could not be had
	}
	return i
}

// queues lists the admin queue and the I/O queues.
func (c *controller) queues() []*queue.Queue {
	all := []*queue.Queue{c.admin}
	for _, q := range c.io {
		all = append(all, q.Queue)
	}
	return all
}

// Stats counts what went over an association.
type Stats struct {
	BytesAsked   uint64        // that readers asked for
	BytesRead    uint64        // that were read for them: whole blocks, and what was read again. BytesRead/BytesAsked is the amplification
	BytesWritten uint64        // that were written
	Retries      uint64        // commands that were sent again, whole or in smaller pieces
	KeepAliveRTT time.Duration // round trip of the last Keep Alive, 0 before the first
	Admin        queue.Stats   // the admin queue
	Queues       []queue.Stats // the I/O queues, QID 1 first
}

// Stats returns the counters; those of the queues may be a millisecond old.
func (s *Subsystem) Stats() Stats {
	c := s.ctrl
	st := Stats{KeepAliveRTT: time.Duration(c.rtt.Load()), Admin: c.admin.Stats()}
	for _, q := range c.io {
		st.BytesAsked += q.asked.Load()
		st.BytesRead += q.read.Load()
		st.BytesWritten += q.written.Load()
		st.Retries += q.retries.Load()
		st.Queues = append(st.Queues, q.Stats())
	}
	return st
}

// maxNamespaces bounds the list of namespaces that a controller may make a host keep.
const maxNamespaces = 1 << 16

// Namespaces returns the identifiers of the active namespaces, ascending.
func (s *Subsystem) Namespaces(ctx context.Context) ([]uint32, error) {
	const op = "list namespaces"
	c, err := s.path()
	if err != nil {
		return nil, c.wrap(op, 0, err)
	}
	var (
		all  []uint32
		page nvme.NamespaceList
		b    = make([]byte, nvme.IdentifyLen)
		last uint32
	)
	for {
		if _, err := c.do(ctx, op, nvme.Identify(nvme.CNSActiveNSList, last, 0), b); err != nil {
			return nil, err
		}
		if err := page.DecodeAfter(b, last); err != nil {
			return nil, c.wrap(op, 0, fmt.Errorf("%w: %w", ErrController, err))
		}
		all = append(all, page...)
		if len(all) > maxNamespaces {
			return nil, c.wrap(op, 0, fmt.Errorf("%w: it lists more than %d namespaces", ErrController, maxNamespaces))
		}
		if len(page) < nvme.IdentifyLen/4 {
			return all, nil
		}
		if last = page[len(page)-1]; last >= nvme.NSIDAll-1 {
			return all, nil
		}
	}
}

// Namespace returns a handle of the namespace nsid. It is an error when it is not active, or has a
// format that NVMe/TCP hosts cannot use.
func (s *Subsystem) Namespace(ctx context.Context, nsid uint32) (*Namespace, error) {
	op := fmt.Sprintf("identify namespace %d", nsid)
	c, err := s.path()
	if err != nil {
		return nil, c.wrap(op, 0, err)
	}
	if nsid == 0 || nsid == nvme.NSIDAll {
		return nil, c.wrap(op, 0, fmt.Errorf("%w: NSIDs are 1 to 0xFFFFFFFE", ErrNoNamespace))
	}
	b := make([]byte, nvme.IdentifyLen)
	if _, err := c.do(ctx, op, nvme.Identify(nvme.CNSNamespace, nsid, 0), b); err != nil {
		return nil, err
	}
	var id nvme.IdentifyNamespace
	if err := id.Decode(b); err != nil {
		return nil, c.wrap(op, 0, err)
	}
	ids := nvme.NamespaceIDs{NGUID: id.NGUID, EUI64: id.EUI64}
	if id.NSZE != 0 {
		if err := c.describe(ctx, op, nsid, b, &ids); err != nil {
			return nil, err
		}
	}
	ns, err := newNamespace(s, c, nsid, &id, &ids)
	return ns, c.wrap(op, 0, err)
}

// describe reads the namespace's identification descriptors, which old controllers do not have.
func (c *controller) describe(ctx context.Context, op string, nsid uint32, b []byte, ids *nvme.NamespaceIDs) error {
	cmd := queue.Command{SQE: nvme.Identify(nvme.CNSNSDescriptors, nsid, 0)}
	cmd.SetData(b)
	err := c.submit(ctx, c.admin, &cmd)
	if _, ok := err.(nvme.Status); ok {
		return nil
	}
	if err != nil {
		return c.wrap(op, 0, err)
	}
	var d nvme.NamespaceIDs
	if err := d.Decode(b); err != nil {
		return c.wrap(op, 0, fmt.Errorf("%w: %w", ErrController, err))
	}
	if d.NGUID == [16]byte{} {
		d.NGUID = ids.NGUID
	}
	if d.EUI64 == [8]byte{} {
		d.EUI64 = ids.EUI64
	}
	*ids = d
	return nil
}
