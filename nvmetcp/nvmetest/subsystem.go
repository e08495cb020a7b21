package nvmetest

import (
	"crypto/sha256"
	"encoding/binary"
	"fmt"
	"maps"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// subsystem is an NVM subsystem, or the discovery subsystem, with its controllers.
type subsystem struct {
	t         *Target
	nqn       string
	discovery bool
	hosts     []string // nil = any
	serial    string
	model     string

	namespaces atomic.Pointer[map[uint32]*namespace] // replaced, never changed

	mu          sync.Mutex
	controllers map[uint16]*controller
	nextID      uint16               // CNTLID, for SPDK, which does not use one again soon
	issued      [1 << 16 / 64]uint64 // CNTLIDs that were given out
	groups      map[uint32]*anaGroup
	anaChanges  uint64
}

// anaGroup is an ANA group of a subsystem.
type anaGroup struct {
	state   atomic.Uint32
	changes uint64
}

// namespace is a namespace as it is served.
type namespace struct {
	nsid     uint32
	shift    uint8  // log2 of the block size
	blocks   uint64 // NSZE
	metadata uint16
	backend  Backend
	slicer   Slicer // nil without
	readOnly bool
	inactive bool
	group    *anaGroup
	anagrpid uint32
	nguid    [16]byte
	uuid     [16]byte
	eui64    [8]byte
}

func newSubsystem(t *Target, s *Subsystem) (*subsystem, error) {
	sum := sha256.Sum256([]byte(s.NQN))
	sub := &subsystem{
		t: t, nqn: s.NQN, hosts: s.AllowedHosts, serial: s.Serial, model: s.Model,
		controllers: map[uint16]*controller{}, groups: map[uint32]*anaGroup{},
	}
	if sub.serial == "" {
		sub.serial = fmt.Sprintf("NVT%x", sum[:8])
	}
	if sub.model == "" {
		sub.model = "nvstage nvmetest"
	}
	sub.namespaces.Store(&map[uint32]*namespace{})
	for i := range s.Namespaces {
		ns := s.Namespaces[i]
		if ns.NSID == 0 {
			ns.NSID = uint32(i + 1)
		}
		if _, ok := (*sub.namespaces.Load())[ns.NSID]; ok {
			return nil, fmt.Errorf("nvmetest: %s has NSID %d twice", s.NQN, ns.NSID)
		}
		sub.put(&ns)
	}
	return sub, nil
}

func newDiscovery(t *Target) *subsystem {
	sub := &subsystem{
		t: t, nqn: discoveryNQN, discovery: true, serial: "NVTDISCOVERY", model: "nvstage nvmetest",
		controllers: map[uint16]*controller{}, groups: map[uint32]*anaGroup{},
	}
	sub.namespaces.Store(&map[uint32]*namespace{})
	return sub
}

// put adds or replaces a namespace.
func (s *subsystem) put(n *Namespace) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ns := &namespace{
		nsid: n.NSID, shift: 9, metadata: uint16(n.Metadata), backend: n.Backend,
		inactive: n.Inactive, anagrpid: max(n.ANAGroup, 1), nguid: n.NGUID, uuid: n.UUID, eui64: n.EUI64,
	}
	if n.BlockSize != 0 {
		ns.shift = uint8(bits.TrailingZeros(uint(n.BlockSize)))
	}
	if n.Backend != nil {
		ns.blocks = uint64(max(n.Backend.Size(), 0)) >> ns.shift
		ns.slicer, _ = n.Backend.(Slicer)
		ns.readOnly = n.ReadOnly || readOnly(n.Backend)
	}
	if ns.nguid == [16]byte{} {
		sum := sha256.Sum256(binary.LittleEndian.AppendUint32([]byte(s.nqn), n.NSID))
		ns.nguid = [16]byte(sum[:16])
	}
	if ns.uuid == [16]byte{} {
		ns.uuid = ns.nguid
		ns.uuid[6] = ns.uuid[6]&0x0F | 0x80 // version 8, made by us
		ns.uuid[8] = ns.uuid[8]&0x3F | 0x80
	}
	ns.group = s.groupLocked(ns.anagrpid)
	if n.ANAState != 0 {
		ns.group.state.Store(uint32(n.ANAState))
	}
	m := maps.Clone(*s.namespaces.Load())
	m[n.NSID] = ns
	s.namespaces.Store(&m)
}

// groupLocked returns an ANA group, which it makes where there is none.
func (s *subsystem) groupLocked(id uint32) *anaGroup {
	g := s.groups[id]
	if g == nil {
		g = &anaGroup{}
		g.state.Store(uint32(nvme.ANAOptimized))
		s.groups[id] = g
	}
	return g
}

// namespace returns an active namespace, nil where there is none.
func (s *subsystem) namespace(nsid uint32) *namespace {
	ns := (*s.namespaces.Load())[nsid]
	if ns == nil || ns.inactive {
		return nil
	}
	return ns
}

// nsids returns the active NSIDs in order.
func (s *subsystem) nsids() []uint32 {
	m := *s.namespaces.Load()
	ids := make([]uint32, 0, len(m))
	for id, ns := range m {
		if !ns.inactive {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}

// allows reports whether a host may connect.
func (s *subsystem) allows(host string) bool {
	return s.hosts == nil || slices.Contains(s.hosts, host)
}

// newController makes a controller, nil when no CNTLID is free.
func (s *subsystem) newController() *controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	const last = 0xFFEF
	first := max(s.t.config.FirstCNTLID, 1)
	id := first
	if s.t.profile.Mode == ModeSPDK {
		id = max(s.nextID, first)
	}
	for range int(last) {
		if id > last {
			id = first
		}
		if s.controllers[id] == nil {
			ctrl := &controller{t: s.t, sub: s, cntlid: id, queues: map[uint16]*Conn{}}
			s.controllers[id] = ctrl
			s.nextID = id + 1
			s.issued[id/64] |= 1 << (id % 64)
			return ctrl
		}
		id++
	}
	return nil
}

// controller returns a controller, nil when there is none; known means that there was one.
func (s *subsystem) controller(id uint16) (ctrl *controller, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.controllers[id], s.issued[id/64]&(1<<(id%64)) != 0
}

func (s *subsystem) controllerList() []*controller {
	s.mu.Lock()
	defer s.mu.Unlock()
	list := make([]*controller, 0, len(s.controllers))
	for _, c := range s.controllers {
		list = append(list, c)
	}
	return list
}
