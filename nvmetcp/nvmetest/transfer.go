package nvmetest

import (
	"fmt"
	"slices"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// transfer is one R2T and the data that answers it.
type transfer struct {
	cmd  *command // nil = not active
	next int      // DATAO that comes next
	end  int      // offset in the command's data at which it ends
	trap bool     // the R2T was wrong: no data should come
}

// tag returns the TTAG of a place in Conn.transfers.
func (p *profile) tag(i int) uint16 { return uint16(i)*p.tagMul + p.tagAdd }

// place is the inverse of tag.
func (p *profile) place(tag uint16) int { return int((tag - p.tagAdd) * inverse(p.tagMul)) }

// inverse returns the number that gives 1 when it is multiplied with m, which is odd, in 16 bits.
func inverse(m uint16) uint16 {
	x := m // right in 3 bits, and each round doubles them
	for range 3 {
		x *= 2 - m*x
	}
	return x
}

// request asks for a command's data. The strict mode has it wait for its turn.
func (c *Conn) request(cmd *command) {
	if cmd.act != nil && cmd.act.Breach != 0 && c.breakR2T(cmd) {
		return
	}
	if c.t.profile.r2tSize == 0 {
		c.r2t(cmd)
		return
	}
	c.sending = append(c.sending, cmd)
}

// r2t asks for the next piece of a command's data.
func (c *Conn) r2t(cmd *command) {
	n := cmd.want - cmd.asked
	if s := c.t.profile.r2tSize; s > 0 {
		n = min(n, s)
	}
	c.appendR2T(pdu.R2T{
		CCCID: cmd.sqe.CID,
		TTAG:  c.begin(cmd, cmd.asked, n),
		R2TO:  uint32(cmd.asked),
		R2TL:  uint32(n),
	}, cmd.act)
	cmd.asked += n
}

func (c *Conn) appendR2T(p pdu.R2T, act *Action) {
	at := len(c.cur.arena)
	c.cur.arena = p.Append(c.cur.arena, c.out)
	c.corruptHeader(act, at)
}

// begin takes a place in the table of transfers and returns its tag.
func (c *Conn) begin(cmd *command, off, n int) uint16 {
	var i int
	if k := len(c.freeTags); k > 0 {
		i = c.freeTags[k-1]
		c.freeTags = c.freeTags[:k-1]
	} else {
		i = len(c.transfers)
		c.transfers = append(c.transfers, transfer{})
	}
	c.transfers[i] = transfer{cmd: cmd, next: off, end: off + n}
	cmd.tags++
	return c.t.profile.tag(i)
}

// dataBegin checks an H2CData and returns the place of its transfer and where its data goes. scrap
// is a buffer to be returned to the pool, of data that nobody wants.
func (c *Conn) dataBegin(d *pdu.Data, hdr []byte) (i int, dst []byte, scrap *buffer, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	bad := func(fes pdu.FES, fei uint32, format string, args ...any) (int, []byte, *buffer, error) {
		return 0, nil, nil, pdu.NewError(fes, fei, hdr, fmt.Sprintf(format, args...))
	}
	i = c.t.profile.place(d.TTAG)
	if i >= len(c.transfers) {
		return bad(pdu.FESSequenceError, 0, "TTAG %#x was never in an R2T", d.TTAG)
	}
	tr := &c.transfers[i]
	if tr.cmd == nil {
		return bad(pdu.FESInvalidHeaderField, 10, "TTAG %#x is not outstanding", d.TTAG)
	}
	cmd := tr.cmd
	if d.CCCID != cmd.sqe.CID {
		return bad(pdu.FESSequenceError, 0, "CCCID %#x, but TTAG %#x is of command %#x", d.CCCID, d.TTAG, cmd.sqe.CID)
	}
	n := int(d.DATAL)
	if int64(d.DATAO) != int64(tr.next) || n > tr.end-tr.next {
		return bad(pdu.FESOutOfRange, 0, "DATAO %d and DATAL %d, but the R2T wants %d to %d next", d.DATAO, d.DATAL, tr.next, tr.end)
	}
	last := n == tr.end-tr.next
	if last != d.Flags.Has(pdu.FlagLast) {
		return bad(pdu.FESInvalidHeaderField, 1, "LAST_PDU is %t with %d bytes of the R2T to come", !last, tr.end-tr.next-n)
	}
	if c.in.Data && c.t.profile.Mode == ModeNVMET && (tr.next != 0 || !last) {
		// nvmet checks DDGST against the buffer of the whole command.
		return bad(pdu.FESUnsupported, 0, "several H2CData for one R2T with a data digest, which this target cannot check")
	}
	if cmd.tags > 1 {
		for k := range c.transfers {
			if o := &c.transfers[k]; o.cmd == cmd && o.end <= tr.next && !o.trap && !tr.trap {
				c.note("H2CData for the R2T from offset %d before that up to offset %d was answered", tr.next, o.end)
			}
		}
	}
	if tr.trap {
		c.note("H2CData in answer to an R2T that was wrong")
	}
	if cmd.ended || tr.trap {
		scrap = c.t.pool.get(n)
		return i, scrap.b, scrap, nil
	}
	if c.vanishes(&cmd.sqe) {
		c.sink = slices.Grow(c.sink[:0], n)
		return i, c.sink[:n], nil, nil
	}
	if cmd.buf == nil {
		cmd.buf = c.t.pool.get(cmd.want)
	}
	return i, cmd.buf.b[tr.next : tr.next+n], nil, nil
}

// vanishes reports whether a command's data will never be looked at. All of that goes to one place, which stays in the
// processor's cache.
func (c *Conn) vanishes(sqe *nvme.SQE) bool {
	if c.QID() == 0 || sqe.Opcode != nvme.OpWrite {
		return false
	}
	ns := c.ctrl.sub.namespace(sqe.NSID)
	if ns == nil {
		return false
	}
	_, ok := ns.backend.(null)
	return ok
}

// dataEnd takes note of the data that dataBegin announced, and executes the command that has all.
func (c *Conn) dataEnd(d *pdu.Data, i int, bad bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	tr := &c.transfers[i]
	cmd := tr.cmd
	n := int(d.DATAL)
	tr.next += n
	c.count.received += uint64(n)
	if tr.trap {
		return nil
	}
	cmd.got += n
	cmd.badDigest = cmd.badDigest || bad
	if tr.next == tr.end {
		tr.cmd = nil
		c.freeTags = append(c.freeTags, i)
		cmd.tags--
	}
	switch {
	case cmd.ended:
		if cmd.tags == 0 {
			c.recycle(cmd)
		}
	case cmd.badDigest && c.t.profile.Mode == ModeNVMET:
		return c.digestError(cmd, []byte{byte(pdu.TypeH2CData), 0, 0, 0, 0, 0, 0, 0})
	case cmd.got == cmd.want && cmd.badDigest:
		return c.digestError(cmd, nil)
	case cmd.got == cmd.want && cmd.buf == nil: // vanished
		return c.execute(cmd, nil)
	case cmd.got == cmd.want:
		return c.execute(cmd, cmd.buf.b)
	case tr.cmd == nil && cmd.asked < cmd.want && !c.queued(cmd):
		c.request(cmd)
	}
	return nil
}

// queued reports whether the command has an R2T to be sent already.
func (c *Conn) queued(cmd *command) bool {
	for _, s := range c.sending {
		if s == cmd {
			return true
		}
	}
	return false
}
