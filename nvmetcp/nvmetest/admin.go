package nvmetest

import (
	"github.com/nvstage/nvstage/pdu/nvme"
)

// admin executes a command of the admin queue. wait means that it is answered later.
func (c *Conn) admin(cmd *command, data []byte) (st nvme.Status, wait bool) {
	switch cmd.sqe.Opcode {
	case nvme.OpIdentify:
		return c.identify(cmd), false
	case nvme.OpGetLogPage:
		return c.getLogPage(cmd), false
	case nvme.OpSetFeatures:
		return c.setFeatures(cmd, data), false
	case nvme.OpGetFeatures:
		return c.getFeatures(cmd), false
	case nvme.OpAsyncEventRequest:
		return c.asyncEventRequest(cmd)
	case nvme.OpKeepAlive:
		return c.keepAlive(cmd), false
	case nvme.OpAbort:
		if !c.ctrl.sub.discovery {
			return c.abort(cmd), false
		}
	}
	return c.fail(nvme.StatusInvalidOpcode), false
}

// controllerScope notes an NSID on a command that has none.
func (c *Conn) controllerScope(cmd *command) nvme.Status {
	if cmd.sqe.NSID == 0 {
		return 0
	}
	c.note("%s with NSID %#x", c.name(&cmd.sqe), cmd.sqe.NSID)
	if c.t.profile.Mode == ModeNVMET {
		return 0
	}
	return c.fail(nvme.StatusInvalidField)
}

func (c *Conn) keepAlive(cmd *command) nvme.Status {
	if st := c.controllerScope(cmd); !st.OK() {
		return st
	}
	c.ctrl.mu.Lock()
	kato := c.ctrl.kato
	c.ctrl.mu.Unlock()
	if kato == 0 {
		c.note("Keep Alive, but KATO is 0")
		return c.fail(nvme.StatusKeepAliveInvalid)
	}
	if !c.t.faults.Load().Controller.IgnoreKeepAlive {
		c.ctrl.keepAlive()
	}
	return 0
}

// abort ends a command that is held. nvmet never does.
func (c *Conn) abort(cmd *command) nvme.Status {
	if st := c.controllerScope(cmd); !st.OK() {
		return st
	}
	cmd.dw0 = 1
	if c.t.profile.Mode == ModeNVMET {
		return 0
	}
	sqid, cid := uint16(cmd.sqe.CDW10), uint16(cmd.sqe.CDW10>>16)
	q := c
	if sqid != 0 {
		if q = c.ctrl.queue(sqid); q == nil {
			return 0
		}
		q.mu.Lock()
		defer func() {
			q.mu.Unlock()
			q.kick()
		}()
	}
	if q.abortHeld(cid) {
		cmd.dw0 = 0
	}
	return 0
}

// abortHeld completes a held command of which no data is under way.
func (c *Conn) abortHeld(cid uint16) bool {
	for _, cmd := range c.held {
		if cmd.sqe.CID != cid || cmd.ended || cmd.tags > 0 || c.queued(cmd) {
			continue
		}
		if cmd.timer != nil {
			cmd.timer.Stop()
			cmd.timer = nil
		}
		for i, aer := range c.aers {
			if aer == cmd {
				c.aers = append(c.aers[:i], c.aers[i+1:]...)
				break
			}
		}
		cmd.act, cmd.data = nil, nil
		c.finish(cmd, nvme.StatusAbortRequested.Status())
		return true
	}
	return false
}

// reply makes b, which is of a length that the command gives, the data of a command.
func (c *Conn) reply(cmd *command, b []byte) nvme.Status {
	n := int(cmd.sqe.SGL.Length)
	if n != len(b) {
		c.note("%s with an SGL of %d bytes for %d bytes of data", c.name(&cmd.sqe), n, len(b))
		if c.t.profile.exact {
			return nvme.StatusDataSGLLengthInvalid.Status().WithDNR()
		}
		if n < len(b) {
			return c.fail(nvme.StatusInvalidField)
		}
	}
	cmd.buf = c.t.pool.get(n)
	clear(cmd.buf.b[copy(cmd.buf.b, b):])
	cmd.data = cmd.buf.b
	return 0
}
