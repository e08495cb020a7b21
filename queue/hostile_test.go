package queue_test

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// What a hostile or broken controller may send while a read of 4096 bytes (rd), a write of 4096 bytes by
// R2T (wr), an in-capsule write of 512 bytes (ic) and a Flush (fl) are outstanding, and how it is to be
// answered. Nothing may be written outside the read's buffer, and every command fails with ErrPathLost.
var hostile = []struct {
	name string
	send func(c *controller, rd, wr, ic, fl uint16) []byte
	fes  pdu.FES
	fei  uint32
	dg   pdu.Digests
}{
	{name: "F07 unknown type", send: raw("0800180018" + zeros(19)), fes: 1, fei: 0},
	{name: "F07 type 0 in the stream", send: raw(zeros(32)), fes: 1, fei: 0},
	{name: "PDU of the host", send: raw("040048004800000000000000"), fes: 1, fei: 0},
	{name: "HLEN 16", send: raw("050010001800000000000000000000000100000001000000"), fes: 1, fei: 2},
	{name: "PLEN below HLEN", send: raw("050018001000000000000000000000000100000001000000"), fes: 1, fei: 4},
	{name: "PLEN of 4 GiB", send: raw("05001800ffffffff00000000"), fes: 1, fei: 4},
	{name: "second ICResp", send: raw("010080008000000000000000000002" + zeros(113)), fes: 2, fei: 0},
	{name: "F08 SUCCESS without LAST", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 0, pdu.FlagSuccess, make([]byte, 4096))
	}, fes: 1, fei: 1},
	{name: "F11 PDO inside the header", send: func(c *controller, rd, _, _, _ uint16) []byte {
		b := c.data(rd, 0, 0, make([]byte, 512))
		b[3] = 20
		return b
	}, fes: 1, fei: 3},
	{name: "F11 PDO 0 with data", send: func(c *controller, rd, _, _, _ uint16) []byte {
		b := c.data(rd, 0, 0, make([]byte, 512))
		b[3] = 0
		return b
	}, fes: 1, fei: 3},
	{name: "DATAL against PLEN", send: func(c *controller, rd, _, _, _ uint16) []byte {
		b := c.data(rd, 0, 0, make([]byte, 512))
		b[16] = 4
		return b
	}, fes: 1, fei: 4},
	{name: "F35 data for an unknown CID", send: func(c *controller, rd, wr, ic, fl uint16) []byte {
		return c.data(rd^wr^ic^fl^0x8000, 0, 0, make([]byte, 512))
	}, fes: 1, fei: 8},
	{name: "F35 completion of an unknown CID", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.response(nvme.CQE{CID: rd + 0x4000})
	}, fes: 1, fei: 8},
	{name: "F35 completion of a slot that is not there", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.response(nvme.CQE{CID: rd | 31}) // of 31
	}, fes: 1, fei: 8},
	{name: "F35 completion of an unknown CID, with header digest", dg: pdu.Digests{Header: true}, send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.response(nvme.CQE{CID: rd + 0x4000})
	}, fes: 1, fei: 8},
	{name: "F35 completion twice", send: func(c *controller, _, _, _, fl uint16) []byte {
		r := c.response(nvme.CQE{CID: fl})
		return append(r, r...)
	}, fes: 1, fei: 8},
	{name: "F35 completion after SUCCESS", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return append(c.data(rd, 0, pdu.FlagLast|pdu.FlagSuccess, make([]byte, 4096)), c.response(nvme.CQE{CID: rd})...)
	}, fes: 1, fei: 8},
	{name: "F35 R2T for an unknown CID", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.r2t(rd+0x4000, 1, 0, 512)
	}, fes: 1, fei: 8},
	{name: "F06 data past the end", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 0, 0, make([]byte, 4100))
	}, fes: 4},
	{name: "F06 offset past the end", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 4096, 0, make([]byte, 4))
	}, fes: 4},
	{name: "F06 offset near 2^32", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 0xFFFFFFFC, 0, make([]byte, 512))
	}, fes: 4},
	{name: "F06 a gap", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 512, 0, make([]byte, 512))
	}, fes: 1, fei: 12},
	{name: "F06 the same data twice", send: func(c *controller, rd, _, _, _ uint16) []byte {
		d := c.data(rd, 0, 0, make([]byte, 512))
		return append(d, d...)
	}, fes: 1, fei: 12},
	{name: "data after LAST", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return append(c.data(rd, 0, pdu.FlagLast, make([]byte, 512)), c.data(rd, 512, 0, make([]byte, 512))...)
	}, fes: 2},
	{name: "DATAL 0", send: func(c *controller, rd, _, _, _ uint16) []byte {
		b := c.data(rd, 0, 0, make([]byte, 4))
		b[16] = 0
		return b
	}, fes: 1, fei: 16},
	{name: "data for a write", send: func(c *controller, _, wr, _, _ uint16) []byte {
		return c.data(wr, 0, 0, make([]byte, 512))
	}, fes: 1, fei: 8},
	{name: "data for a command without", send: func(c *controller, _, _, _, fl uint16) []byte {
		return c.data(fl, 0, 0, make([]byte, 512))
	}, fes: 1, fei: 8},
	{name: "SUCCESS before all data", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.data(rd, 0, pdu.FlagLast|pdu.FlagSuccess, make([]byte, 512))
	}, fes: 1, fei: 1},
	{name: "success without data", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return c.response(nvme.CQE{CID: rd})
	}, fes: 2},
	{name: "success after a part", send: func(c *controller, rd, _, _, _ uint16) []byte {
		return append(c.data(rd, 0, pdu.FlagLast, make([]byte, 512)), c.response(nvme.CQE{CID: rd})...)
	}, fes: 2},
	{name: "success of a write without its data", send: func(c *controller, _, wr, _, _ uint16) []byte {
		return c.response(nvme.CQE{CID: wr})
	}, fes: 2},
	{name: "R2TL 0", send: func(c *controller, _, wr, _, _ uint16) []byte { return c.r2t(wr, 1, 0, 0) }, fes: 1, fei: 16},
	{name: "R2T past the end", send: func(c *controller, _, wr, _, _ uint16) []byte { return c.r2t(wr, 1, 0, 4100) }, fes: 4},
	{name: "R2T whose end wraps", send: func(c *controller, _, wr, _, _ uint16) []byte {
		return c.r2t(wr, 1, 0xFFFFFF00, 0x200)
	}, fes: 4},
	{name: "R2T with a gap", send: func(c *controller, _, wr, _, _ uint16) []byte { return c.r2t(wr, 1, 512, 512) }, fes: 1, fei: 12},
	{name: "R2T for a read", send: func(c *controller, rd, _, _, _ uint16) []byte { return c.r2t(rd, 1, 0, 512) }, fes: 1, fei: 8},
	{name: "R2T for in-capsule data", send: func(c *controller, _, _, ic, _ uint16) []byte { return c.r2t(ic, 1, 0, 512) }, fes: 1, fei: 8},
	{name: "R2T for a command without data", send: func(c *controller, _, _, _, fl uint16) []byte { return c.r2t(fl, 1, 0, 512) }, fes: 1, fei: 8},
	{name: "F04 header digest", dg: pdu.Digests{Header: true}, send: raw("050118001c00000001000000000000000100000001000000deadbeef"), fes: 3, fei: 0xefbeadde},
	{name: "header digest missing", dg: pdu.Digests{Header: true}, send: raw("050018001800000001000000000000000100000001000000"), fes: 1, fei: 1},
	{name: "data digest missing", dg: pdu.Digests{Data: true}, send: func(c *controller, rd, _, _, _ uint16) []byte {
		return (&pdu.Data{Type: pdu.TypeC2HData, CCCID: rd}).Append(nil, pdu.Layout{}, make([]byte, 512))
	}, fes: 1, fei: 1},
}

func zeros(n int) string { return strings.Repeat("00", n) }

func raw(s string) func(*controller, uint16, uint16, uint16, uint16) []byte {
	b, err := hex.DecodeString(s)
	if err != nil {
		panic(err)
	}
	return func(*controller, uint16, uint16, uint16, uint16) []byte { return b }
}

func TestF04F06F07F08F11F35HostilePDUs(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, h := range hostile {
			t.Run(h.name, func(t *testing.T) {
				q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, MaxInCapsule: 1024, Digests: h.dg}})
				g := newGuarded(t, 4096)
				var all []*pending
				next := func(p *pending) uint16 {
					all = append(all, p)
					sqe, _ := c.command()
					return sqe.CID
				}
				rd := next(submit(t, q, read(4096), g.buf))
				wr := next(submit(t, q, write(4096), make([]byte, 4096)))
				ic := next(submit(t, q, write(512), make([]byte, 512)))
				fl := next(submit(t, q, nvme.Flush(1)))
				b := h.send(c, rd, wr, ic, fl)
				c.send(b)
				term := c.termReq(h.fes, h.fei)
				require.NotEmpty(t, term.Header)
				whole := max(pdu.CommonHeaderLen, pdu.Type(term.Header[0]).HeaderLen())
				require.Len(t, term.Header, min(whole, len(b)), "all of the header, and nothing else")
				require.Contains(t, string(b), string(term.Header), "the complaint carries the offending header")
				answered := 0
				for _, p := range all {
					if err := p.wait(); err == nil {
						answered++
					} else {
						require.ErrorIs(t, err, queue.ErrPathLost)
						require.ErrorIs(t, err, queue.ErrProtocol)
						var pe *pdu.Error
						require.ErrorAs(t, err, &pe)
					}
				}
				require.LessOrEqual(t, answered, 1)
				g.intact()
				<-q.Done()
				require.ErrorIs(t, q.Err(), queue.ErrProtocol)
			})
		}
	})
}

// More R2Ts than the host allows to be open end the queue.
func TestR2TLimit(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, MaxR2T: 1}})
		const n = 32 << 20
		p := submit(t, q, nvme.Write(1, 0, n/512-1), make([]byte, n))
		sqe, _ := c.command()
		var b []byte
		for i := range 5 { // one more than twice the limit, which is the limit where bytes are reported late
			b = append(b, c.r2t(sqe.CID, uint16(i), i*(n/8), n/8)...)
		}
		c.send(b)
		for {
			p := c.next()
			if p.Type == pdu.TypeH2CData {
				continue
			}
			var term pdu.TermReq
			require.NoError(t, term.Decode(append(append([]byte(nil), p.Header...), p.Data...)))
			require.Equal(t, pdu.FESLimitExceeded, term.FES)
			break
		}
		c.conn.Close()
		require.ErrorIs(t, p.wait(), queue.ErrProtocol)
	})
}

// F38: C2HTermReq is read, understood and passed on, and never answered. FEI is at the unaligned offset 10.
func TestF38C2HTermReq(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{})
		p := submit(t, q, nvme.Flush(1))
		c.command()
		b, err := hex.DecodeString("030018003000000001000a" + zeros(13) + "06041818280000001100a500000000001000000000000000")
		require.NoError(t, err)
		c.send(b)
		c.closed()
		var term *queue.TermError
		require.ErrorAs(t, p.wait(), &term)
		require.ErrorIs(t, p.cmd.Err, queue.ErrTerminated)
		require.ErrorIs(t, p.cmd.Err, queue.ErrPathLost)
		require.Equal(t, pdu.FESInvalidHeaderField, term.FES)
		require.EqualValues(t, 10, term.FEI)
		require.Contains(t, p.cmd.Err.Error(), "Invalid PDU Header Field at offset 10 of a H2CData")
		require.NotNil(t, q.Err())
	})
}

// A malformed TermReq is never answered either.
func TestMalformedTermReq(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{})
		b, err := hex.DecodeString("0300180099000000" + zeros(16))
		require.NoError(t, err)
		c.send(b)
		c.closed()
		<-q.Done()
		require.ErrorIs(t, q.Err(), queue.ErrProtocol)
	})
}

// The connection may be lost anywhere; it is told what was interrupted.
func TestConnectionLost(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, how := range []string{"FIN", "RST", "FIN in a header", "FIN in data"} {
			t.Run(how, func(t *testing.T) {
				q, c := connect(t, d, opts{})
				p := submit(t, q, read(128<<10), make([]byte, 128<<10))
				sqe, _ := c.command()
				b := c.data(sqe.CID, 0, 0, make([]byte, 100<<10))
				switch how {
				case "RST":
					c.conn.SetLinger(0)
				case "FIN in a header":
					c.send(b[:5])
				case "FIN in data":
					c.send(b[:80<<10])
				}
				c.conn.Close()
				err := p.wait()
				require.ErrorIs(t, err, queue.ErrPathLost)
				require.NotErrorIs(t, err, queue.ErrClosed)
				require.NotErrorIs(t, err, io.EOF, "an io.Reader's user would take it for the end of the data")
				require.Contains(t, err.Error(), c.conn.LocalAddr().String(), "the error says where")
				if how != "RST" {
					require.Contains(t, err.Error(), "closed by the controller during 1 outstanding command")
				}
				<-q.Done()
				again := submit(t, q, nvme.Flush(1))
				require.False(t, again.open(), "on a dead queue a command completes at once")
				require.Equal(t, q.Err(), again.cmd.Err)
			})
		}
	})
}

// F35, F37: the CID of a command is not used again for the next one in its slot.
func TestF35Generations(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{Depth: 1}})
		seen := map[uint16]bool{}
		for range 1000 {
			p := submit(t, q, nvme.Flush(1))
			sqe, _ := c.command()
			require.False(t, seen[sqe.CID])
			require.NotEqual(t, uint16(0xFFFF), sqe.CID)
			seen[sqe.CID] = true
			c.send(c.response(nvme.CQE{CID: sqe.CID}))
			require.NoError(t, p.wait())
		}
	})
}

// F37: a command that gets no answer ends the queue, and its buffer comes back only then.
func TestF37Timeout(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{CommandTimeout: 50 * time.Millisecond}})
		aer := &queue.Command{SQE: nvme.AsyncEventRequest(), NoTimeout: true, Done: func(*queue.Command) {}}
		q.Submit(aer)
		time.Sleep(100 * time.Millisecond)
		require.NoError(t, q.Err(), "an Async Event Request may wait for ever")
		start := time.Now()
		p := submit(t, q, read(512), make([]byte, 512))
		require.ErrorIs(t, p.wait(), queue.ErrTimeout)
		require.Greater(t, time.Since(start), 50*time.Millisecond)
		require.Less(t, time.Since(start), 2*time.Second)
		require.ErrorIs(t, p.cmd.Err, queue.ErrPathLost)
		<-q.Done()
		_ = c
	})
}

// F37: the buffer of a cancelled read is the caller's at once. Its data, when it comes after all, goes
// nowhere; the queue stays usable.
func TestF37CancelRead(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, begun := range []int{0, 1000, 100 << 10} { // bytes that are there before the cancel
			t.Run(fmt.Sprint(begun), func(t *testing.T) {
				q, c := connect(t, d, opts{cfg: queue.Config{Digests: pdu.Digests{Data: true}}})
				const n = 256 << 10
				buf := make([]byte, n)
				var cmd queue.Command
				cmd.SQE = read(n)
				cmd.SetData(buf)
				ctx, cancel := context.WithCancel(t.Context())
				ret := make(chan error)
				go func() { ret <- q.Do(ctx, &cmd) }()
				sqe, _ := c.command()
				b := c.data(sqe.CID, 0, pdu.FlagLast, pattern(n, 1))
				c.send(b[:24+begun])
				time.Sleep(20 * time.Millisecond)
				cancel()
				require.ErrorIs(t, <-ret, context.Canceled)
				for i := range buf {
					buf[i] = 0xEE // it is ours
				}
				c.send(b[24+begun:])
				c.send(c.response(nvme.CQE{CID: sqe.CID}))
				p := submit(t, q, read(512), make([]byte, 512))
				sqe2, _ := c.command()
				require.NotEqual(t, sqe.CID, sqe2.CID)
				c.send(c.data(sqe2.CID, 0, pdu.FlagLast|pdu.FlagSuccess, pattern(512, 2)))
				require.NoError(t, p.wait())
				require.Equal(t, pattern(512, 2), p.cmd.Data[0])
				for _, x := range buf {
					require.EqualValues(t, 0xEE, x, "a byte was written after the cancel")
				}
			})
		}
	})
}

// A cancelled write keeps its buffer while the controller may ask for it; when that takes too long, the
// queue ends.
func TestCancelWrite(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, answered := range []bool{true, false} {
			t.Run(fmt.Sprint(answered), func(t *testing.T) {
				if answered {
					queue.SetCancelGrace(t, 20*time.Second)
				}
				q, c := connect(t, d, opts{})
				cmd := queue.Command{SQE: write(64 << 10)}
				cmd.SetData(pattern(64<<10, 1))
				ctx, cancel := context.WithCancel(t.Context())
				ret := make(chan error)
				go func() { ret <- q.Do(ctx, &cmd) }()
				sqe, _ := c.command()
				cancel()
				if answered {
					select {
					case err := <-ret:
						t.Fatal("gave the buffer back although it may be asked for:", err)
					case <-time.After(50 * time.Millisecond):
					}
					c.send(c.r2t(sqe.CID, 1, 0, 64<<10))
					_, got := c.h2cData()
					require.Equal(t, pattern(64<<10, 1), got)
					require.ErrorIs(t, <-ret, context.Canceled)
					c.send(c.response(nvme.CQE{CID: sqe.CID}))
					p := submit(t, q, nvme.Flush(1))
					sqe, _ = c.command()
					c.send(c.response(nvme.CQE{CID: sqe.CID}))
					require.NoError(t, p.wait())
					return
				}
				require.ErrorIs(t, <-ret, queue.ErrTimeout)
				require.Error(t, q.Err())
			})
		}
	})
}

// ICResp as it must not be. F03: digests that differ from what was asked for are refused by name.
func TestF03F09ICResp(t *testing.T) {
	good := pdu.ICResp{MAXH2CDATA: 4096}
	patch := func(off int, v byte) []byte {
		b := good.Append(nil)
		b[off] = v
		return b
	}
	for _, tc := range []struct {
		name string
		b    []byte
		is   error
		fes  pdu.FES
		fei  uint32
		dg   pdu.Digests
	}{
		{name: "PFV 1", b: patch(8, 1), is: queue.ErrProtocol, fes: 1, fei: 8},
		{name: "CPDA 32", b: patch(10, 32), is: queue.ErrProtocol, fes: 1, fei: 10},
		{name: "F09 MAXH2CDATA 0", b: patch(13, 0), is: queue.ErrProtocol, fes: 1, fei: 12},
		{name: "F09 MAXH2CDATA 4098", b: patch(12, 2), is: queue.ErrProtocol, fes: 1, fei: 12},
		{name: "PLEN", b: patch(4, 129), is: queue.ErrProtocol, fes: 1, fei: 4},
		{name: "HLEN", b: patch(2, 127), is: queue.ErrProtocol, fes: 1, fei: 2},
		{name: "another PDU", b: make([]byte, 24), is: queue.ErrProtocol, fes: 1, fei: 0},
		{name: "a response first", b: append([]byte{5, 0, 24, 0, 24}, make([]byte, 19)...), is: queue.ErrProtocol, fes: 2},
		{name: "F03 digests not granted", b: good.Append(nil), dg: pdu.Digests{Header: true, Data: true}, is: queue.ErrDigestsRefused},
		{name: "F03 data digest not granted", b: patch(11, 1), dg: pdu.Digests{Header: true, Data: true}, is: queue.ErrDigestsRefused},
		{name: "F03 digests unasked", b: patch(11, 2), is: queue.ErrDigestsRefused},
		{name: "C2HTermReq", b: append([]byte{3, 0, 24, 0, 24, 0, 0, 0, 1, 0, 8}, make([]byte, 13)...), is: queue.ErrTerminated},
		{name: "closed", b: nil, is: io.ErrUnexpectedEOF},
		{name: "closed half-way", b: good.Append(nil)[:100], is: io.ErrUnexpectedEOF},
		{name: "HTTP", b: []byte("HTTP/1.1 400 Bad Request\r\n"), is: queue.ErrProtocol, fes: 1, fei: 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			host, ctrl := tcpPair(t)
			c := &controller{t: t, conn: ctrl, framing: pdu.Framing{Role: pdu.Controller}}
			ret := make(chan error, 1)
			go func() {
				_, err := queue.New(context.Background(), host, queue.Config{Digests: tc.dg})
				ret <- err
			}()
			c.next()
			c.send(tc.b)
			if tc.fes != 0 {
				p := c.next()
				var term pdu.TermReq
				require.NoError(t, term.Decode(append(append([]byte(nil), p.Header...), p.Data...)))
				require.Equal(t, tc.fes, term.FES)
				require.Equal(t, tc.fei, term.FEI)
			}
			ctrl.CloseWrite()
			err := <-ret
			require.ErrorIs(t, err, tc.is)
			require.ErrorIs(t, err, queue.ErrPathLost)
			require.NotErrorIs(t, err, io.EOF, "an io.Reader's user would take it for the end of the data")
			require.Contains(t, err.Error(), ctrl.LocalAddr().String())
			if tc.name == "HTTP" {
				require.ErrorContains(t, err, `does an NVMe/TCP controller listen there? It says "HTTP/1.1"`)
			}
			c.buf = nil
			c.closed()
		})
	}
}

// F17: no ICResp, no hang: the timeout and the context both end the wait.
func TestF17ICTimeout(t *testing.T) {
	host, _ := tcpPair(t)
	_, err := queue.New(t.Context(), host, queue.Config{ICTimeout: 30 * time.Millisecond})
	require.ErrorIs(t, err, queue.ErrTimeout)
	host, _ = tcpPair(t)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
	defer cancel()
	_, err = queue.New(ctx, host, queue.Config{})
	require.ErrorIs(t, err, context.DeadlineExceeded)
	_, err = host.Write([]byte{0})
	require.ErrorIs(t, err, net.ErrClosed, "the connection is closed")
	require.False(t, errors.Is(err, queue.ErrTimeout))
}

// The grace of a cancelled write is not prolonged by what is cancelled after it, or the same once more.
func TestCancelWriteAgain(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{})
	p := submit(t, q, write(64<<10), make([]byte, 64<<10))
	c.command()
	start := time.Now()
	for p.open() && time.Since(start) < 5*time.Second {
		q.Cancel(p.cmd)
		time.Sleep(50 * time.Millisecond)
	}
	require.False(t, p.open(), "the write waits for ever")
	require.ErrorIs(t, p.wait(), queue.ErrTimeout)
}

// A queue that ends because another one met a protocol error has nothing to complain of to its controller.
func TestFailElsewhere(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		bad, c := connect(t, d, opts{cfg: queue.Config{QID: 1}})
		c.send(c.response(nvme.CQE{CID: 99}))
		c.termReq(pdu.FESInvalidHeaderField, 8)
		<-bad.Done()
		require.ErrorIs(t, bad.Err(), queue.ErrProtocol)
		for qid := range uint16(3) { // its own number included: another controller's queues have the same
			q, c := connect(t, d, opts{cfg: queue.Config{QID: qid}})
			p := submit(t, q, nvme.Flush(1))
			c.command()
			q.Fail(bad.Err())
			require.ErrorIs(t, p.wait(), queue.ErrProtocol)
			c.closed()
			require.Contains(t, q.Err().Error(), c.conn.LocalAddr().String(), "the error says which queue it was")
			require.Contains(t, q.Err().Error(), bad.Info().RemoteAddr, "and where it came from")
		}
	})
}

// F38: the controller's last word is heard also by a host that was about to send to it, although that fails.
func TestF38LastWord(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		term := pdu.TermReq{Type: pdu.TypeC2HTermReq, FES: pdu.FESSequenceError}
		for _, tc := range []struct {
			word []byte
			is   error
		}{
			{term.Append(nil), queue.ErrTerminated},
			{nil, syscall.ECONNRESET},
		} {
			q, c := connect(t, d, opts{})
			in, out := make(chan struct{}), make(chan struct{})
			q.Submit(&queue.Command{SQE: nvme.Flush(1), Done: func(*queue.Command) { // keeps the queue from looking
				close(in)
				<-out
			}})
			sqe, _ := c.command()
			c.send(c.response(nvme.CQE{CID: sqe.CID}))
			<-in
			p := submit(t, q, nvme.Flush(1))
			if len(tc.word) > 0 {
				c.send(tc.word)
			}
			c.conn.SetLinger(0)
			c.conn.Close()
			time.Sleep(10 * time.Millisecond)
			close(out)
			require.ErrorIs(t, p.wait(), tc.is)
		}
	})
}

// What waits for a slot is given back at once when it is cancelled; the others keep their order.
func TestCancelPending(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{Depth: 1}})
		submit(t, q, nvme.Flush(1))
		sqe, _ := c.command()
		var all []*pending
		for nsid := range uint32(6) {
			all = append(all, submit(t, q, nvme.Flush(100+nsid)))
		}
		for _, i := range []int{0, 3, 5} {
			q.Cancel(all[i].cmd)
			require.ErrorIs(t, all[i].wait(), context.Canceled)
		}
		all = append(all, submit(t, q, nvme.Flush(106)))
		for _, i := range []int{1, 2, 4, 6} {
			c.send(c.response(nvme.CQE{CID: sqe.CID}))
			sqe, _ = c.command()
			require.EqualValues(t, 100+i, sqe.NSID)
		}
		c.send(c.response(nvme.CQE{CID: sqe.CID}))
		require.NoError(t, all[6].wait())
	})
}

// The slot of a cancelled read may wait for its answer for as long as any command may.
func TestCancelReadGrace(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{})
	p := submit(t, q, read(512), make([]byte, 512))
	sqe, _ := c.command()
	q.Cancel(p.cmd)
	require.ErrorIs(t, p.wait(), context.Canceled)
	time.Sleep(800 * time.Millisecond) // longer than a write has
	require.NoError(t, q.Err())
	c.send(c.response(nvme.CQE{CID: sqe.CID, Status: nvme.StatusAbortRequested.Status()}))
	p = submit(t, q, nvme.Flush(1))
	sqe, _ = c.command()
	c.send(c.response(nvme.CQE{CID: sqe.CID}))
	require.NoError(t, p.wait())
}

// After a breach nobody waits until the controller has taken the H2CTermReq.
func TestBreachFailsAtOnce(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{Linger: 10 * time.Second}})
		p := submit(t, q, read(512), make([]byte, 512))
		c.command()
		c.send(make([]byte, 24))
		require.Equal(t, pdu.TypeH2CTermReq, c.next().Type)
		start := time.Now()
		require.ErrorIs(t, p.wait(), queue.ErrProtocol)
		require.Less(t, time.Since(start), 5*time.Second)
		c.conn.Close()
	})
}
