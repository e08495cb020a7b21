package nvmetest

import (
	"time"

	"github.com/nvstage/nvstage/pdu"
)

// maxR2T is how many R2Ts of one command the strict mode has outstanding where the host allows it.
const maxR2T = 4

// maxC2HPDO is the largest PDO that a C2HData may have: HPDA allows alignments up to this.
const maxC2HPDO = (pdu.MaxAlign + 1) * 4

// icReq handles the PDU that begins a connection.
func (c *Conn) icReq(b []byte) error {
	var req pdu.ICReq
	if err := req.Decode(b); err != nil {
		return err
	}
	p := &c.t.profile
	if req.HPDA != 0 && p.Mode == ModeNVMET {
		return pdu.NewError(pdu.FESUnsupported, 10, b[:pdu.MaxHeaderLen], "HPDA is not 0, which this target does not support")
	}
	refuse := c.t.config.RefuseDigests
	resp := pdu.ICResp{
		CPDA:       uint8(max(p.cpda, 0)),
		DGST:       pdu.Digests{Header: req.DGST.Header && !refuse.Header, Data: req.DGST.Data && !refuse.Data},
		MAXH2CDATA: p.maxH2CData,
	}
	if p.cpda < 0 {
		resp.CPDA = req.HPDA
	}
	c.in.Ready = true
	c.in.Digests = resp.DGST
	c.in.Align = resp.CPDA

	f := &c.t.faults.Load().Conn
	if f.ICRespDelay > 0 && !c.t.sleep(f.ICRespDelay) {
		return errEnd
	}
	if f.ICResp != nil {
		f.ICResp(&resp)
	}
	c.mu.Lock()
	c.out = pdu.Layout{Digests: c.in.Digests, Align: req.HPDA}
	c.wide = c.out
	if unit := (int(req.HPDA) + 1) * 4; p.Mode == ModeStrict {
		c.wide.Align = uint8(maxC2HPDO/unit*unit/4 - 1)
	}
	c.maxR2T = 1
	if p.Mode == ModeStrict {
		c.maxR2T = int(min(req.MAXR2T, maxR2T-1)) + 1
	}
	switch {
	case f.NoICResp:
	case f.RawICResp != nil:
		c.cur.data(f.RawICResp)
	default:
		c.cur.arena = resp.Append(c.cur.arena)
	}
	c.mu.Unlock()
	return nil
}

// sleep waits for d, and reports false when the target was closed before.
func (t *Target) sleep(d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-t.done:
		return false
	}
}
