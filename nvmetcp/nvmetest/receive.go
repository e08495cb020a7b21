package nvmetest

import (
	"errors"
	"io"
	"os"
	"time"

	"github.com/nvstage/nvstage/pdu"
)

// flushAt is how much is gathered, in bytes, before it is sent although more commands are at hand.
// 256 KiB cost a fifth of the rate of 64 and 128 KiB reads.
const flushAt = 1 << 20

// termWait is how long the host has to close after a C2HTermReq.
const termWait = 30 * time.Second

// lingerWait is how long a connection that is closed without a word takes what still comes.
const lingerWait = 50 * time.Millisecond

// errEnd ends a connection without anybody's fault.
var errEnd = errors.New("end of connection")

// errStall ends the sending on a connection that stays open.
var errStall = errors.New("stalled by a fault")

// receive reads PDUs until the connection ends.
func (c *Conn) receive() {
	for {
		err := c.pdu()
		if err == nil {
			if c.full.Load() {
				c.kick()
			}
			continue
		}
		c.clean = errors.Is(err, io.EOF)
		var perr *pdu.Error
		if errors.As(err, &perr) {
			c.fatal(perr)
		}
		return
	}
}

// read is one read from the connection, which polls for so long before it sleeps. What was gathered
// goes out before, because the host may wait for it.
func (c *Conn) read(p []byte, spin time.Duration) (int, error) {
	c.kick()
	var n int
	var err error
	if c.try != nil {
		n, err = c.try.read(p, spin)
	} else {
		n, err = c.nc.Read(p)
	}
	c.received += int64(n)
	if w := c.wire.Load(); w != nil {
		err = w.received(c, err)
	}
	if n > 0 && err != nil && !errors.Is(err, errEnd) {
		err = nil // the next read says it again
	}
	return n, err
}

// spin is how long to poll for the next PDU: not at all unless every I/O queue can have a CPU.
func (c *Conn) spin() time.Duration {
	if c.QID() > 0 && int(c.t.ioConns.Load()) <= c.t.procs {
		return c.t.config.Spin
	}
	return 0
}

// need brings n bytes into rbuf from r on.
func (c *Conn) need(n int) error {
	if c.r == c.w {
		c.r, c.w = 0, 0
	}
	for c.w-c.r < n {
		if c.r+n > len(c.rbuf) {
			c.w = copy(c.rbuf, c.rbuf[c.r:c.w])
			c.r = 0
		}
		m, err := c.read(c.rbuf[c.w:], c.spin())
		if err != nil {
			return err
		}
		c.w += m
	}
	return nil
}

// fill reads the next len(p) bytes to p.
func (c *Conn) fill(p []byte) error {
	n := copy(p, c.rbuf[c.r:c.w])
	c.r += n
	for n < len(p) {
		m, err := c.read(p[n:], 0) // who polls in the middle of data takes it in small slices
		if err != nil {
			return err
		}
		n += m
	}
	return nil
}

// pdu receives and handles one PDU. A *pdu.Error is the host's fault.
func (c *Conn) pdu() error {
	if err := c.need(pdu.CommonHeaderLen); err != nil {
		return err
	}
	var h pdu.CommonHeader
	h.Decode(c.rbuf[c.r:])
	c.in.MaxData = c.dataLimit(h.Type)
	if err := c.in.Check(h); err != nil {
		return err
	}
	n := c.in.HeaderSize(h)
	if err := c.need(n); err != nil {
		return err
	}
	hdr := c.rbuf[c.r : c.r+n]
	if err := c.in.VerifyHeader(h, hdr); err != nil {
		return err
	}
	if err := c.reserved(h, hdr); err != nil {
		return err
	}
	switch h.Type {
	case pdu.TypeICReq:
		c.r += n
		return c.icReq(hdr)
	case pdu.TypeH2CTermReq:
		if err := c.need(int(h.PLEN)); err != nil {
			return err
		}
		return c.termReq(c.rbuf[c.r : c.r+int(h.PLEN)])
	case pdu.TypeH2CData:
		return c.h2cData(h, n)
	}
	return c.capsuleCmd(h, n)
}

// dataLimit is what [pdu.Framing.MaxData] is for a type, 0 for none.
func (c *Conn) dataLimit(t pdu.Type) uint32 {
	switch {
	case t == pdu.TypeH2CData:
		return c.t.profile.maxH2CData
	case t == pdu.TypeCapsuleCmd && c.t.profile.Mode != ModeNVMET:
		return uint32(c.capsuleLimit())
	}
	return 0
}

// capsuleLimit is how much data any capsule of this queue may carry, in bytes.
func (c *Conn) capsuleLimit() int {
	return max(c.t.profile.inCapsule, adminInCapsule)
}

// capsuleCmd receives what follows the header of n bytes of a CapsuleCmd.
func (c *Conn) capsuleCmd(h pdu.CommonHeader, n int) error {
	k := c.in.DataLen(h)
	if k > c.capsuleLimit() {
		// nvmet completes such a command and then takes its data for the next PDU.
		err := c.capsule(h, c.rbuf[c.r:c.r+n], nil, true, false)
		c.r += n
		return err
	}
	if err := c.need(int(h.PLEN)); err != nil {
		return err
	}
	b := c.rbuf[c.r : c.r+int(h.PLEN)]
	data := b[n : n+k]
	bad := c.in.Data && k > 0 && pdu.ReadDigest(b[n+k:]) != pdu.Digest(data)
	err := c.capsule(h, b[:n], data, false, bad)
	c.r += int(h.PLEN)
	return err
}

// h2cData receives an H2CData, whose header has n bytes, to where its transfer wants it.
func (c *Conn) h2cData(h pdu.CommonHeader, n int) error {
	var d pdu.Data
	if err := d.Decode(c.rbuf[c.r:]); err != nil {
		return err
	}
	tag, dst, scrap, err := c.dataBegin(&d, c.rbuf[c.r:c.r+int(h.HLEN)])
	c.r += n
	if err != nil {
		return err
	}
	defer c.t.pool.put(scrap)
	if err := c.fill(dst); err != nil {
		return err
	}
	bad := false
	if c.in.Data {
		if err := c.need(pdu.DigestLen); err != nil {
			return err
		}
		bad = pdu.ReadDigest(c.rbuf[c.r:]) != pdu.Digest(dst)
		c.r += pdu.DigestLen
	}
	return c.dataEnd(&d, tag, bad)
}

// termReq notes the host's complaint. It is never answered: the connection just ends.
func (c *Conn) termReq(b []byte) error {
	var p pdu.TermReq
	if err := p.Decode(b); err != nil {
		return err
	}
	p.Header = append([]byte(nil), p.Header...)
	c.t.terminated(c, p)
	return errEnd
}

// fatal ends the connection after a protocol error of the host.
func (c *Conn) fatal(err *pdu.Error) {
	c.t.violate(c, "%v", err)
	c.mu.Lock()
	ctrl := c.ctrl
	reply := c.t.profile.termReq && err.Reply()
	if reply {
		p := err.TermReq(pdu.Controller)
		c.cur.arena = p.Append(c.cur.arena)
		c.cur.close(sendNoMore)
	} else {
		c.cur.close(closeHalf)
	}
	c.mu.Unlock()
	c.kick()
	if ctrl != nil && c.t.profile.Mode == ModeNVMET {
		ctrl.fail(c)
	}
	if c.drain(reply) && reply {
		c.t.violate(c, "the host did not close within %v of a C2HTermReq", termWait)
		c.Reset()
	}
}

// drain takes what the host still sends, because a close over unread bytes is a reset, which may
// overtake what was sent. It reports whether the host has not closed in time.
func (c *Conn) drain(wait bool) bool {
	d := lingerWait
	if wait {
		d = termWait
	}
	_ = c.nc.SetReadDeadline(time.Now().Add(d))
	for {
		if _, err := c.nc.Read(c.rbuf); err != nil {
			return errors.Is(err, os.ErrDeadlineExceeded)
		}
	}
}
