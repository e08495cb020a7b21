package nvmetest

import (
	"slices"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// events is the asynchronous event state of a controller. Its AERs are in the admin queue's Conn.
type events struct {
	enabled uint32 // AEC
	waiting []nvme.AsyncEvent
	masked  []nvme.LID // pages that have to be read before the next event of theirs
	changed []uint32   // NSIDs for log page 04
}

// asyncEventRequest holds an AER until there is an event.
func (c *Conn) asyncEventRequest(cmd *command) (st nvme.Status, wait bool) {
	if st := c.controllerScope(cmd); !st.OK() {
		return st, false
	}
	if len(c.aers) > aerl {
		c.note("%d Asynchronous Event Requests outstanding, AERL allows %d", len(c.aers)+1, aerl+1)
		return c.fail(nvme.StatusAERLimitExceeded), false
	}
	c.hold(cmd)
	c.aers = append(c.aers, cmd)
	c.deliver()
	return 0, true
}

// dropAERs ends the AERs with a controller reset. The strict mode tells the host; others forget.
func (c *Conn) dropAERs() {
	aers := c.aers
	c.aers = nil
	for _, cmd := range aers {
		if c.t.profile.Mode == ModeStrict {
			c.finish(cmd, nvme.StatusAbortedSQDeletion.Status())
		}
	}
}

// deliver completes AERs with the events that wait. c.mu is held.
func (c *Conn) deliver() {
	ev := &c.ctrl.events
	for len(c.aers) > 0 {
		c.ctrl.mu.Lock()
		i := slices.IndexFunc(ev.waiting, func(e nvme.AsyncEvent) bool { return !slices.Contains(ev.masked, e.LogPage) })
		if i < 0 {
			c.ctrl.mu.Unlock()
			return
		}
		e := ev.waiting[i]
		ev.waiting = slices.Delete(ev.waiting, i, i+1)
		if e.LogPage != 0 {
			ev.masked = append(ev.masked, e.LogPage)
		}
		c.ctrl.mu.Unlock()
		cmd := c.aers[0]
		c.aers = c.aers[1:]
		cmd.dw0 = e.DW0()
		c.finish(cmd, 0)
	}
}

// unmask lets events of a page come again, as it was read without RAE. c.mu is held.
func (c *Conn) unmask(lid nvme.LID) {
	c.ctrl.mu.Lock()
	ev := &c.ctrl.events
	ev.masked = slices.DeleteFunc(ev.masked, func(m nvme.LID) bool { return m == lid })
	c.ctrl.mu.Unlock()
	c.deliver()
}

func (c *Conn) setAEC(v uint32) {
	c.ctrl.mu.Lock()
	c.ctrl.events.enabled = v
	c.ctrl.mu.Unlock()
}

// wanted is the bit of AEC that an event needs, 0 for one that always comes.
func wanted(e nvme.AsyncEvent) uint32 {
	switch e.Type {
	case nvme.AsyncEventNotice:
		switch e.Info {
		case nvme.NoticeNamespaceAttribute:
			return nvme.AECNamespaceAttribute
		case nvme.NoticeANA:
			return nvme.AECANA
		case nvme.NoticeDiscoveryLog:
			return nvme.AECDiscoveryLog
		}
	case nvme.AsyncEventSMART:
		return nvme.AECSMARTMask
	}
	return 0
}

// post gives an event to a controller. No Conn's lock may be held.
func (ctrl *controller) post(e nvme.AsyncEvent, changed ...uint32) {
	ctrl.mu.Lock()
	ev := &ctrl.events
	for _, nsid := range changed {
		if !slices.Contains(ev.changed, nsid) {
			ev.changed = append(ev.changed, nsid)
		}
	}
	slices.Sort(ev.changed)
	if w := wanted(e); w == 0 || ev.enabled&w != 0 {
		if !slices.Contains(ev.waiting, e) {
			ev.waiting = append(ev.waiting, e)
		}
	}
	admin := ctrl.queues[0]
	ctrl.mu.Unlock()
	if admin == nil {
		return
	}
	admin.mu.Lock()
	admin.deliver()
	admin.mu.Unlock()
	admin.kick()
}

// Event posts an asynchronous event to every controller of a subsystem whose host switched such
// events on. The discovery subsystem has the well-known discovery NQN.
func (t *Target) Event(nqn string, e nvme.AsyncEvent) {
	if sub := t.subsystem(nqn); sub != nil {
		for _, ctrl := range sub.controllerList() {
			ctrl.post(e)
		}
	}
}

func (t *Target) subsystem(nqn string) *subsystem {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.subsystems[nqn]
}

// SetNamespace adds a namespace to a subsystem or replaces one, and tells the hosts. It panics for a
// subsystem that is not there and for a namespace that Start would refuse.
func (t *Target) SetNamespace(nqn string, ns Namespace) {
	s := Subsystem{NQN: nqn, Namespaces: []Namespace{ns}}
	if err := s.check(); err != nil {
		panic(err)
	}
	sub := t.mustSubsystem(nqn)
	if ns.NSID == 0 {
		ns.NSID = 1
	}
	sub.put(&ns)
	sub.namespaceChanged(ns.NSID)
}

// RemoveNamespace takes a namespace out of a subsystem, and tells the hosts.
func (t *Target) RemoveNamespace(nqn string, nsid uint32) {
	sub := t.mustSubsystem(nqn)
	sub.mu.Lock()
	m := map[uint32]*namespace{}
	for id, ns := range *sub.namespaces.Load() {
		if id != nsid {
			m[id] = ns
		}
	}
	sub.namespaces.Store(&m)
	sub.mu.Unlock()
	sub.namespaceChanged(nsid)
}

func (t *Target) mustSubsystem(nqn string) *subsystem {
	sub := t.subsystem(nqn)
	if sub == nil || sub.discovery {
		panic("nvmetest: there is no NVM subsystem " + nqn)
	}
	return sub
}

func (s *subsystem) namespaceChanged(nsid uint32) {
	e := nvme.AsyncEvent{Type: nvme.AsyncEventNotice, Info: nvme.NoticeNamespaceAttribute, LogPage: nvme.LIDChangedNamespaces}
	for _, ctrl := range s.controllerList() {
		ctrl.post(e, nsid)
	}
}

// SetANA changes the state of an ANA group of a subsystem, and tells the hosts.
func (t *Target) SetANA(nqn string, group uint32, state nvme.ANAState) {
	sub := t.mustSubsystem(nqn)
	sub.mu.Lock()
	g := sub.groupLocked(group)
	g.state.Store(uint32(state))
	g.changes++
	sub.anaChanges++
	sub.mu.Unlock()
	e := nvme.AsyncEvent{Type: nvme.AsyncEventNotice, Info: nvme.NoticeANA, LogPage: nvme.LIDANA}
	for _, ctrl := range sub.controllerList() {
		ctrl.post(e)
	}
}

// ChangeDiscovery gives the discovery log a new GENCTR, and tells the hosts.
func (t *Target) ChangeDiscovery() { t.changeDiscovery() }

func (t *Target) changeDiscovery() {
	t.genctr.Add(1)
	t.Event(discoveryNQN, nvme.AsyncEvent{Type: nvme.AsyncEventNotice, Info: nvme.NoticeDiscoveryLog, LogPage: nvme.LIDDiscovery})
}
