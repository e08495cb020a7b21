package nvmetest

import (
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// finish answers a command with a status and, where that is success, with cmd.data.
func (c *Conn) finish(cmd *command, st nvme.Status) {
	cmd.status = st
	if !st.OK() {
		cmd.data = nil
	}
	if cmd.act != nil && c.misbehave(cmd) {
		return
	}
	c.answer(cmd)
}

// answer sends what finish decided.
func (c *Conn) answer(cmd *command) {
	if len(cmd.data) == 0 {
		c.respond(cmd)
		return
	}
	if c.t.profile.c2hSize == 0 {
		c.piece(cmd, len(cmd.data))
		return
	}
	c.hold(cmd)
	c.sending = append(c.sending, cmd)
}

// pump sends pieces of the commands that have some, one of each in turn, so that they interleave.
func (c *Conn) pump() {
	p := &c.t.profile
	for len(c.sending) > 0 {
		again := c.sending[:0]
		for _, cmd := range c.sending {
			if cmd.ended {
				continue
			}
			if cmd.data != nil {
				if c.piece(cmd, min(p.c2hSize, len(cmd.data)-cmd.sent)) {
					again = append(again, cmd)
				}
				continue
			}
			if cmd.tags < c.maxR2T && cmd.asked < cmd.want {
				c.r2t(cmd)
				again = append(again, cmd)
			}
		}
		clear(c.sending[len(again):])
		c.sending = again
	}
}

// piece sends n bytes of a command's data, and completes it with the last of them. It reports
// whether there is more.
func (c *Conn) piece(cmd *command, n int) (more bool) {
	d := pdu.Data{Type: pdu.TypeC2HData, CCCID: cmd.sqe.CID, DATAO: uint32(cmd.sent), DATAL: uint32(n)}
	data := cmd.data[cmd.sent:][:n:n]
	cmd.sent += n
	last := cmd.sent == len(cmd.data)
	success := false
	if last {
		d.Flags = pdu.FlagLast
		if success = c.success(cmd); success {
			d.Flags |= pdu.FlagSuccess
		}
	}
	c.c2hData(&d, data, cmd.act)
	if !last {
		return true
	}
	if success {
		c.end(cmd)
	} else {
		c.respond(cmd)
	}
	return false
}

// c2hData appends a C2HData with its data.
func (c *Conn) c2hData(d *pdu.Data, data []byte, act *Action) {
	layout := c.out
	if c.pieces++; c.pieces&1 != 0 {
		layout = c.wide
	}
	at := len(c.cur.arena)
	c.cur.arena = d.AppendHeader(c.cur.arena, layout)
	c.corruptHeader(act, at)
	c.cur.data(data)
	if layout.Data {
		sum := c.digest(data)
		if act != nil && act.CorruptDataDigest && d.Flags.Has(pdu.FlagLast) {
			sum ^= 1
		}
		c.cur.arena = pdu.AppendDigest(c.cur.arena, sum)
	}
	c.count.sent += uint64(len(data))
	if c.cur.size() > flushAt {
		c.full.Store(true)
	}
}

// digest is DDGST of data. That of what Null's reads return is computed when their length changes only,
// so that a host with digests is measured rather than the target.
func (c *Conn) digest(data []byte) uint32 {
	if len(data) == len(c.summed) && startTogether(data, c.summed) {
		return c.sum
	}
	sum := pdu.Digest(data)
	if startTogether(data, nullPattern()) {
		c.summed, c.sum = data, sum
	}
	return sum
}

// startTogether reports whether a and b are the same memory, as far as both go.
func startTogether(a, b []byte) bool { return len(a) > 0 && len(b) > 0 && &a[0] == &b[0] }

// success reports whether the last C2HData stands for the completion too.
func (c *Conn) success(cmd *command) bool {
	if cmd.act != nil && cmd.act.Breach == BreachSuccessThenResp {
		return false
	}
	switch c.t.profile.Mode {
	case ModeNVMET:
		return !c.flowControl // even if that loses DW0
	case ModeSPDK:
		return cmd.dw0 == 0 && cmd.dw1 == 0
	}
	return !c.flowControl && cmd.dw0 == 0 && cmd.dw1 == 0 && c.pieces&2 == 0
}

// respond sends the CapsuleResp.
func (c *Conn) respond(cmd *command) {
	c.capsuleResp(nvme.CQE{DW0: cmd.dw0, DW1: cmd.dw1, SQHD: c.nextSQHD(cmd), CID: cmd.sqe.CID, Status: cmd.status}, cmd.act)
	c.end(cmd)
}

func (c *Conn) capsuleResp(cqe nvme.CQE, act *Action) {
	var p pdu.CapsuleResp
	cqe.Append(p.CQE[:0])
	at := len(c.cur.arena)
	c.cur.arena = p.Append(c.cur.arena, c.out)
	c.corruptHeader(act, at)
}

// nextSQHD is the SQHD of the completion that is sent now.
func (c *Conn) nextSQHD(cmd *command) uint16 {
	switch {
	case c.flowControl:
		return uint16((int(c.sqhd) + 1) % c.sqsize)
	case cmd.sqe.Opcode == nvme.OpFabrics:
		return nvme.SQHDFlowControlDisabled
	}
	return 0
}

// end is the end of a command: what it has goes back, most of it when the batch was written.
func (c *Conn) end(cmd *command) {
	c.count.statuses(cmd.status)
	c.sqhd = uint16((int(c.sqhd) + 1) % c.sqsize)
	c.cur.cids = append(c.cur.cids, cmd.sqe.CID)
	c.lastCID = cmd.sqe.CID
	if cmd.buf != nil {
		c.cur.owned = append(c.cur.owned, cmd.buf)
	}
	c.unhold(cmd)
	if cmd.tags > 0 {
		cmd.buf, cmd.ended = nil, true
		return
	}
	c.recycle(cmd)
}

func (c *Conn) recycle(cmd *command) {
	*cmd = command{}
	c.free = append(c.free, cmd)
}
