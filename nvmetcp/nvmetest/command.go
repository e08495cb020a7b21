package nvmetest

import (
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// command is one command from its capsule to its completion.
type command struct {
	sqe  nvme.SQE
	act  *Action // what to do wrong, nil = nothing
	held int     // place in Conn.held + 1, 0 = none

	timer *time.Timer
	ended bool // the host has the completion; transfers of it may still come

	buf       *buffer // holds the data, where that is not the backend's memory
	want      int     // bytes that the host is to send
	asked     int     // of those, asked for by R2T
	got       int     // of those, received
	tags      int     // R2Ts outstanding
	badDigest bool

	data   []byte // for the host
	sent   int
	status nvme.Status
	dw0    uint32
	dw1    uint32
}

// capsule handles a CapsuleCmd. tooLong means that its data is more than is allowed and was not
// received, badDigest that the data differs from its digest.
func (c *Conn) capsule(h pdu.CommonHeader, hdr, data []byte, tooLong, badDigest bool) error {
	var sqe nvme.SQE
	if err := sqe.Decode(hdr[pdu.CommonHeaderLen:]); err != nil {
		return err
	}
	act := c.t.faults.Load().action(Command{Conn: c, QID: uint16(max(c.QID(), 0)), SQE: sqe})

	c.mu.Lock()
	defer c.mu.Unlock()
	conflict, err := c.admit(&sqe, hdr)
	if err != nil {
		return err
	}
	if !tooLong {
		if err := c.checkSGL(&sqe, hdr, len(data)); err != nil {
			return err
		}
	}
	cmd := c.newCommand(&sqe, act)
	if conflict && c.t.profile.Mode == ModeStrict {
		c.finish(cmd, c.fail(nvme.StatusCommandIDConflict))
		return nil
	}
	if act != nil && act.Status != 0 && act.Breach != BreachEarlyError {
		c.finish(cmd, act.Status)
		return nil
	}
	if tooLong || sqe.SGL.ID == nvme.SGLInCapsule && int(sqe.SGL.Length) > c.inCapsuleOf(&sqe) {
		c.note("%s carries %d bytes in its capsule, the limit is %d", c.name(&sqe), sqe.SGL.Length, c.inCapsuleOf(&sqe))
		if c.t.profile.termReq {
			return pdu.NewError(pdu.FESLimitExceeded, 0, hdr[:h.HLEN], "more data in the capsule than IOCCSZ allows")
		}
		c.finish(cmd, c.fail(nvme.StatusSGLOffsetInvalid))
		return nil
	}
	if c.t.profile.Mode == ModeSPDK && int64(sqe.SGL.Length) > int64(c.t.profile.limit()) {
		return pdu.NewError(pdu.FESLimitExceeded, 0, hdr[:h.HLEN], "more data than the transport allows")
	}
	if st := c.judge(cmd); !st.OK() {
		c.finish(cmd, st)
		return nil
	}
	if badDigest {
		return c.digestError(cmd, hdr)
	}
	c.count.received += uint64(len(data))
	if sqe.SGL.ID != nvme.SGLInCapsule && sqe.Direction() == nvme.DirHostToController && sqe.SGL.Length > 0 {
		cmd.want = int(sqe.SGL.Length)
		if st := c.foresee(cmd); !st.OK() {
			c.finish(cmd, st)
			return nil
		}
		c.hold(cmd)
		c.request(cmd)
		return nil
	}
	return c.execute(cmd, data)
}

// digestError is what a target makes of data that differs from its digest.
func (c *Conn) digestError(cmd *command, hdr []byte) error {
	c.count.digestErrors++
	if c.t.profile.Mode == ModeNVMET {
		return pdu.NewError(pdu.FESUnsupported, 0, hdr[:pdu.CommonHeaderLen], "data digest error")
	}
	c.finish(cmd, nvme.StatusTransientTransportError.Status())
	return nil
}

// admit counts the command against the queue's size and its identifier against those in use.
func (c *Conn) admit(sqe *nvme.SQE, hdr []byte) (conflict bool, err error) {
	bit := uint64(1) << (sqe.CID % 64)
	if conflict = c.busy[sqe.CID/64]&bit != 0; conflict {
		c.note("CID %#x is used for %s while it is outstanding", sqe.CID, c.name(sqe))
	}
	c.busy[sqe.CID/64] |= bit
	c.outstanding++
	c.count.commands(c.QID(), sqe)
	if c.outstanding < c.sqsize {
		return conflict, nil
	}
	if !c.overran {
		c.overran = true
		c.note("%d commands outstanding, SQSIZE allows %d", c.outstanding, c.sqsize-1)
	}
	if c.t.profile.Mode == ModeNVMET && c.outstanding <= 2*c.sqsize {
		return conflict, nil
	}
	return conflict, pdu.NewError(pdu.FESLimitExceeded, 0, hdr[:pdu.CommonHeaderLen], "more commands outstanding than the queue has entries")
}

// inCapsuleOf is how much data the capsule of a command may carry, in bytes.
func (c *Conn) inCapsuleOf(sqe *nvme.SQE) int {
	if c.QID() <= 0 || sqe.Opcode == nvme.OpFabrics {
		return adminInCapsule
	}
	return c.t.profile.inCapsule
}

// Offsets of SQE fields in a CapsuleCmd, for FEI.
const (
	feiFlags      = 8 + 1
	feiSGLAddress = 8 + 24
	feiSGLType    = 8 + 39
)

// checkSGL compares the SGL with what came in the capsule.
func (c *Conn) checkSGL(sqe *nvme.SQE, hdr []byte, inCapsule int) error {
	hdr = hdr[:min(len(hdr), 72)]
	sgl := &sqe.SGL
	want := 0
	switch sgl.ID {
	case nvme.SGLInCapsule:
		want = int(sgl.Length)
		if sgl.Length == 0 {
			c.note("%s has an in-capsule SGL of length 0", c.name(sqe))
		}
		if sqe.Direction() != nvme.DirHostToController {
			c.note("%s has an in-capsule SGL, but its data does not go to the controller", c.name(sqe))
		}
		if sgl.Address != 0 {
			c.note("%s has an SGL with offset %#x", c.name(sqe), sgl.Address)
			if c.t.profile.termReq {
				return pdu.NewError(pdu.FESUnsupported, feiSGLAddress, hdr, "in-capsule SGL with an offset")
			}
		}
	case nvme.SGLTransport:
		if sgl.Address != 0 {
			c.note("%s has an SGL with address %#x", c.name(sqe), sgl.Address)
		}
	default:
		c.note("%s has an SGL of type %#02x", c.name(sqe), sgl.ID)
		if c.t.profile.termReq {
			fei := uint32(feiSGLType)
			if c.t.profile.Mode == ModeSPDK {
				fei = 40
			}
			return pdu.NewError(pdu.FESUnsupported, fei, hdr, "SGL type")
		}
	}
	if want != inCapsule {
		return pdu.NewError(pdu.FESInvalidHeaderField, 4, hdr, "the SGL and PLEN differ in the length of the in-capsule data")
	}
	return nil
}

// judge decides whether a command may be executed in the state that the queue is in.
func (c *Conn) judge(cmd *command) nvme.Status {
	sqe := &cmd.sqe
	if sqe.Flags != nvme.FlagSGL {
		c.note("%s has flags %#02x, want 0x40", c.name(sqe), sqe.Flags)
		if c.t.profile.Mode != ModeSPDK {
			return c.fail(nvme.StatusInvalidField)
		}
	}
	isFabrics := sqe.Opcode == nvme.OpFabrics
	if sqe.SGL.ID == nvme.SGLInCapsule && sqe.Direction() != nvme.DirHostToController {
		return c.fail(nvme.StatusInvalidField)
	}
	switch {
	case !c.connected && !(isFabrics && fabrics.Type(sqe) == fabrics.TypeConnect):
		c.note("%s before Connect", c.name(sqe))
		return c.fail(nvme.StatusCommandSequenceError)
	case c.connected && !isFabrics && !c.ctrl.ready():
		c.note("%s while CSTS.RDY is 0", c.name(sqe))
		return c.fail(nvme.StatusCommandSequenceError)
	}
	if int64(sqe.SGL.Length) > int64(c.t.profile.limit()) {
		return c.tooMuch(cmd)
	}
	if c.connected && c.t.profile.tbkas && !c.ctrl.traffic.Load() {
		c.ctrl.traffic.Store(true)
	}
	return 0
}

// tooMuch answers a command whose data is more than one command may have.
func (c *Conn) tooMuch(cmd *command) nvme.Status {
	if c.t.profile.mdts != 0 {
		c.note("%s of %d bytes, MDTS allows %d", c.name(&cmd.sqe), cmd.sqe.SGL.Length, c.t.profile.limit())
		return c.fail(nvme.StatusInvalidField)
	}
	return nvme.StatusDataSGLLengthInvalid.Status().WithDNR()
}

// foresee lets the strict mode refuse a command before its data is asked for. The others find out
// when they have it.
func (c *Conn) foresee(cmd *command) nvme.Status {
	if c.t.profile.Mode != ModeStrict || c.QID() <= 0 || cmd.sqe.Opcode == nvme.OpFabrics {
		return 0
	}
	_, st := c.checkIO(cmd)
	return st
}

// fail returns the status word of an error as the mode sends it.
func (c *Conn) fail(code nvme.Code) nvme.Status {
	st := code.Status()
	if c.t.profile.dnr {
		st = st.WithDNR()
	}
	return st
}

// execute runs a command whose data is there, and finishes it unless it waits for something.
func (c *Conn) execute(cmd *command, data []byte) error {
	var st nvme.Status
	var wait bool
	switch {
	case cmd.sqe.Opcode == nvme.OpFabrics:
		st = c.fabrics(cmd, data)
	case c.QID() == 0:
		st, wait = c.admin(cmd, data)
	default:
		st = c.io(cmd, data)
	}
	if !wait {
		c.finish(cmd, st)
	}
	return nil
}

// name is what a command is called in a violation.
func (c *Conn) name(sqe *nvme.SQE) string {
	switch {
	case sqe.Opcode == nvme.OpFabrics:
		return fabrics.Type(sqe).String()
	case c.QID() <= 0:
		return sqe.Opcode.AdminName()
	}
	return sqe.Opcode.NVMName()
}

// note records a violation by this connection's host.
func (c *Conn) note(format string, args ...any) { c.t.violate(c, format, args...) }

func (c *Conn) newCommand(sqe *nvme.SQE, act *Action) *command {
	var cmd *command
	if n := len(c.free); n > 0 {
		cmd = c.free[n-1]
		c.free = c.free[:n-1]
	} else {
		cmd = &command{}
	}
	cmd.sqe, cmd.act = *sqe, act
	return cmd
}

// hold keeps a command that is not answered yet.
func (c *Conn) hold(cmd *command) {
	if cmd.held == 0 {
		c.held = append(c.held, cmd)
		cmd.held = len(c.held)
	}
}

func (c *Conn) unhold(cmd *command) {
	if cmd.held == 0 {
		return
	}
	last := len(c.held) - 1
	c.held[cmd.held-1] = c.held[last]
	c.held[cmd.held-1].held = cmd.held
	c.held[last] = nil
	c.held = c.held[:last]
	cmd.held = 0
}
