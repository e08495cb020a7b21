package queue_test

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

var digestSettings = []pdu.Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}}

// Reads of many sizes, answered in pieces of any size, with the PDUs of several commands interleaved and
// the stream cut anywhere, come out right and touch nothing else.
func TestReadPieces(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, dg := range digestSettings {
			for _, hpda := range []uint8{0, 2, 31} {
				t.Run(fmt.Sprintf("%v hpda %d", dg, hpda), func(t *testing.T) { readPieces(t, d, dg, hpda) })
			}
		}
	})
}

func readPieces(t *testing.T, d queue.Driver, dg pdu.Digests, hpda uint8) {
	rnd := rand.New(rand.NewPCG(1, uint64(hpda)))
	q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Digests: dg, HPDA: hpda}})
	type one struct {
		*pending
		want []byte
		bufs []*guarded
		cid  uint16
		off  int
	}
	var cmds []*one
	for i, n := range []int{512, 4096, 65536, 66048, 200 * 512, 1 << 20} {
		o := &one{want: pattern(n, i)}
		var data [][]byte
		for left := n; left > 0; {
			k := min(left, 1+rnd.IntN(n))
			g := newGuarded(t, k)
			o.bufs = append(o.bufs, g)
			data = append(data, g.buf, nil, nil) // empty buffers in between are fine
			left -= k
		}
		o.pending = submit(t, q, read(n), data...)
		sqe, in := c.command()
		require.Empty(t, in)
		require.Equal(t, nvme.SGL{Length: uint32(n), ID: nvme.SGLTransport}, sqe.SGL)
		require.EqualValues(t, nvme.FlagSGL, sqe.Flags)
		o.cid = sqe.CID
		cmds = append(cmds, o)
	}
	var stream []byte
	for open := len(cmds); open > 0; {
		o := cmds[rnd.IntN(len(cmds))]
		left := len(o.want) - o.off
		if left == 0 {
			continue
		}
		k := min(left, 4*(1+rnd.IntN(1+len(o.want)/4)))
		var f pdu.Flags
		success := rnd.IntN(2) == 0
		if k == left {
			f = pdu.FlagLast
			if success {
				f |= pdu.FlagSuccess
			}
			open--
		}
		stream = append(stream, c.data(o.cid, o.off, f, o.want[o.off:o.off+k])...)
		if k == left && !success {
			stream = append(stream, c.response(nvme.CQE{CID: o.cid, SQHD: 7})...)
		}
		o.off += k
	}
	streamed := len(stream)
	for len(stream) > 0 {
		k := min(len(stream), 1+rnd.IntN(1<<uint(rnd.IntN(20))))
		c.send(stream[:k])
		stream = stream[k:]
		if rnd.IntN(8) == 0 {
			time.Sleep(100 * time.Microsecond)
		}
	}
	total := uint64(0)
	for _, o := range cmds {
		require.NoError(t, o.wait())
		total += uint64(len(o.want))
		var got []byte
		for _, g := range o.bufs {
			g.intact()
			got = append(got, g.buf...)
		}
		require.True(t, bytes.Equal(o.want, got), "wrong bytes")
		require.Positive(t, o.cmd.Latency())
	}
	q.Close()
	s := q.Stats()
	require.Equal(t, total, s.Placed+s.Copied)
	require.EqualValues(t, streamed, s.BytesIn)
	require.EqualValues(t, len(cmds), s.Commands)
	require.Positive(t, s.Placed)
	require.Positive(t, s.Copied)
	require.Zero(t, s.DataErrors)
}

// Writes go in the capsule up to the limit, and beyond it as R2Ts ask, cut at MAXH2CDATA.
// F09: MAXH2CDATA is bytes. F11: data begins where CPDA wants it. F12: the limit for in-capsule data is the
// controller's.
func TestF09F11F12Writes(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, dg := range digestSettings {
			for _, cpda := range []uint8{0, 2, 7, 31} {
				t.Run(fmt.Sprintf("%v cpda %d", dg, cpda), func(t *testing.T) {
					q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Digests: dg, MaxInCapsule: 4096}, cpda: cpda, maxH2CData: 8192})
					want := pattern(4096, 1)
					p := submit(t, q, write(4096), want[:100], want[100:100], want[100:])
					sqe, in := c.command()
					require.Equal(t, nvme.SGL{Length: 4096, ID: nvme.SGLInCapsule}, sqe.SGL)
					require.Equal(t, want, in)
					c.send(c.response(nvme.CQE{CID: sqe.CID}))
					require.NoError(t, p.wait())

					const n = 100 * 512
					want = pattern(n, 2)
					p = submit(t, q, write(n), want[:5000], want[5000:])
					sqe, in = c.command()
					require.Equal(t, nvme.SGL{Length: n, ID: nvme.SGLTransport}, sqe.SGL)
					require.Empty(t, in)
					got := make([]byte, 0, n)
					for _, part := range []int{20480, 512, n - 20480 - 512} {
						ttag := uint16(0xFFFF - part)
						c.send(c.r2t(sqe.CID, ttag, len(got), part))
						for left := part; left > 0; {
							h, data := c.h2cData()
							require.Equal(t, min(left, 8192), len(data))
							left -= len(data)
							require.Equal(t, pdu.Data{
								Type: pdu.TypeH2CData, CCCID: sqe.CID, TTAG: ttag, DATAO: uint32(len(got)), DATAL: uint32(len(data)),
								Flags: h.Flags,
							}, h)
							require.Equal(t, left == 0, h.Flags.Has(pdu.FlagLast), "LAST_PDU ends each R2T")
							got = append(got, data...)
						}
					}
					require.True(t, p.open())
					c.send(c.response(nvme.CQE{CID: sqe.CID}))
					require.NoError(t, p.wait())
					require.True(t, bytes.Equal(want, got))
				})
			}
		}
	})
}

// A queue without in-capsule space (IOCCSZ 4), or with too little, asks for R2T even for 512 bytes; Connect still
// carries its data.
func TestF12NoInCapsuleData(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, space := range []int{0, 511} {
			q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, MaxInCapsule: space}})
			submit(t, q, write(512), make([]byte, 512))
			sqe, in := c.command()
			require.EqualValues(t, nvme.SGLTransport, sqe.SGL.ID)
			require.Empty(t, in)
			submit(t, q, nvme.SQE{Opcode: nvme.OpFabrics, NSID: 1}, make([]byte, 1024))
			sqe, in = c.command()
			require.EqualValues(t, nvme.SGLInCapsule, sqe.SGL.ID)
			require.Len(t, in, 1024)
		}
	})
}

// F12: on the admin queue there is always room for 8192 bytes.
func TestF12AdminData(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{})
		for n, id := range map[int]uint8{4096: nvme.SGLInCapsule, 8192: nvme.SGLInCapsule, 8196: nvme.SGLTransport} {
			submit(t, q, nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, 0, false), make([]byte, n))
			sqe, in := c.command()
			require.Equal(t, nvme.SGL{Length: uint32(n), ID: id}, sqe.SGL)
			require.True(t, id == nvme.SGLTransport || len(in) == n)
		}
	})
}

// F10: several R2Ts of one command at a time, where the host allows them, are answered in their order.
func TestF10SeveralR2Ts(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, MaxR2T: 3}})
		want := pattern(64<<10, 3)
		p := submit(t, q, write(len(want)), want)
		sqe, _ := c.command()
		const k = 16 << 10
		var all []byte
		for i := range 4 {
			all = append(all, c.r2t(sqe.CID, uint16(i), i*k, k)...)
		}
		c.send(all)
		for i := range 4 {
			h, data := c.h2cData()
			require.EqualValues(t, i, h.TTAG)
			require.True(t, bytes.Equal(want[i*k:(i+1)*k], data))
		}
		c.send(c.response(nvme.CQE{CID: sqe.CID}))
		require.NoError(t, p.wait())
	})
}

// F10, F11: by default the host says 0 (one R2T, no alignment), as Linux targets insist on.
func TestF10F11DefaultICReq(t *testing.T) {
	host, ctrl := tcpPair(t)
	go queue.New(context.Background(), host, queue.Config{})
	c := &controller{t: t, conn: ctrl, framing: pdu.Framing{Role: pdu.Controller}}
	var req pdu.ICReq
	require.NoError(t, req.Decode(c.next().Header))
	require.Equal(t, pdu.ICReq{}, req, "PFV 0, HPDA 0, no digests, MAXR2T 0")
	ctrl.Close()
}

// F05: a controller may fail a write before it has all the data. An R2T whose answer has begun is still
// answered to its end, and the buffer is the queue's until then: a caller who changed it earlier would make
// the digests wrong.
func TestF05EarlyWriteError(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Digests: pdu.Digests{Data: true}}, maxH2CData: 64 << 10})
		const n = 32 << 20 // more than socket buffers hold
		buf := pattern(n, 6)
		want := append([]byte(nil), buf...)
		p := submit(t, q, nvme.Write(1, 0, n/512-1), buf[:1001], buf[1001:])
		sqe, _ := c.command()
		c.send(c.r2t(sqe.CID, 9, 0, n))
		h, got := c.h2cData()
		require.Zero(t, h.DATAO)
		c.send(c.response(nvme.CQE{CID: sqe.CID, Status: nvme.StatusWriteFault.Status()}))
		time.Sleep(20 * time.Millisecond)
		require.True(t, p.open(), "the buffer is still being sent from")
		go func() {
			<-p.done
			clear(buf) // it is ours again
		}()
		for at := 0; at < n; {
			require.True(t, bytes.Equal(want[at:at+len(got)], got), "bytes that the caller never wrote, from %d on", at)
			if at += len(got); at < n {
				h, got = c.h2cData() // and the digest is right
				require.EqualValues(t, at, h.DATAO)
			}
		}
		require.ErrorIs(t, p.wait(), nvme.StatusWriteFault)
	})
}

// What the caller may say in the command's flags stays, the rest is the queue's.
func TestFlags(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{cfg: queue.Config{QID: 1}})
	p := submit(t, q, nvme.SQE{Opcode: nvme.OpCompare, Flags: 0xFD, CID: 0xFFFF, NSID: 1}, make([]byte, 512))
	sqe, _ := c.command()
	require.EqualValues(t, 0x41, sqe.Flags, "FUSE and PSDT")
	require.NotEqual(t, uint16(0xFFFF), sqe.CID)
	c.send(c.response(nvme.CQE{CID: sqe.CID, Status: nvme.StatusInternalError.Status()}))
	require.Error(t, p.wait())
}

// F34: any of the 15 status bits makes it a failure, SC 0 with another SCT included.
func TestF34StatusField(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1}})
		for bit := 1; bit < 16; bit++ {
			p := submit(t, q, nvme.Flush(1))
			sqe, _ := c.command()
			c.send(c.response(nvme.CQE{CID: sqe.CID, Status: nvme.Status(1 << bit)}))
			var st nvme.Status
			require.ErrorAs(t, p.wait(), &st)
			require.Equal(t, nvme.Status(1<<bit), st)
		}
		p := submit(t, q, nvme.Flush(1))
		sqe, _ := c.command()
		resp := c.response(nvme.CQE{CID: sqe.CID, DW0: 5, DW1: 6})
		resp[pdu.CommonHeaderLen+14] |= 1 // the phase tag means nothing
		c.send(resp)
		require.NoError(t, p.wait())
		require.Equal(t, uint64(6)<<32|5, p.cmd.CQE.Result())
	})
}

// F08: SUCCESS stands for the completion. No CapsuleResp is waited for, and the CQE reads as status 0.
func TestF08Success(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{})
		buf := make([]byte, 512)
		cmd := queue.Command{SQE: read(512), CQE: nvme.CQE{DW0: 99, Status: nvme.StatusInternalError.Status()}}
		cmd.SetData(buf)
		go func() {
			sqe, _ := c.command()
			c.send(c.data(sqe.CID, 0, pdu.FlagLast|pdu.FlagSuccess, pattern(512, 5)))
		}()
		require.NoError(t, q.Do(t.Context(), &cmd))
		require.Equal(t, pattern(512, 5), buf)
		require.Zero(t, cmd.CQE.DW0)
		require.True(t, cmd.CQE.Status.OK())
	})
}

// F04: a wrong data digest fails its command alone, whatever the controller says of its success; the
// queue goes on.
func TestF04DataDigest(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, n := range []int{512, 256 << 10} { // copied, and received in place
			for _, success := range []bool{true, false} {
				t.Run(fmt.Sprint(n, success), func(t *testing.T) {
					q, c := connect(t, d, opts{cfg: queue.Config{Digests: pdu.Digests{Data: true}}})
					for range 2 {
						bad := submit(t, q, read(n), make([]byte, n))
						sqe, _ := c.command()
						f := pdu.FlagLast
						if success {
							f |= pdu.FlagSuccess
						}
						b := c.data(sqe.CID, 0, f, pattern(n, 1))
						b[len(b)-1-n/2] ^= 4
						if !success {
							b = append(b, c.response(nvme.CQE{CID: sqe.CID})...)
						}
						c.send(b)
						require.ErrorIs(t, bad.wait(), queue.ErrDigest)

						good := submit(t, q, read(n), make([]byte, n))
						sqe, _ = c.command()
						c.send(c.data(sqe.CID, 0, pdu.FlagLast|pdu.FlagSuccess, pattern(n, 2)))
						require.NoError(t, good.wait())
						require.Equal(t, pattern(n, 2), good.cmd.Data[0])
					}
					failed := submit(t, q, read(n), make([]byte, n))
					sqe, _ := c.command()
					b := c.data(sqe.CID, 0, pdu.FlagLast, pattern(n, 1))
					b[len(b)-1] ^= 4
					c.send(append(b, c.response(nvme.CQE{CID: sqe.CID, Status: nvme.StatusInternalError.Status()})...))
					require.ErrorIs(t, failed.wait(), nvme.StatusInternalError, "what the controller found wrong comes first")
					require.NoError(t, q.Err())
					q.Close()
					require.EqualValues(t, 3, q.Stats().DataErrors)
					require.EqualValues(t, 3, q.Stats().Errors)
				})
			}
		}
	})
}

// F13: never more commands outstanding than the depth; the others wait for their turn.
func TestF13Depth(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Depth: 3}})
		for range 10 {
			submit(t, q, nvme.Flush(1))
		}
		cids := map[uint16]bool{}
		for i := range 10 {
			sqe, _ := c.command()
			require.False(t, cids[sqe.CID], "each command has a CID of its own")
			cids[sqe.CID] = true
			if i < 2 {
				continue
			}
			if i == 2 {
				c.conn.SetReadDeadline(time.Now().Add(50 * time.Millisecond))
				n, _ := c.conn.Read(make([]byte, 1))
				require.Zero(t, len(c.buf)+n, "a fourth command was sent")
				c.conn.SetReadDeadline(time.Now().Add(20 * time.Second))
			}
			c.send(c.response(nvme.CQE{CID: sqe.CID}))
		}
	})
}
