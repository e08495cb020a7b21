package capture

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/google/gopacket"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// FuzzRead reads any file.
func FuzzRead(f *testing.F) {
	tr := &trace{t: f, segments: []int{100}} // small: the fuzzer spends its time on shrinking what it finds
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 1)
	c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, pat(16, 0)))
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(16, 0)), c.resp(nvme.CQE{CID: 1}))
	for link := range linkTypes {
		f.Add(tr.pcap(link))
	}
	le := binary.LittleEndian
	f.Add(bytes.Join([][]byte{sectionBlock(le), ifaceBlock(le, 1, 0), packetBlock(le, 0, 0, tr.bytes(&tr.packets[0], "Ethernet"))}, nil))
	f.Fuzz(func(t *testing.T, file []byte) {
		pdus, last := 0, 0
		for p, err := range (Config{MaxBuffer: 1 << 16}).Read(bytes.NewReader(file)) {
			if pdus++; pdus > len(file)+1000 {
				t.Fatal("more PDUs than bytes")
			}
			checkPDU(t, p, err)
			var e *Error
			if err != nil && !errors.As(err, &e) {
				last++
			}
		}
		if last > 1 {
			t.Fatal("went on behind the end")
		}
	})
}

// checkPDU checks what holds for everything that Read yields.
func checkPDU(t *testing.T, p PDU, err error) {
	if err == nil && len(p.Header) != p.Type.HeaderLen() {
		t.Fatalf("%d bytes of header in %+v", len(p.Header), p.CommonHeader)
	}
	if len(p.Data) > int(p.PLEN) || err == nil && !p.To.Receives(p.Type) {
		t.Fatalf("%+v", p.CommonHeader)
	}
	if err == nil && (p.SQE != nil) != (p.Type == pdu.TypeCapsuleCmd) || (p.CQE != nil) && p.Type != pdu.TypeCapsuleResp {
		t.Fatalf("%+v", p)
	}
	if err != nil && err.Error() == "" {
		t.Fatal("an error without text")
	}
}

// FuzzStreams gives one connection segments whose order, borders, overlaps and bytes the input
// chooses. With nothing but disorder, every byte that was sent must come out.
func FuzzStreams(f *testing.F) {
	f.Add([]byte{0, 10, 1, 20, 2, 200, 0, 0})
	f.Add([]byte{255, 255, 0, 1, 128, 3, 1, 1, 7, 7})
	tr := &trace{t: f, segments: []int{60}}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 0)
	c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, nil), c.cmd(nvme.SQE{CID: 2}, pat(100, 0)))
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(300, 0)), c.resp(nvme.CQE{CID: 1}))
	var segs []segment
	for i := range tr.packets {
		p := &tr.packets[i]
		segs = append(segs, segment{
			src: p.src, dst: p.dst, syn: p.tcp.SYN, ack: p.tcp.ACK,
			piece: piece{seq: p.tcp.Seq, data: p.data},
		})
	}
	f.Fuzz(func(t *testing.T, script []byte) {
		var got []PDU
		d := decoder{
			Config: Config{Ports: []uint16{4420}, MaxBuffer: 1 << 16},
			conns:  map[tuple]*conn{},
			yield: func(p PDU, err error) bool {
				checkPDU(t, p, err)
				if err != nil {
					t.Fatal(err)
				}
				got = append(got, p)
				return true
			},
		}
		for i := range 3 { // the handshake
			d.segment(segs[i])
		}
		rest := append([]segment(nil), segs[3:]...)
		for len(script) >= 2 {
			i, cut := int(script[0])%len(rest), int(script[1])
			script = script[2:]
			s := rest[i]
			if n := len(s.data); n > 0 {
				from := cut % n
				s.data = s.data[from:min(n, from+1+cut/4)]
				s.seq += uint32(from)
			}
			d.frame++
			d.segment(s)
		}
		for _, s := range rest {
			d.frame++
			d.segment(s)
		}
		d.finishAll()
		requirePDUs(t, result{pdus: got}, c)
	})
}

// FuzzLayer decodes any bytes as a packet's.
func FuzzLayer(f *testing.F) {
	tr := &trace{t: f}
	c := tr.dial(host4, ctrl4).ic(pdu.Digests{Header: true, Data: true}, 1)
	c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, pat(16, 0)))
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(16, 0)), c.resp(nvme.CQE{CID: 1}))
	c.termReq()
	for i := range tr.packets {
		f.Add(tr.packets[i].data)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		pkt := gopacket.NewPacket(b, LayerType, gopacket.DecodeOptions{SkipDecodeRecovery: true})
		size := 0
		for _, l := range pkt.Layers() {
			if l, ok := l.(*Layer); ok {
				checkPDU(t, l.PDU, nil)
				size += len(l.LayerContents())
			}
		}
		if size > len(b) {
			t.Fatal("more PDUs than bytes")
		}
	})
}

// FuzzConn gives a connection any bytes in any order. The input is a list of segments: a byte of
// flags, a byte by which the sequence number is off, the length, the data.
func FuzzConn(f *testing.F) {
	const toHost, syn, jump, missing = 1, 2, 4, 8
	for _, dgst := range allDigests {
		tr := &trace{t: f, segments: []int{100, 3}}
		c := tr.dial(host4, ctrl4).handshake().ic(dgst, 0)
		c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, pat(16, 0)))
		c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(16, 0)), c.r2t(pdu.R2T{R2TL: 1}), c.resp(nvme.CQE{CID: 1}))
		c.termReq()
		var script []byte
		for _, p := range tr.packets {
			var flags byte
			if p.src == c.ctrl {
				flags |= toHost
			}
			if p.tcp.SYN {
				flags |= syn
			}
			script = append(script, flags, 0, byte(len(p.data)))
			script = append(script, p.data...)
		}
		f.Add(script)
	}
	ends := [2]netip.AddrPort{netip.MustParseAddrPort(host4), netip.MustParseAddrPort(ctrl4)}
	f.Fuzz(func(t *testing.T, script []byte) {
		const limit = 1 << 10
		d := decoder{
			Config: Config{Ports: []uint16{4420}, MaxBuffer: limit},
			conns:  map[tuple]*conn{},
			yield: func(p PDU, err error) bool {
				checkPDU(t, p, err)
				return true
			},
		}
		var seq [2]uint32
		for len(script) >= 3 {
			flags, off, n := script[0], script[1], min(int(script[2]), len(script)-3)
			to := 1 - flags&toHost
			seg := segment{src: ends[1-to], dst: ends[to], syn: flags&syn != 0, ack: to == 0}
			seg.seq = seq[to]
			seg.data = script[3 : 3+n]
			script = script[3+n:]
			if flags&jump != 0 {
				seg.seq += uint32(int32(int8(off)))
			} else if flags&missing != 0 {
				seg.missing = int(off)
			}
			seq[to] += uint32(seg.len())
			if seg.syn {
				seq[to]++
			}
			d.frame++
			d.segment(seg)
			for _, c := range d.conns {
				for i := range c.dirs {
					if dir := &c.dirs[i]; len(dir.buf) > limit || dir.held > limit || len(dir.ahead) > maxAhead || dir.skip < 0 {
						t.Fatalf("%d bytes in order, %d ahead, %d to skip", len(dir.buf), dir.held, dir.skip)
					}
				}
			}
		}
		d.finishAll()
	})
}
