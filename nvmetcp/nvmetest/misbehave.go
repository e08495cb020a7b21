package nvmetest

import (
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Breach is a way to break the protocol in the answer to one command.
type Breach uint8

// Breaches. Those of the first group fit any command, the others reads or writes only and do nothing
// to other commands.
const (
	BreachDuplicateResp Breach = iota + 1 // the CapsuleResp comes twice
	BreachUnknownCID                      // the CapsuleResp has a CID that is not outstanding; the right one never comes
	BreachStaleResp                       // before the answer, the CapsuleResp of the last command comes again
	BreachDataForWrite                    // C2HData for a command that sends data or has none, before its answer
	BreachR2TForRead                      // R2T for a command that receives data or has none, before its answer
	BreachSecondICResp                    // an ICResp before the answer

	BreachSuccessWithoutLast // SUCCESS set, LAST_PDU not
	BreachSuccessThenResp    // SUCCESS set, and a CapsuleResp follows
	BreachDataOutOfOrder     // the second half of the data before the first
	BreachDataOverlap        // the second half begins 4 bytes too early
	BreachDataOutOfRange     // the data is 4 KiB longer than the command's buffer
	BreachDataOffset         // DATAO is far beyond the command's buffer
	BreachDataUnknownCCCID   // C2HData of a command that does not exist
	BreachShortRead          // half of the data, LAST_PDU, and a CapsuleResp with success
	BreachNoData             // only a CapsuleResp with success
	BreachEarlyResp          // CapsuleResp with success, then the data

	BreachR2TZero              // R2TL 0
	BreachR2TOffset            // R2TO 4 bytes too high
	BreachR2TBeyond            // R2TL 4 bytes more than the command has
	BreachR2TTooMany           // more R2Ts at once than MAXR2T allows, each for 4 bytes
	BreachR2TTwice             // the same R2T twice, with two tags
	BreachR2TUnknown           // CCCID is not outstanding
	BreachR2TInCapsule         // R2T for a command that came with its data; its answer follows
	BreachSuccessNoR2T         // CapsuleResp with success before any data was asked for
	BreachEarlyError           // R2T, and then at once a CapsuleResp with Action.Status, or Data Transfer Error. Allowed to a controller
	BreachSuccessInsteadOfData // R2T for the first half only, then success
)

// misbehave does what cmd.act says, and reports whether that was all of the answer.
func (c *Conn) misbehave(cmd *command) bool {
	a := cmd.act
	if a.Result != nil {
		cmd.dw0, cmd.dw1 = uint32(*a.Result), uint32(*a.Result>>32)
	}
	if a.CorruptData && len(cmd.data) > 0 {
		c.corruptData(cmd)
	}
	switch {
	case a.Drop:
		c.hold(cmd)
		return true
	case a.Delay > 0:
		c.later(cmd, a.Delay)
		return true
	case a.Close != CloseNot && a.CloseAfter == 0:
		c.hold(cmd)
		c.cur.close(a.Close.kind())
		return true
	case a.Raw != nil:
		c.hold(cmd)
		c.cur.data(a.Raw)
		return true
	case a.Term != nil:
		c.hold(cmd)
		p := *a.Term
		p.Type = pdu.TypeC2HTermReq
		c.cur.arena = p.Append(c.cur.arena)
		c.cur.close(sendNoMore)
		return true
	case a.Close != CloseNot:
		c.truncate(cmd)
		return true
	}
	return c.breach(cmd)
}

// later answers a command after a while.
func (c *Conn) later(cmd *command, d time.Duration) {
	cmd.act.Delay = 0
	c.hold(cmd)
	var timer *time.Timer
	timer = time.AfterFunc(d, func() {
		c.mu.Lock()
		if !c.closing && cmd.timer == timer { // else Abort was faster
			cmd.timer = nil
			if !c.misbehave(cmd) {
				c.answer(cmd)
			}
		}
		c.mu.Unlock()
		c.kick()
	})
	cmd.timer = timer
}

// corruptData has the command send a copy of its data that differs in one bit.
func (c *Conn) corruptData(cmd *command) {
	buf := c.t.pool.get(len(cmd.data))
	copy(buf.b, cmd.data)
	buf.b[len(buf.b)/2] ^= 0x10
	if cmd.buf != nil {
		c.cur.owned = append(c.cur.owned, cmd.buf)
	}
	cmd.buf, cmd.data = buf, buf.b
	cmd.act.CorruptData = false
}

// corruptHeader breaks HDGST of the PDU that begins at an offset of the arena, once.
func (c *Conn) corruptHeader(act *Action, at int) {
	if act == nil || !act.CorruptHeaderDigest || !c.out.Header {
		return
	}
	act.CorruptHeaderDigest = false
	b := c.cur.arena[at:]
	b[b[2]] ^= 1
}

func (k Close) kind() closeKind {
	if k == CloseReset {
		return closeRST
	}
	return closeFIN
}

// truncate sends the beginning of the answer only, and closes.
func (c *Conn) truncate(cmd *command) {
	whole := c.cur
	c.cur = &batch{}
	after, kind := cmd.act.CloseAfter, cmd.act.Close.kind()
	cmd.act = nil
	if cmd.data != nil {
		c.piece(cmd, len(cmd.data))
	} else {
		c.respond(cmd)
	}
	part := c.cur
	c.cur = whole
	part.seal()
	for _, p := range part.vec {
		p = p[:min(len(p), after)]
		c.cur.data(p)
		after -= len(p)
	}
	c.cur.owned = append(c.cur.owned, part.owned...)
	c.cur.cids = append(c.cur.cids, part.cids...)
	c.cur.close(kind)
}

// breach does what cmd.act.Breach says, and reports whether the command is answered with that.
func (c *Conn) breach(cmd *command) bool {
	breach := cmd.act.Breach
	half := len(cmd.data) / 2 &^ 3
	cid := cmd.sqe.CID
	switch breach {
	case BreachDuplicateResp:
		if cmd.data != nil {
			c.raw(cid, 0, cmd.data, pdu.FlagLast)
		}
		c.capsuleResp(nvme.CQE{DW0: cmd.dw0, DW1: cmd.dw1, SQHD: c.nextSQHD(cmd), CID: cid, Status: cmd.status}, nil)
		c.respond(cmd)
		return true
	case BreachUnknownCID:
		c.hold(cmd)
		c.capsuleResp(nvme.CQE{CID: c.idleCID(), Status: cmd.status}, nil)
		return true
	case BreachStaleResp:
		stale := c.lastCID
		if c.busy[stale/64]&(1<<(stale%64)) != 0 {
			stale = c.idleCID()
		}
		c.capsuleResp(nvme.CQE{CID: stale, Status: cmd.status}, nil)
	case BreachDataForWrite:
		if cmd.sqe.Direction() != nvme.DirControllerToHost {
			c.raw(cid, 0, make([]byte, 512), pdu.FlagLast)
		}
	case BreachR2TForRead:
		if cmd.sqe.Direction() != nvme.DirHostToController {
			c.appendR2T(pdu.R2T{CCCID: cid, TTAG: 1, R2TL: 512}, nil)
		}
	case BreachR2TInCapsule:
		c.appendR2T(pdu.R2T{CCCID: cid, TTAG: 1, R2TL: max(cmd.sqe.SGL.Length, 4)}, nil)
	case BreachSecondICResp:
		p := pdu.ICResp{DGST: c.out.Digests, MAXH2CDATA: c.t.profile.maxH2CData}
		c.cur.arena = p.Append(c.cur.arena)
	}
	if len(cmd.data) == 0 {
		return false
	}
	switch breach {
	case BreachSuccessWithoutLast:
		c.raw(cid, 0, cmd.data, pdu.FlagSuccess)
		c.end(cmd)
	case BreachSuccessThenResp:
		c.raw(cid, 0, cmd.data, pdu.FlagLast|pdu.FlagSuccess)
		c.respond(cmd)
	case BreachDataOutOfOrder:
		c.raw(cid, half, cmd.data[half:], 0)
		c.raw(cid, 0, cmd.data[:half], pdu.FlagLast)
		c.respond(cmd)
	case BreachDataOverlap:
		c.raw(cid, 0, cmd.data[:half], 0)
		c.raw(cid, half-4, cmd.data[half-4:], pdu.FlagLast)
		c.respond(cmd)
	case BreachDataOutOfRange:
		c.raw(cid, 0, append(append([]byte(nil), cmd.data...), make([]byte, 4096)...), pdu.FlagLast)
		c.respond(cmd)
	case BreachDataOffset:
		c.raw(cid, 1<<31, cmd.data, pdu.FlagLast)
		c.respond(cmd)
	case BreachDataUnknownCCCID:
		c.raw(c.idleCID(), 0, cmd.data, pdu.FlagLast)
		c.hold(cmd)
	case BreachShortRead:
		c.raw(cid, 0, cmd.data[:half], pdu.FlagLast)
		c.respond(cmd)
	case BreachNoData:
		c.respond(cmd)
	case BreachEarlyResp:
		data := append([]byte(nil), cmd.data...)
		c.respond(cmd)
		c.raw(cid, 0, data, pdu.FlagLast)
	default:
		return false
	}
	return true
}

// raw appends a C2HData that may be wrong.
func (c *Conn) raw(cid uint16, off int, data []byte, flags pdu.Flags) {
	c.c2hData(&pdu.Data{Type: pdu.TypeC2HData, Flags: flags, CCCID: cid, DATAO: uint32(off), DATAL: uint32(len(data))}, data, nil)
}

// idleCID returns a CID that is not outstanding.
func (c *Conn) idleCID() uint16 {
	for cid := uint16(0xFFF0); ; cid-- {
		if c.busy[cid/64]&(1<<(cid%64)) == 0 {
			return cid
		}
	}
}

// breakR2T does what cmd.act.Breach says about a command whose data is to be asked for, and reports
// whether that is done in place of asking for it.
func (c *Conn) breakR2T(cmd *command) bool {
	a := cmd.act
	breach := a.Breach
	cid, want := cmd.sqe.CID, cmd.want
	ask := func(off, n int) {
		c.appendR2T(pdu.R2T{CCCID: cid, TTAG: c.begin(cmd, off, n), R2TO: uint32(off), R2TL: uint32(n)}, nil)
	}
	trap := func(cid uint16, off, n int) {
		tag := c.begin(cmd, off, n)
		c.transfers[c.t.profile.place(tag)].trap = true
		c.appendR2T(pdu.R2T{CCCID: cid, TTAG: tag, R2TO: uint32(off), R2TL: uint32(n)}, nil)
	}
	switch breach {
	case BreachR2TZero:
		trap(cid, 0, 0)
	case BreachR2TOffset:
		trap(cid, 4, want-4)
	case BreachR2TBeyond:
		trap(cid, 0, want+4)
	case BreachR2TTooMany:
		for i := range c.maxR2T + 8 {
			trap(cid, 4*i, 4)
		}
	case BreachR2TTwice:
		ask(0, want)
		trap(cid, 0, want)
	case BreachR2TUnknown:
		trap(c.idleCID(), 0, want)
	case BreachSuccessNoR2T:
		c.respond(cmd)
	case BreachSuccessInsteadOfData:
		ask(0, want/2&^3)
		c.respond(cmd)
	case BreachEarlyError:
		ask(0, want)
		if cmd.status = a.Status; cmd.status.OK() {
			cmd.status = nvme.StatusDataTransferError.Status()
		}
		c.respond(cmd)
	default:
		return false
	}
	cmd.asked = want
	return true
}
