package nvmetest

import (
	"fmt"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Stats is what a target has seen since it was started.
type Stats struct {
	Connections      int // accepted
	Open             int // of those, not closed yet
	Controllers      int // that exist now
	KeepAliveExpired int // controllers that ended for want of a Keep Alive

	Admin   map[nvme.Opcode]uint64    // commands received on admin queues
	IO      map[nvme.Opcode]uint64    // commands received on I/O queues
	Fabrics map[fabrics.FCTYPE]uint64 // fabrics commands received
	Errors  map[nvme.Code]uint64      // completions other than success

	DataSent     uint64 // bytes of C2HData
	DataReceived uint64 // bytes of H2CData and in-capsule data
	DigestErrors uint64 // capsules and commands whose data differed from their digest
	TermReqs     []HostTermReq
}

// HostTermReq is an H2CTermReq that a host sent: what it complained of.
type HostTermReq struct {
	QID int // of the queue; -1 before Connect
	pdu.TermReq
}

// counters are the part of Stats that a connection counts.
type counters struct {
	adminOps, ioOps, fabricsOps [256]uint64
	errors                      map[nvme.Code]uint64
	sent, received              uint64
	digestErrors                uint64
}

func (n *counters) commands(qid int, sqe *nvme.SQE) {
	switch {
	case sqe.Opcode == nvme.OpFabrics:
		n.fabricsOps[fabrics.Type(sqe)]++
	case qid > 0:
		n.ioOps[sqe.Opcode]++
	default:
		n.adminOps[sqe.Opcode]++
	}
}

func (n *counters) statuses(st nvme.Status) {
	if st.OK() {
		return
	}
	if n.errors == nil {
		n.errors = map[nvme.Code]uint64{}
	}
	n.errors[st.Code()]++
}

func (n *counters) add(m *counters) {
	for i := range n.adminOps {
		n.adminOps[i] += m.adminOps[i]
		n.ioOps[i] += m.ioOps[i]
		n.fabricsOps[i] += m.fabricsOps[i]
	}
	for code, k := range m.errors {
		if n.errors == nil {
			n.errors = map[nvme.Code]uint64{}
		}
		n.errors[code] += k
	}
	n.sent += m.sent
	n.received += m.received
	n.digestErrors += m.digestErrors
}

// Stats returns what the target has seen.
func (t *Target) Stats() Stats {
	t.mu.Lock()
	total := counters{}
	total.add(&t.past)
	s := Stats{
		Connections: t.accepted, Open: len(t.conns), KeepAliveExpired: t.expired,
		TermReqs: append([]HostTermReq(nil), t.termReqs...),
	}
	conns := t.connList()
	subs := t.subsystemList()
	t.mu.Unlock()
	for _, sub := range subs {
		sub.mu.Lock()
		s.Controllers += len(sub.controllers)
		sub.mu.Unlock()
	}
	for _, c := range conns {
		c.mu.Lock()
		total.add(&c.count)
		c.mu.Unlock()
	}
	s.Admin, s.IO = byOpcode(&total.adminOps), byOpcode(&total.ioOps)
	s.Fabrics = map[fabrics.FCTYPE]uint64{}
	for i, n := range total.fabricsOps {
		if n != 0 {
			s.Fabrics[fabrics.FCTYPE(i)] = n
		}
	}
	if s.Errors = total.errors; s.Errors == nil {
		s.Errors = map[nvme.Code]uint64{}
	}
	s.DataSent, s.DataReceived, s.DigestErrors = total.sent, total.received, total.digestErrors
	return s
}

func byOpcode(ops *[256]uint64) map[nvme.Opcode]uint64 {
	m := map[nvme.Opcode]uint64{}
	for i, n := range ops {
		if n != 0 {
			m[nvme.Opcode(i)] = n
		}
	}
	return m
}

// maxViolations is how many violations are kept.
const maxViolations = 1000

// Violations returns every breach of the rules for hosts that the target noticed, in order, each
// with the connection's queue. A test of a host wants none. After 1000 no more are kept.
func (t *Target) Violations() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return append([]string(nil), t.violations...)
}

// violate records a violation. c.mu may be held, t.mu may not.
func (t *Target) violate(c *Conn, format string, args ...any) {
	text := fmt.Sprintf("queue %d: ", c.QID()) + fmt.Sprintf(format, args...)
	if c.QID() < 0 {
		text = "before Connect: " + fmt.Sprintf(format, args...)
	}
	t.log.Warn("nvmetest: violation", "host", c.RemoteAddr(), "what", text)
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.violations) < maxViolations {
		t.violations = append(t.violations, text)
	}
}

// maxTermReqs is how many H2CTermReqs are kept.
const maxTermReqs = 1000

// terminated records an H2CTermReq.
func (t *Target) terminated(c *Conn, p pdu.TermReq) {
	t.log.Info("nvmetest: H2CTermReq", "host", c.RemoteAddr(), "queue", c.QID(), "what", p.String())
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.termReqs) < maxTermReqs {
		t.termReqs = append(t.termReqs, HostTermReq{QID: c.QID(), TermReq: p})
	}
}
