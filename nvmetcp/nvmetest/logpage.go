package nvmetest

import (
	"slices"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// getLogPage executes Get Log Page.
func (c *Conn) getLogPage(cmd *command) nvme.Status {
	var req nvme.LogRequest
	req.DecodeSQE(&cmd.sqe)
	if req.Offset%4 != 0 || req.OT {
		c.note("Get Log Page %#02x at offset %d", uint8(req.LID), req.Offset)
		return c.fail(nvme.StatusInvalidField)
	}
	if req.Bytes() > uint64(c.t.profile.limit()) {
		return c.tooMuch(cmd)
	}
	if c.ctrl.sub.discovery != (req.LID == nvme.LIDDiscovery) && req.LID != nvme.LIDErrorInformation && req.LID != nvme.LIDSMART {
		return c.badLog()
	}
	if id := cmd.sqe.NSID; id != 0 && id != nvme.NSIDAll && c.t.profile.Mode == ModeSPDK {
		return c.fail(nvme.StatusInvalidField)
	}
	page := c.logPage(&req)
	if page == nil {
		return c.badLog()
	}
	size := uint64(len(page))
	if req.LID == nvme.LIDANA && c.t.profile.Mode == ModeNVMET {
		req.Offset = 0 // as nvmet does
	}
	n := int(req.Bytes())
	if req.Offset > size || req.LID == nvme.LIDDiscovery && req.Offset+uint64(n) > size {
		c.note("Get Log Page %#02x of %d bytes at offset %d, but the page has %d", uint8(req.LID), n, req.Offset, size)
		if c.t.profile.Mode != ModeNVMET && req.Offset >= size {
			return c.fail(nvme.StatusInvalidField)
		}
	}
	b := make([]byte, n)
	copy(b, page[min(req.Offset, size):])
	st := c.reply(cmd, b)
	if st.OK() && !req.RAE {
		if req.LID == nvme.LIDChangedNamespaces {
			c.ctrl.mu.Lock()
			c.ctrl.events.changed = nil
			c.ctrl.mu.Unlock()
		}
		c.unmask(req.LID)
	}
	return st
}

// badLog is the status of a log page that is not there.
func (c *Conn) badLog() nvme.Status {
	if c.t.profile.Mode == ModeNVMET {
		return c.fail(nvme.StatusInvalidField)
	}
	return c.fail(nvme.StatusInvalidLogPage)
}

// logPage returns a whole log page, nil for one that is not there.
func (c *Conn) logPage(req *nvme.LogRequest) []byte {
	switch req.LID {
	case nvme.LIDSupported:
		var l nvme.SupportedLog
		for _, lid := range []nvme.LID{0, 1, 2, 3, 4, 5, nvme.LIDANA} {
			l.LIDs[lid] = 1
		}
		return l.Append(nil)
	case nvme.LIDErrorInformation:
		return make([]byte, nvme.ErrorEntryLen)
	case nvme.LIDSMART:
		l := nvme.SMARTLog{Temperature: 300, AvailableSpare: 100, AvailableSpareThreshold: 10}
		return l.Append(nil)
	case nvme.LIDFirmwareSlot:
		l := nvme.FirmwareLog{AFI: 1}
		l.FRS[0] = "1"
		return l.Append(nil)
	case nvme.LIDChangedNamespaces:
		c.ctrl.mu.Lock()
		defer c.ctrl.mu.Unlock()
		return (&nvme.ChangedNamespaces{NSIDs: c.ctrl.events.changed}).Append(nil)
	case nvme.LIDEffects:
		return c.effects()
	case nvme.LIDANA:
		return c.ctrl.sub.anaLog(req.LSP&1 != 0)
	case nvme.LIDDiscovery:
		return c.discoveryLog()
	}
	return nil
}

func (c *Conn) effects() []byte {
	var l nvme.EffectsLog
	for _, op := range []nvme.Opcode{nvme.OpGetLogPage, nvme.OpIdentify, nvme.OpAbort, nvme.OpSetFeatures, nvme.OpGetFeatures, nvme.OpAsyncEventRequest, nvme.OpKeepAlive} {
		l.Admin[op] = nvme.EffectsSupported
	}
	l.IO[nvme.OpFlush] = nvme.EffectsSupported
	l.IO[nvme.OpRead] = nvme.EffectsSupported
	for _, op := range []nvme.Opcode{nvme.OpWrite, nvme.OpWriteZeroes, nvme.OpDatasetManagement} {
		l.IO[op] = nvme.EffectsSupported | nvme.EffectsLBAContent
	}
	if c.t.profile.Mode != ModeNVMET {
		l.IO[nvme.OpCompare] = nvme.EffectsSupported
	}
	return l.Append(nil)
}

// anaLog returns the ANA log page.
func (s *subsystem) anaLog(groupsOnly bool) []byte {
	nsids := s.nsids()
	m := *s.namespaces.Load()
	s.mu.Lock()
	defer s.mu.Unlock()
	l := nvme.ANALog{CHGCNT: s.anaChanges}
	for id, g := range s.groups {
		d := nvme.ANAGroup{AGID: id, CHGCNT: g.changes, State: nvme.ANAState(g.state.Load())}
		for _, nsid := range nsids {
			if ns := m[nsid]; ns != nil && ns.anagrpid == id && !groupsOnly {
				d.NSIDs = append(d.NSIDs, nsid)
			}
		}
		l.Groups = append(l.Groups, d)
	}
	slices.SortFunc(l.Groups, func(a, b nvme.ANAGroup) int { return int(a.AGID) - int(b.AGID) })
	return l.Append(nil)
}

// discoveryLog returns the discovery log page as this host sees it.
func (c *Conn) discoveryLog() []byte {
	t := c.t
	genctr := t.genctr.Load()
	if t.faults.Load().takeChange() {
		t.genctr.Add(1)
	}
	t.mu.Lock()
	ports := slices.Clone(t.ports)
	t.mu.Unlock()

	asqsz := uint16(32)
	if t.profile.Mode == ModeSPDK {
		asqsz = 128
	}
	entry := func(p *port, nqn string, kind fabrics.SUBTYPE) fabrics.DiscoveryEntry {
		fam, traddr, trsvcid := addrFields(p.l.Addr())
		return fabrics.DiscoveryEntry{
			TRTYPE: fabrics.TRTYPETCP, ADRFAM: fam, SUBTYPE: kind, TREQ: fabrics.TREQSQFlowControlDisable,
			PORTID: p.id, CNTLID: fabrics.CNTLIDDynamic, ASQSZ: asqsz,
			TRSVCID: trsvcid, SubNQN: nqn, TRADDR: traddr,
		}
	}
	self := entry(c.port, discoveryNQN, fabrics.SUBTYPECurrent)
	if t.profile.Mode != ModeNVMET {
		self.EFLAGS = fabrics.EFLAGSDuplicate | fabrics.EFLAGSPersistent
	}
	entries := []fabrics.DiscoveryEntry{self}
	for _, p := range ports {
		for _, sub := range t.order {
			if sub.allows(c.ctrl.hostNQN) {
				entries = append(entries, entry(p, sub.nqn, fabrics.SUBTYPENVM))
			}
		}
	}
	for _, r := range t.config.Referrals {
		e := entry(c.port, r.NQN, fabrics.SUBTYPEReferral)
		e.ADRFAM, e.TRADDR, e.TRSVCID = addrFields(referralAddr(r.Addr))
		if e.SubNQN == "" {
			e.SubNQN = discoveryNQN
		}
		entries = append(entries, e)
	}
	h := fabrics.DiscoveryHeader{GENCTR: genctr, NUMREC: uint64(len(entries))}
	b := h.Append(nil)
	for i := range entries {
		var err error
		at := len(b)
		if b, err = entries[i].Append(b); err != nil {
			panic(err) // the NQNs were checked, addresses are short
		}
		if t.profile.Mode == ModeSPDK {
			padSpaces(b[at+32:][:32])
			padSpaces(b[at+512:][:256])
		}
	}
	return b
}

// padSpaces replaces the NULs at the end of a string by spaces, as SPDK has it.
func padSpaces(b []byte) {
	for i := len(b) - 1; i >= 0 && b[i] == 0; i-- {
		b[i] = ' '
	}
}

// referralAddr is an address that may not be one.
type referralAddr string

func (a referralAddr) Network() string { return "tcp" }
func (a referralAddr) String() string  { return string(a) }
