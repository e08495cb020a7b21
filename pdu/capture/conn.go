package capture

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"

	"github.com/nvstage/nvstage/pdu"
)

// maxConns bounds how many TCP connections are followed at a time; beyond it the half that was
// silent longest is dropped.
const maxConns = 1 << 14

// tuple is a connection's two ends in a fixed order, so that both directions find it.
type tuple [2]netip.AddrPort

func tupleOf(a, b netip.AddrPort) tuple {
	if a.Compare(b) > 0 {
		a, b = b, a
	}
	return tuple{a, b}
}

// conn is one TCP connection.
type conn struct {
	Conn
	d        *decoder
	expected bool         // on a port of the configuration: what cannot be decoded is reported
	refused  bool         // it is not NVMe/TCP, or cannot be decoded
	dirs     [2]direction // by who receives
	req      *pdu.ICReq
	resp     *pdu.ICResp
	order    int // of connections, as they came
	last     int // frame
}

// segment gives a segment to its connection.
func (d *decoder) segment(seg segment) {
	key := tupleOf(seg.src, seg.dst)
	c := d.conns[key]
	if c != nil && seg.syn && c.to(seg).another(seg) {
		d.finish(c) // the ports are used again
		c = nil
	}
	if c == nil {
		if !seg.syn && seg.len() == 0 {
			return
		}
		d.makeRoom()
		c = d.newConn(seg)
		d.conns[key] = c
	}
	c.last = d.frame
	if !c.refused {
		c.to(seg).segment(seg)
		c.dirs[pdu.Controller].cut() // what waits for ICResp may be understood now
	}
}

// newConn makes a connection of its first segment: the host is who sent the SYN, or else who spoke to
// a controller's port, or sent an ICReq.
func (d *decoder) newConn(seg segment) *conn {
	d.opened++
	c := &conn{d: d, order: d.opened}
	fromHost := !seg.ack
	switch {
	case seg.syn:
	case slices.Contains(d.Ports, seg.dst.Port()):
		fromHost = true
	default:
		var h pdu.CommonHeader
		if len(seg.data) >= pdu.CommonHeaderLen {
			h.Decode(seg.data)
		}
		fromHost = h.Type == pdu.TypeICReq
	}
	c.Host, c.Controller = seg.src, seg.dst
	if !fromHost {
		c.Host, c.Controller = seg.dst, seg.src
	}
	c.expected = slices.Contains(d.Ports, c.Controller.Port())
	for _, to := range []pdu.Role{pdu.Host, pdu.Controller} {
		c.dirs[to] = direction{c: c, f: pdu.Framing{Role: to}}
	}
	return c
}

// to returns the direction that a segment belongs to.
func (c *conn) to(seg segment) *direction {
	if seg.src == c.Host {
		return &c.dirs[pdu.Controller]
	}
	return &c.dirs[pdu.Host]
}

// negotiate sets what ICReq and ICResp agree on: digests that the host wants and the controller
// enables, and where data may start. Without ICReq, ICResp has to do.
func (c *conn) negotiate() {
	if c.resp == nil {
		return
	}
	dgst := c.resp.DGST
	if c.req != nil {
		dgst.Header = dgst.Header && c.req.DGST.Header
		dgst.Data = dgst.Data && c.req.DGST.Data
		c.dirs[pdu.Host].f.Align = min(c.req.HPDA, pdu.MaxAlign)
	}
	c.dirs[pdu.Controller].f.Align = min(c.resp.CPDA, pdu.MaxAlign)
	for i := range c.dirs {
		c.dirs[i].f.Digests = dgst
	}
}

// refuse gives a connection up.
func (c *conn) refuse() {
	c.refused = true
	for i := range c.dirs {
		c.dirs[i].lose()
	}
}

// makeRoom drops connections when there are too many.
func (d *decoder) makeRoom() {
	if len(d.conns) < maxConns {
		return
	}
	all := slices.SortedFunc(maps.Values(d.conns), func(a, b *conn) int { return cmp.Compare(a.last, b.last) })
	for _, c := range all[:len(all)/2] {
		d.finish(c)
		delete(d.conns, tupleOf(c.Host, c.Controller))
	}
}

// finishAll ends all connections: the capture ends.
func (d *decoder) finishAll() {
	for _, c := range slices.SortedFunc(maps.Values(d.conns), func(a, b *conn) int { return a.order - b.order }) {
		d.finish(c)
	}
}

// finish reports what a connection still owes.
func (d *decoder) finish(c *conn) {
	at := d.now
	for _, dir := range []*direction{&c.dirs[pdu.Controller], &c.dirs[pdu.Host]} {
		d.now = dir.last
		dir.finish()
	}
	d.now = at
}
