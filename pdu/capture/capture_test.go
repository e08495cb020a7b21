package capture

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

var allDigests = []pdu.Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}}

const (
	host4, ctrl4 = "192.0.2.1:50000", "192.0.2.9:4420"
	host6, ctrl6 = "[2001:db8::1]:50000", "[2001:db8::9]:8009"
)

// several is a trace of connections with all digest settings, cut at odd places.
func several(t testing.TB, align uint8, segments ...int) (*trace, []*tcpConn) {
	tr := &trace{t: t, segments: segments}
	var conns []*tcpConn
	for i, dgst := range allDigests {
		host, ctrl := fmt.Sprintf("192.0.2.1:%d", 50000+i), ctrl4
		if i%2 == 1 {
			host, ctrl = fmt.Sprintf("[2001:db8::1]:%d", 50000+i), ctrl6
		}
		c := tr.dial(host, ctrl).handshake().ic(dgst, align)
		c.traffic(uint32(i))
		c.termReq()
		c.bye()
		conns = append(conns, c)
	}
	return tr, conns
}

func TestRead(t *testing.T) {
	for link := range linkTypes {
		t.Run(link, func(t *testing.T) {
			tr, conns := several(t, 0, 1, 7, 64, 1448, 3, 4000, 8, 333)
			requireAll(t, read(Config{}, tr.pcap(link)), conns...)
		})
	}
	for _, align := range []uint8{1, 2, 7, 17, 31} {
		t.Run(fmt.Sprintf("align %d", align), func(t *testing.T) {
			tr, conns := several(t, align, 60000)
			requireAll(t, read(Config{}, tr.pcap("Ethernet")), conns...)
		})
	}
	t.Run("byte by byte", func(t *testing.T) {
		tr := &trace{t: t, segments: []int{1}}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 3)
		c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, pat(64, 0)))
		c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(64, 0)), c.resp(nvme.CQE{CID: 1}))
		c.termReq()
		requireAll(t, read(Config{}, tr.pcap("Raw")), c)
	})
}

// TestFields looks at what a PDU tells.
func TestFields(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 0)
	c.traffic(3)
	r := read(Config{}, tr.pcap("Ethernet"))
	requireAll(t, r, c)
	p := r.pdus[0]
	require.Equal(t, pdu.TypeICReq, p.Type)
	require.Equal(t, pdu.Controller, p.To)
	require.Equal(t, 4, p.Frame)
	require.Equal(t, start.Add(3*time.Microsecond), p.Time)
	require.Equal(t, "192.0.2.1:50000 > 192.0.2.9:4420", p.Conn.String())
	require.Equal(t, 1, p.Conn.N)
	p = r.pdus[2]
	require.Equal(t, &nvme.SQE{
		Opcode: 0x7f, Flags: nvme.FlagSGL, CID: 1, NSID: 1, CDW10: 3 << 16, CDW11: 31,
		SGL: nvme.SGL{ID: nvme.SGLInCapsule, Length: 1024},
	}, p.SQE)
	require.Nil(t, p.CQE)
	require.Equal(t, connectData(), p.Data)
	require.Equal(t, pdu.Digest(p.Data), p.DataDigest)
	p = r.pdus[3]
	require.Equal(t, &nvme.CQE{DW0: 1, CID: 1}, p.CQE)
	require.Nil(t, p.SQE)
	require.Equal(t, pdu.Host, p.To)
}

// TestOwnMemory: what was yielded stays as it was.
func TestOwnMemory(t *testing.T) {
	tr, conns := several(t, 0, 500)
	requireAll(t, read(Config{}, tr.pcap("Ethernet")), conns...) // compares after the end
}

// TestDisorder shuffles segments within a window, sends some again, whole or with other borders.
func TestDisorder(t *testing.T) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tr, conns := several(t, 0, 1+rnd.IntN(90), 1+rnd.IntN(2000), 1448)
		// The start stays: without its SYN a stream begins where the capture begins.
		tr.packets = disorder(rnd, tr.packets)
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), conns...)
	}
}

func disorder(rnd *rand.Rand, in []frame) (out []frame) {
	for _, f := range in {
		out = append(out, f)
		if f.tcp.SYN || rnd.IntN(3) > 0 {
			continue
		}
		if len(f.data) > 1 && rnd.IntN(2) == 0 { // again, from another place to another place
			from := rnd.IntN(len(f.data))
			to := from + 1 + rnd.IntN(len(f.data)-from)
			f.data = f.data[from:to]
			f.tcp.Seq += uint32(from)
		}
		out = append(out, f)
	}
	for i := range out {
		j := i + rnd.IntN(min(12, len(out)-i))
		syn := false
		for k := i; k <= j; k++ {
			syn = syn || out[k].tcp.SYN
		}
		if !syn {
			out[i], out[j] = out[j], out[i]
		}
	}
	return out
}

// TestKeepAliveProbe: TCP's probe repeats a byte before the next, and its value means nothing.
func TestKeepAliveProbe(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	c.seq[pdu.Controller]--
	c.packet(pdu.Controller, layers.TCP{ACK: true}, []byte{0xee})
	c.packet(pdu.Controller, layers.TCP{ACK: true}, nil)
	c.traffic(1)
	requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
}

// TestPorts: a connection that begins with ICReq is decoded on any port, with or without its SYN;
// others are only spoken of on the ports that were given.
func TestPorts(t *testing.T) {
	tr := &trace{t: t}
	odd := tr.dial(host4, "192.0.2.9:7777").handshake().ic(pdu.Digests{Header: true}, 0)
	odd.traffic(1)
	noSYN := tr.dial("192.0.2.1:50001", "192.0.2.9:7777").ic(pdu.Digests{Header: true}, 0)
	noSYN.traffic(1)
	for i, text := range []string{"GET / HTTP/1.1\r\n\r\n", "a", "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"} {
		for j, open := range []bool{true, false} {
			web := tr.dial(fmt.Sprintf("192.0.2.1:%d", 51000+2*i+j), "192.0.2.9:80")
			if open {
				web.handshake()
			}
			web.stream(pdu.Controller, []byte(text))
			web.stream(pdu.Host, []byte("HTTP/1.1 200 OK\r\n\r\n"))
			web.bye()
		}
	}
	tr.dial("192.0.2.1:51100", "192.0.2.9:80").handshake().stream(pdu.Controller, []byte("a")) // ends like this
	gap := tr.dial("192.0.2.1:51101", "192.0.2.9:80").handshake()
	gap.seq[pdu.Controller] += 100
	gap.stream(pdu.Controller, []byte("GET / HTTP/1.1\r\n\r\n"))
	file := tr.pcap("Ethernet")
	requireAll(t, read(Config{}, file), odd, noSYN)
	r := read(Config{Ports: []uint16{80}}, file)
	requirePDUs(t, r, odd, noSYN)
	require.Len(t, r.errs, 6+2, "once for each connection")
}

// TestPortReuse: the same four numbers, another connection.
func TestPortReuse(t *testing.T) {
	tr := &trace{t: t}
	a := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	a.traffic(1)
	b := tr.dial(host4, ctrl4)
	b.seq = [2]uint32{77, 99}
	b.handshake().ic(pdu.Digests{Header: true, Data: true}, 3).traffic(2)
	tr.packets = slices.Insert(tr.packets, 5, tr.packets[0], tr.packets[1]) // SYNs sent twice are no new connection
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Empty(t, r.errs)
	require.Len(t, r.pdus, len(a.sent)+len(b.sent))
	for i, p := range r.pdus {
		require.Equal(t, 1+i/len(a.sent), p.Conn.N)
		require.Equal(t, append(a.sent, b.sent...)[i].wire, wire(p, pdu.Digests{}))
	}
}

// TestPortReuseCut: the new connection ends the old one, whose last PDU was not complete.
func TestPortReuseCut(t *testing.T) {
	tr := &trace{t: t, segments: []int{128, 128, 100}}
	a := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	a.send(pdu.Host, a.data(pdu.Host, pdu.Data{}, pat(100, 0)))
	tr.packets = tr.packets[:len(tr.packets)-1]
	cut := len(tr.packets)
	tr.dial("192.0.2.2:50000", ctrl4).handshake()
	b := tr.dial(host4, ctrl4)
	b.seq = [2]uint32{77, 99}
	b.handshake().ic(pdu.Digests{}, 0)
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Len(t, r.errs, 1)
	e := errAt(t, r, 0, ErrCut)
	require.Equal(t, cut, e.Frame, "the last packet of that direction")
	require.Equal(t, 1, e.Conn.N)
	require.Len(t, r.pdus, 5)
	require.Equal(t, 2, r.pdus[4].Conn.N)
}

// TestLateICResp: what the host says waits until the digests are known.
func TestLateICResp(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true}, 0)
	c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, nil))
	tr.packets[4], tr.packets[5] = tr.packets[5], tr.packets[4]
	r := read(Config{}, tr.pcap("Ethernet"))
	requireAll(t, r, c)
	require.Equal(t, []int{4, 6, 6}, []int{r.pdus[0].Frame, r.pdus[1].Frame, r.pdus[2].Frame})

	t.Run("TermReq does not wait", func(t *testing.T) { // it never has digests
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake()
		c.send(pdu.Controller, (&pdu.ICReq{}).Append(nil), (&pdu.TermReq{Type: pdu.TypeH2CTermReq}).Append(nil))
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
	})
	t.Run("gap meanwhile", func(t *testing.T) { // a header that is not understood bounds nothing
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake()
		c.send(pdu.Controller, (&pdu.ICReq{}).Append(nil))
		c.send(pdu.Controller, c.cmd(nvme.SQE{}, pat(64, 0)))
		tr.packets[len(tr.packets)-1].snap = 20 + 80
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrGap)
		require.Len(t, r.pdus, 1)
	})
}

func errAt(t testing.TB, r result, i int, target error) *Error {
	t.Helper()
	require.Greater(t, len(r.errs), i)
	require.ErrorIs(t, r.errs[i], target)
	var e *Error
	require.ErrorAs(t, r.errs[i], &e)
	require.NotZero(t, e.Frame)
	require.NotZero(t, e.Time)
	require.Contains(t, e.Error(), "192.0.2.")
	return e
}

func TestNoStart(t *testing.T) {
	t.Run("SYN only missing", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
	})
	t.Run("the host's SYN missing", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, "192.0.2.9:7777").handshake().ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		tr.packets = tr.packets[1:]
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
	})
	t.Run("ICReq missing too", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		tr.packets, c.sent = tr.packets[1:], c.sent[1:]
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
	})
	t.Run("in the middle", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		tr.packets = tr.packets[2:]
		other := tr.dial("192.0.2.1:50001", ctrl4).handshake().ic(pdu.Digests{}, 0)
		r := read(Config{}, tr.pcap("Ethernet"))
		requirePDUs(t, r, other)
		require.Len(t, r.errs, 1, "once for a connection")
		e := errAt(t, r, 0, ErrNoStart)
		require.Equal(t, 1, e.Frame)
		require.Equal(t, c.host, e.Conn.Host)
	})
	t.Run("in the middle, the controller first", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		tr.packets = tr.packets[3:]
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		e := errAt(t, r, 0, ErrNoStart)
		require.Equal(t, c.host, e.Conn.Host)
		require.Equal(t, pdu.Host, e.To)
		require.ErrorContains(t, e, "192.0.2.9:4420 > 192.0.2.1:50000")
	})
	t.Run("a new connection after it", func(t *testing.T) {
		tr := &trace{t: t}
		old := tr.dial(host4, ctrl4)
		old.stream(pdu.Host, pat(100, 8))
		c := tr.dial(host4, ctrl4)
		c.seq = [2]uint32{77, 99}
		c.handshake().ic(pdu.Digests{}, 0).traffic(1)
		r := read(Config{}, tr.pcap("Ethernet"))
		requirePDUs(t, r, c)
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrNoStart)
	})
	t.Run("from ICResp on, on any port", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, "192.0.2.9:7777").ic(pdu.Digests{Header: true}, 0)
		c.traffic(1)
		tr.packets, c.sent = tr.packets[1:], c.sent[1:]
		requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
	})
	t.Run("no ICResp", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
		c.send(pdu.Controller, c.cmd(nvme.SQE{}, nil))
		tr.packets = append(tr.packets[:4:4], tr.packets[5:]...)
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.pdus, 1)
		errAt(t, r, 0, ErrNoStart)
	})
	t.Run("TLS in the middle", func(t *testing.T) {
		tr := &trace{t: t}
		tr.dial(host4, ctrl4).stream(pdu.Controller, []byte("\x17\x03\x03\x02\x00\x01\x00\x01\xfc\x03\x03"))
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrTLS)
	})
	t.Run("TLS", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake()
		c.stream(pdu.Controller, []byte("\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"))
		c.stream(pdu.Host, []byte("\x16\x03\x03\x02\x00\x02\x00\x01\xfc\x03\x03"))
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrTLS)
	})
}

// TestGap takes each segment of a connection away in turn. Whatever comes must have been sent, the
// loss must be reported, and inside data only the one PDU is lost.
func TestGap(t *testing.T) {
	build := func() (*trace, *tcpConn) {
		tr := &trace{t: t, segments: []int{600}}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 0)
		c.traffic(1)
		return tr, c
	}
	tr, c := build()
	whole := read(Config{}, tr.pcap("Ethernet"))
	requireAll(t, whole, c)
	lostOne := 0
	for i := 3; i < len(tr.packets); i++ {
		tr, c := build()
		data := tr.packets[i].data
		tr.packets = append(tr.packets[:i:i], tr.packets[i+1:]...)
		r := read(Config{}, tr.pcap("Ethernet"))
		at := 0
		for _, p := range r.pdus {
			for at < len(whole.pdus) && !(whole.pdus[at].To == p.To && bytes.Equal(whole.pdus[at].Header, p.Header)) {
				at++
			}
			if at == len(whole.pdus) {
				at = 0 // PDUs of the other direction may come earlier or later
				for at < len(whole.pdus) && !(whole.pdus[at].To == p.To && bytes.Equal(whole.pdus[at].Header, p.Header)) {
					at++
				}
				require.Less(t, at, len(whole.pdus), "a PDU that was not sent: %v", p.CommonHeader)
			}
		}
		require.LessOrEqual(t, len(r.pdus), len(c.sent))
		last := bytes.HasSuffix(c.sent[len(c.sent)-1].wire, data) // nothing is behind it, so nothing is missing
		if !last {
			require.NotEmpty(t, r.errs, "segment %d of %d", i, len(tr.packets))
		}
		if len(r.errs) == 1 && len(r.pdus) == len(c.sent) {
			errAt(t, r, 0, ErrGap)
			lostOne++
		}
	}
	require.Greater(t, lostOne, 20)
}

func TestGapInData(t *testing.T) {
	tr := &trace{t: t, segments: []int{1000}}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true}, 0)
	n := len(tr.packets)
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: 1, Flags: pdu.FlagLast}, pat(8192, 0)), c.resp(nvme.CQE{CID: 1}))
	tr.packets = append(tr.packets[:n+2:n+2], tr.packets[n+3:]...)
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Len(t, r.errs, 1)
	e := errAt(t, r, 0, ErrGap)
	require.ErrorContains(t, e, "1000 of the 8220 of a C2HData")
	require.Len(t, r.pdus, 4)
	p := r.pdus[2] // the damaged one
	require.Equal(t, pdu.TypeC2HData, p.Type)
	require.Nil(t, p.Data)
	var d pdu.Data
	require.NoError(t, d.Decode(p.Header))
	require.EqualValues(t, 8192, d.DATAL)
	require.Equal(t, pdu.TypeCapsuleResp, r.pdus[3].Type)
}

// TestSnapLen: with 64 bytes of each segment all headers can still be read.
func TestSnapLen(t *testing.T) {
	for _, dgst := range allDigests {
		tr := &trace{t: t, segments: []int{60000}}
		c := tr.dial(host4, ctrl4).handshake().ic(dgst, 0)
		for i := range 3 {
			c.send(pdu.Controller, c.cmd(nvme.SQE{CID: uint16(i), Opcode: 2}, nil))
			c.send(pdu.Host, c.data(pdu.Host, pdu.Data{CCCID: uint16(i)}, pat(4096, i)))
			c.send(pdu.Host, c.resp(nvme.CQE{CID: uint16(i)}))
		}
		for i := range tr.packets {
			tr.packets[i].snap = 20 + 76
		}
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.pdus, len(c.sent)-2) // ICReq and ICResp are longer, but what counts is in front
		for i, p := range r.pdus {
			require.Equal(t, c.sent[2+i].wire[:p.HLEN], p.Header)
			require.False(t, p.BadHeader)
		}
		require.Len(t, r.errs, 2+3) // ICReq, ICResp and the data
		for i := range r.errs {
			errAt(t, r, i, ErrGap)
		}
	}
}

// TestSnapLenTooShort: an ICResp that does not tell of the digests leaves nothing to go by.
func TestSnapLenTooShort(t *testing.T) {
	for n := range 14 {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true}, 0)
		c.send(pdu.Controller, c.cmd(nvme.SQE{CID: 1}, nil))
		c.send(pdu.Host, c.resp(nvme.CQE{CID: 1}), c.resp(nvme.CQE{CID: 2}))
		tr.packets[4].snap = 20 + n
		r := read(Config{}, tr.pcap("Ethernet"))
		errAt(t, r, 0, ErrGap)
		if n < 12 {
			require.Len(t, r.errs, 2) // and the host's capsule waits for ICResp
			errAt(t, r, 1, ErrNoStart)
			require.Len(t, r.pdus, 1)
		} else {
			require.Len(t, r.errs, 1)
			require.Len(t, r.pdus, 4)
		}
	}
}

// TestLostOnce: a direction that is lost is not lost again.
func TestLostOnce(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	for i := range 6 {
		if c.stream(pdu.Host, c.resp(nvme.CQE{})); i%2 == 0 {
			tr.packets = tr.packets[:len(tr.packets)-1]
		}
	}
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Len(t, r.errs, 1)
	errAt(t, r, 0, ErrGap)
}

func TestBadDigests(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 0)
	good := c.data(pdu.Host, pdu.Data{CCCID: 1}, pat(64, 0))
	badData, badHeader := bytes.Clone(good), bytes.Clone(good)
	badData[40] ^= 1
	badHeader[12] ^= 1
	c.send(pdu.Host, good, badData, badHeader, good)
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Empty(t, r.errs)
	var got [][2]bool
	for _, p := range r.pdus[2:] {
		got = append(got, [2]bool{p.BadHeader, p.BadData})
	}
	require.Equal(t, [][2]bool{{false, false}, {false, true}, {true, false}, {false, false}}, got)
}

// TestDigestsAgreed: a digest is used when the host wants it and the controller enables it.
func TestDigestsAgreed(t *testing.T) {
	for _, want := range allDigests {
		for _, enable := range allDigests {
			tr := &trace{t: t}
			c := tr.dial(host4, ctrl4).handshake()
			both := pdu.Digests{Header: want.Header && enable.Header, Data: want.Data && enable.Data}
			c.layouts = [2]pdu.Layout{{Digests: both}, {Digests: both}}
			c.send(pdu.Controller, (&pdu.ICReq{DGST: want}).Append(nil))
			c.send(pdu.Host, (&pdu.ICResp{DGST: enable, MAXH2CDATA: 4096}).Append(nil))
			c.traffic(1)
			requireAll(t, read(Config{}, tr.pcap("Ethernet")), c)
		}
	}
}

func TestGarbage(t *testing.T) {
	for _, to := range []pdu.Role{pdu.Host, pdu.Controller} {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
		c.stream(to, bytes.Repeat([]byte{8}, 100))
		c.stream(to, bytes.Repeat([]byte{9}, 100)) // no second report
		c.send(1-to, map[pdu.Role][]byte{pdu.Host: c.resp(nvme.CQE{}), pdu.Controller: c.cmd(nvme.SQE{}, nil)}[1-to])
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.pdus, 3, "the other direction goes on")
		require.Len(t, r.errs, 1)
		var e *pdu.Error
		require.ErrorAs(t, r.errs[0], &e)
		require.Equal(t, pdu.FESInvalidHeaderField, e.FES)
		require.Equal(t, pdu.Type(8), e.Type)
	}
	t.Run("from the start", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, "192.0.2.9:8009").handshake()
		c.stream(pdu.Controller, []byte("GET / HTTP/1.1\r\n\r\n"))
		c.stream(pdu.Host, []byte("HTTP/1.1 200 OK\r\n\r\n"))
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		var e *pdu.Error
		require.ErrorAs(t, r.errs[0], &e)
		require.Empty(t, r.pdus)
	})
	t.Run("no ICReq", func(t *testing.T) { // the stream's first byte is known
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake()
		c.send(pdu.Host, (&pdu.ICResp{MAXH2CDATA: 4096}).Append(nil))
		c.stream(pdu.Controller, c.cmd(nvme.SQE{}, nil))
		r := read(Config{}, tr.pcap("Ethernet"))
		requirePDUs(t, r, c)
		require.Len(t, r.errs, 1)
		var e *pdu.Error
		require.ErrorAs(t, r.errs[0], &e)
		require.Equal(t, pdu.FESSequenceError, e.FES)
	})
	t.Run("wrong fields", func(t *testing.T) { // framing is not lost
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
		c.send(pdu.Host, c.r2t(pdu.R2T{}), c.resp(nvme.CQE{}))
		r := read(Config{}, tr.pcap("Ethernet"))
		requirePDUs(t, r, c)
		require.Len(t, r.errs, 1)
		require.ErrorContains(t, r.errs[0], "R2TL is 0")
	})
}

func TestTooLong(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Data: true}, 0)
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{}, pat(8192, 0)), c.resp(nvme.CQE{CID: 7}))
	r := read(Config{MaxBuffer: 4096}, tr.pcap("Ethernet"))
	require.Len(t, r.errs, 1)
	errAt(t, r, 0, ErrTooLong)
	require.Len(t, r.pdus, 3)
	require.EqualValues(t, 7, r.pdus[2].CQE.CID)

	t.Run("waiting for ICResp", func(t *testing.T) {
		tr := &trace{t: t}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
		for range 20 {
			c.send(pdu.Controller, c.cmd(nvme.SQE{}, pat(512, 0)))
		}
		tr.packets = append(tr.packets[:4:4], tr.packets[5:]...)
		r := read(Config{MaxBuffer: 4096}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrTooLong)
	})
	t.Run("waiting for a segment", func(t *testing.T) { // it is given up, not the memory
		tr := &trace{t: t, segments: []int{1000}}
		c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
		n := len(tr.packets)
		for range 20 {
			c.send(pdu.Host, c.data(pdu.Host, pdu.Data{}, pat(976, 0)))
		}
		tr.packets = append(tr.packets[:n:n], tr.packets[n+1:]...)
		r := read(Config{MaxBuffer: 4096}, tr.pcap("Ethernet"))
		e := errAt(t, r, 0, ErrGap)
		require.Equal(t, n+5, e.Frame)
	})
}

// TestTooManyAhead: tiny segments cost more than their bytes.
func TestTooManyAhead(t *testing.T) {
	tr := &trace{t: t, segments: []int{1000}}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	tr.segments = []int{1}
	c.stream(pdu.Host, make([]byte, maxAhead+100))
	tr.packets = slices.Delete(tr.packets, 5, 6)
	r := read(Config{}, tr.pcap("Ethernet"))
	e := errAt(t, r, 0, ErrGap)
	require.Equal(t, 5+maxAhead+1, e.Frame)
}

// TestCutAnywhere ends a capture at every byte of a PDU with digests.
func TestCutAnywhere(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true, Data: true}, 7)
	b := c.data(pdu.Host, pdu.Data{CCCID: 7}, pat(16, 0))
	for n := 1; n < len(b); n++ {
		packets := len(tr.packets)
		c.stream(pdu.Host, b[:n])
		r := read(Config{}, tr.pcap("Ethernet"))
		require.Len(t, r.errs, 1)
		errAt(t, r, 0, ErrCut)
		require.Equal(t, n >= 24, len(r.pdus) == 3)
		tr.packets = tr.packets[:packets]
		c.seq[pdu.Host] -= uint32(n)
	}
}

func TestCut(t *testing.T) {
	tr := &trace{t: t, segments: []int{100}}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	c.send(pdu.Host, c.resp(nvme.CQE{}))
	c.send(pdu.Host, c.data(pdu.Host, pdu.Data{}, pat(200, 0)))
	tr.packets = tr.packets[:len(tr.packets)-1]
	r := read(Config{}, tr.pcap("Ethernet"))
	require.Len(t, r.errs, 1)
	e := errAt(t, r, 0, ErrCut)
	require.Equal(t, len(tr.packets), e.Frame)
	require.ErrorContains(t, e, "200 of the 224 bytes of a C2HData")
	require.Len(t, r.pdus, 4) // the last without its data
	require.Nil(t, r.pdus[3].Data)
}

// TestManyConnections: memory does not grow with the number of connections.
func TestManyConnections(t *testing.T) {
	d := decoder{Config: Config{Ports: []uint16{4420}, MaxBuffer: 1 << 20}, conns: map[tuple]*conn{}, yield: func(PDU, error) bool { return true }}
	tr := &trace{t: t}
	for i := range maxConns * 3 / 2 {
		d.frame++
		c := tr.dial(fmt.Sprintf("10.%d.%d.1:1000", i>>8, i&0xff), ctrl4)
		d.segment(segment{src: c.host, dst: c.ctrl, syn: true})
		require.LessOrEqual(t, len(d.conns), maxConns)
		require.NotNil(t, d.conns[tupleOf(c.host, c.ctrl)])
	}
	for i := range maxConns / 2 { // the newest were kept
		i = maxConns*3/2 - 1 - i
		c := tr.dial(fmt.Sprintf("10.%d.%d.1:1000", i>>8, i&0xff), ctrl4)
		require.NotNil(t, d.conns[tupleOf(c.host, c.ctrl)])
	}
}

func TestStop(t *testing.T) {
	tr, _ := several(t, 0, 200)
	n := 0
	for range Read(bytes.NewReader(tr.pcap("Ethernet"))) {
		n++
		if n == 5 {
			break // Read must not call again: that would panic
		}
	}
	require.Equal(t, 5, n)
}

// TestDamagedFile cuts a capture off at every place.
func TestDamagedFile(t *testing.T) {
	tr := &trace{t: t}
	tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	file := tr.pcap("Ethernet")
	proper := map[int]bool{24: true}
	for at := 24; at < len(file); {
		at += 16 + int(file[at+8])
		proper[at] = true
	}
	for n := range len(file) {
		r := read(Config{}, file[:n])
		if proper[n] {
			require.Empty(t, r.errs)
			continue
		}
		require.Len(t, r.errs, 1, "%d bytes", n)
		require.True(t, errors.Is(r.errs[0], io.ErrUnexpectedEOF) || n == 0 && errors.Is(r.errs[0], io.EOF), "%v", r.errs[0])
	}
	for _, bad := range [][]byte{[]byte("no capture at all, but longer"), {0x1f, 0x8b, 8, 0}} {
		r := read(Config{}, bad)
		require.Len(t, r.errs, 1)
		require.ErrorContains(t, r.errs[0], "no pcap or pcapng")
	}
	usb := bytes.Clone(file)
	usb[20] = 189
	r := read(Config{}, usb)
	require.ErrorContains(t, r.errs[0], "link type 189 is not supported")
}
