package capture

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// trace builds a capture, packet by packet, as TCP segments of several connections.
type trace struct {
	t        testing.TB
	packets  []frame
	segments []int // sizes to cut streams into, in turn; none: 1448
	turn     int
}

// frame is one packet before it has a link layer.
type frame struct {
	src, dst netip.AddrPort
	tcp      layers.TCP
	data     []byte
	snap     int // captured bytes of data and TCP header; 0 = all
}

// sent is a PDU as it was sent.
type sent struct {
	to   pdu.Role
	wire []byte
}

// tcpConn is a connection in a trace.
type tcpConn struct {
	*trace
	host, ctrl netip.AddrPort
	seq        [2]uint32 // next sequence number, by who receives
	sent       []sent
	layouts    [2]pdu.Layout
	dgst       pdu.Digests
}

func (tr *trace) dial(host, ctrl string) *tcpConn {
	return &tcpConn{
		trace: tr,
		host:  netip.MustParseAddrPort(host), ctrl: netip.MustParseAddrPort(ctrl),
		seq: [2]uint32{1000, 1<<32 - 300}, // the host's wraps soon
	}
}

// handshake adds SYN, SYN-ACK and ACK.
func (c *tcpConn) handshake() *tcpConn {
	c.packet(pdu.Controller, layers.TCP{SYN: true}, nil)
	c.seq[pdu.Controller]++
	c.packet(pdu.Host, layers.TCP{SYN: true, ACK: true}, nil)
	c.seq[pdu.Host]++
	c.packet(pdu.Controller, layers.TCP{ACK: true}, nil)
	return c
}

// packet adds one packet with data at the stream's present place.
func (c *tcpConn) packet(to pdu.Role, tcp layers.TCP, data []byte) {
	f := frame{src: c.host, dst: c.ctrl, tcp: tcp, data: bytes.Clone(data)}
	if to == pdu.Host {
		f.src, f.dst = f.dst, f.src
	}
	f.tcp.SrcPort, f.tcp.DstPort = layers.TCPPort(f.src.Port()), layers.TCPPort(f.dst.Port())
	f.tcp.Seq, f.tcp.Ack, f.tcp.Window = c.seq[to], c.seq[1-to], 65535
	c.packets = append(c.packets, f)
	c.seq[to] += uint32(len(data))
}

// stream adds bytes, cut into segments.
func (c *tcpConn) stream(to pdu.Role, b []byte) {
	for len(b) > 0 {
		n := 1448
		if len(c.segments) > 0 {
			n = c.segments[c.turn%len(c.segments)]
			c.turn++
		}
		n = min(n, len(b))
		c.packet(to, layers.TCP{ACK: true, PSH: true}, b[:n])
		b = b[n:]
	}
}

// send adds whole PDUs, back to back.
func (c *tcpConn) send(to pdu.Role, pdus ...[]byte) {
	for _, b := range pdus {
		c.sent = append(c.sent, sent{to, b})
	}
	c.stream(to, slices.Concat(pdus...))
}

// bye adds a FIN of each side.
func (c *tcpConn) bye() {
	for _, to := range []pdu.Role{pdu.Controller, pdu.Host} {
		c.packet(to, layers.TCP{FIN: true, ACK: true}, nil)
		c.seq[to]++
	}
}

// ic exchanges ICReq and ICResp.
func (c *tcpConn) ic(dgst pdu.Digests, align uint8) *tcpConn {
	c.dgst = dgst
	c.layouts = [2]pdu.Layout{{Digests: dgst, Align: align}, {Digests: dgst, Align: align}}
	c.send(pdu.Controller, (&pdu.ICReq{DGST: dgst, HPDA: align}).Append(nil))
	c.send(pdu.Host, (&pdu.ICResp{DGST: dgst, CPDA: align, MAXH2CDATA: 8192}).Append(nil))
	return c
}

func (c *tcpConn) cmd(s nvme.SQE, data []byte) []byte {
	s.Flags = nvme.FlagSGL
	p := pdu.CapsuleCmd{SQE: [64]byte(s.Append(nil))}
	return p.Append(nil, c.layouts[pdu.Controller], data)
}

func (c *tcpConn) resp(q nvme.CQE) []byte {
	p := pdu.CapsuleResp{CQE: [16]byte(q.Append(nil))}
	return p.Append(nil, c.layouts[pdu.Host])
}

func (c *tcpConn) data(to pdu.Role, d pdu.Data, data []byte) []byte {
	d.Type = pdu.TypeC2HData
	if to == pdu.Controller {
		d.Type = pdu.TypeH2CData
	}
	return d.Append(nil, c.layouts[to], data)
}

func (c *tcpConn) r2t(r pdu.R2T) []byte { return r.Append(nil, c.layouts[pdu.Host]) }

// traffic sends what a connection carries: Connect, a write by R2T in two parts, a small write, two
// reads whose data come in one segment, and whatever comes at the end.
func (c *tcpConn) traffic(queue uint32) {
	host, ctrl := pdu.Host, pdu.Controller
	c.send(ctrl, c.cmd(nvme.SQE{Opcode: 0x7f, CID: 1, NSID: 1, CDW10: queue << 16, CDW11: 31, SGL: nvme.SGL{ID: nvme.SGLInCapsule, Length: 1024}}, connectData()))
	c.send(host, c.resp(nvme.CQE{DW0: 1, CID: 1}))
	c.send(ctrl, c.cmd(nvme.SQE{Opcode: 1, CID: 0x11, NSID: 1, CDW10: 8, CDW12: 15, SGL: nvme.SGL{ID: nvme.SGLTransport, Length: 8192}}, nil))
	c.send(host, c.r2t(pdu.R2T{CCCID: 0x11, TTAG: 0xa5, R2TL: 8192}))
	c.send(
		ctrl,
		c.data(ctrl, pdu.Data{CCCID: 0x11, TTAG: 0xa5}, pat(4096, 2)),
		c.data(ctrl, pdu.Data{CCCID: 0x11, TTAG: 0xa5, DATAO: 4096, Flags: pdu.FlagLast}, pat(4096, 3)),
		c.cmd(nvme.SQE{Opcode: 1, CID: 0x12, NSID: 1, SGL: nvme.SGL{ID: nvme.SGLInCapsule, Length: 512}}, pat(512, 4)),
		c.cmd(nvme.SQE{Opcode: 2, CID: 0x13, NSID: 1, SGL: nvme.SGL{ID: nvme.SGLTransport, Length: 16384}}, nil),
		c.cmd(nvme.SQE{Opcode: 2, CID: 0x14, NSID: 1, SGL: nvme.SGL{ID: nvme.SGLTransport, Length: 512}}, nil),
	)
	c.send(
		host,
		c.resp(nvme.CQE{CID: 0x11, SQHD: 2}),
		c.resp(nvme.CQE{CID: 0x12, SQHD: 3, Status: 0x8004}),
		c.data(host, pdu.Data{CCCID: 0x13}, pat(8192, 5)),
		c.data(host, pdu.Data{CCCID: 0x14, Flags: pdu.FlagLast | pdu.FlagSuccess}, pat(512, 6)),
		c.data(host, pdu.Data{CCCID: 0x13, DATAO: 8192, Flags: pdu.FlagLast}, pat(8192, 7)),
		c.resp(nvme.CQE{CID: 0x13, SQHD: 4}),
	)
}

// termReq ends the connection with one from each side.
func (c *tcpConn) termReq() {
	e := pdu.NewError(pdu.FESInvalidHeaderField, 10, c.data(pdu.Controller, pdu.Data{}, pat(8, 0))[:24], "")
	req, resp := e.TermReq(pdu.Host), e.TermReq(pdu.Controller)
	c.send(pdu.Host, resp.Append(nil))
	c.send(pdu.Controller, req.Append(nil))
}

func connectData() []byte {
	b := make([]byte, 1024)
	copy(b[16:], "\xff\xff")
	copy(b[256:], "nqn.2016-06.io.spdk:cnode1")
	copy(b[512:], "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-def0-1234-56789abcdef0")
	return b
}

// pat returns n bytes, byte i = (i+o) mod 256.
func pat(n, o int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + o)
	}
	return b
}

var linkTypes = map[string]int{"Ethernet": 1, "SLL": 113, "SLL2": linkSLL2, "Null": 0, "Loop": 108, "Raw": 101, "VLAN": 1}

// bytes serialises a frame for a link type of linkTypes.
func (tr *trace) bytes(f *frame, link string) []byte {
	v4 := f.src.Addr().Is4()
	var ip gopacket.SerializableLayer
	proto, family := layers.EthernetTypeIPv4, byte(2)
	if v4 {
		l := &layers.IPv4{Version: 4, TTL: 64, Protocol: layers.IPProtocolTCP, SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice()}
		require.NoError(tr.t, f.tcp.SetNetworkLayerForChecksum(l))
		ip = l
	} else {
		proto, family = layers.EthernetTypeIPv6, 10
		l := &layers.IPv6{Version: 6, HopLimit: 64, NextHeader: layers.IPProtocolTCP, SrcIP: f.src.Addr().AsSlice(), DstIP: f.dst.Addr().AsSlice()}
		require.NoError(tr.t, f.tcp.SetNetworkLayerForChecksum(l))
		ip = l
	}
	buf := gopacket.NewSerializeBuffer()
	opts := gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}
	require.NoError(tr.t, gopacket.SerializeLayers(buf, opts, ip, &f.tcp, gopacket.Payload(f.data)))
	b := buf.Bytes()
	if f.snap > 0 {
		b = b[:len(b)-len(f.data)-20+min(f.snap, 20+len(f.data))]
	}
	var head []byte
	switch link {
	case "Ethernet":
		head = append(make([]byte, 12), byte(proto>>8), byte(proto))
	case "VLAN":
		head = append(make([]byte, 12), 0x81, 0, 0, 7, byte(proto>>8), byte(proto))
	case "SLL":
		head = append([]byte{0, 4, 3, 4, 0, 6, 0, 0, 0, 0, 0, 0, 0, 0}, byte(proto>>8), byte(proto))
	case "SLL2":
		head = append([]byte{byte(proto >> 8), byte(proto), 0, 0, 0, 0, 0, 1, 3, 4, 4, 6}, make([]byte, 8)...)
	case "Null":
		head = []byte{family, 0, 0, 0}
	case "Loop":
		head = []byte{0, 0, 0, family}
	}
	b = append(head, b...)
	if link == "Ethernet" && len(b) < 60 && f.snap == 0 {
		b = append(b, bytes.Repeat([]byte{0xee}, 60-len(b))...) // padding must not become data
	}
	return b
}

// start is when all traces begin; the packets are 1 µs apart.
var start = time.Date(2025, 1, 2, 3, 4, 5, 6000, time.UTC)

// pcap returns the trace as a file.
func (tr *trace) pcap(link string) []byte {
	var out bytes.Buffer
	w := pcapgo.NewWriter(&out)
	require.NoError(tr.t, w.WriteFileHeader(1<<18, layers.LinkType(linkTypes[link]&0xff)))
	// pcapgo's link type is a byte.
	binary.LittleEndian.PutUint32(out.Bytes()[20:], uint32(linkTypes[link]))
	for i := range tr.packets {
		b := tr.bytes(&tr.packets[i], link)
		ci := gopacket.CaptureInfo{Timestamp: start.Add(time.Duration(i) * time.Microsecond), CaptureLength: len(b), Length: len(b)}
		require.NoError(tr.t, w.WritePacket(ci, b))
	}
	return out.Bytes()
}

// result is all that Read yields.
type result struct {
	pdus []PDU
	errs []error
}

func read(c Config, file []byte) (r result) {
	for p, err := range c.Read(bytes.NewReader(file)) {
		if err != nil {
			r.errs = append(r.errs, err)
		}
		if p.Header != nil {
			r.pdus = append(r.pdus, p)
		}
	}
	return r
}

// wire puts a PDU together again.
func wire(p PDU, dgst pdu.Digests) []byte {
	b := bytes.Clone(p.Header)
	if p.Flags.Has(pdu.FlagHDGST) && !p.BadHeader {
		b = pdu.AppendDigest(b, pdu.Digest(b))
	}
	if len(p.Data) > 0 {
		if p.PDO > 0 {
			b = append(b, make([]byte, int(p.PDO)-len(b))...)
		}
		b = append(b, p.Data...)
	}
	if p.Flags.Has(pdu.FlagDDGST) {
		b = pdu.AppendDigest(b, p.DataDigest)
	}
	return b
}

// requireAll requires that a capture gave exactly what the connections sent, in order.
func requireAll(t testing.TB, r result, conns ...*tcpConn) {
	t.Helper()
	require.Empty(t, r.errs)
	requirePDUs(t, r, conns...)
}

// requirePDUs is requireAll whatever else was reported.
func requirePDUs(t testing.TB, r result, conns ...*tcpConn) {
	t.Helper()
	total := 0
	for _, c := range conns {
		total += len(c.sent)
		for _, to := range []pdu.Role{pdu.Host, pdu.Controller} {
			var got, want [][]byte
			for _, p := range r.pdus {
				if p.Conn.Host == c.host && p.Conn.Controller == c.ctrl && p.To == to {
					require.False(t, p.BadData || p.BadHeader)
					got = append(got, wire(p, c.dgst))
				}
			}
			for _, s := range c.sent {
				if s.to == to {
					want = append(want, s.wire)
				}
			}
			require.Equal(t, len(want), len(got), "PDUs of %s", c.host)
			require.Equal(t, want, got)
		}
	}
	require.Len(t, r.pdus, total)
}
