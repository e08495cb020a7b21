package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

type atomicCounter struct{ n atomic.Int64 }

func (c *atomicCounter) next() int { return int(c.n.Add(1)) }

// TestRandomIO compares reads and writes of all kinds with a copy in memory.
func TestRandomIO(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		for i, o := range []Options{
			{NumIOQueues: 1},
			{NumIOQueues: 3, HeaderDigest: true, DisableSQFlow: true},
			{NumIOQueues: 2, HeaderDigest: true, DataDigest: true, MaxIO: 24 << 10},
		} {
			block := 512 << (3 * (i % 2))
			t.Run(fmt.Sprintf("%d queues %d bytes", o.NumIOQueues, block), func(t *testing.T) {
				o.Driver = d
				randomIO(t, start(t, disk(mode, block, content(2<<20))), &o, block)
			})
		}
	})
}

func randomIO(t *testing.T, tgt *nvmetest.Target, o *Options, block int) {
	model := content(2 << 20)
	ns := open(t, tgt, o)
	require.EqualValues(t, len(model), ns.Size())
	require.Equal(t, block, ns.BlockSize())
	r := rand.New(rand.NewPCG(2, uint64(block)))
	for range 60 {
		off := r.IntN(len(model))
		n := r.IntN(1 << r.IntN(19))
		n = min(n, len(model)-off)
		switch r.IntN(4) {
		case 0, 1:
			g := newGuarded(n)
			got, err := ns.ReadAt(g.b, int64(off))
			require.NoError(t, err)
			require.Equal(t, n, got)
			require.True(t, bytes.Equal(model[off:off+n], g.b), "read of %d at %d", n, off)
			g.check(t)
		case 2:
			var bufs [][]byte
			var gs []*guarded
			for left := n; left > 0; {
				g := newGuarded(min(left, r.IntN(n+1)))
				left -= len(g.b)
				gs, bufs = append(gs, g), append(bufs, g.b)
			}
			got, err := ns.ReadVAt(t.Context(), bufs, int64(off))
			require.NoError(t, err)
			require.EqualValues(t, n, got)
			require.True(t, bytes.Equal(model[off:off+n], bytes.Join(bufs, nil)), "read of %d at %d into %d buffers", n, off, len(bufs))
			for _, g := range gs {
				g.check(t)
			}
		case 3:
			off, n = off/block*block, n/block*block
			for i := off; i < off+n; i++ {
				model[i] = byte(r.Uint32())
			}
			got, err := ns.WriteAt(model[off:off+n], int64(off))
			require.NoError(t, err)
			require.Equal(t, n, got)
		}
	}
	require.NoError(t, ns.Flush(t.Context()))
	all := make([]byte, len(model))
	_, err := ns.ReadAt(all, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(model, all))
}

func TestReadAtIsAnIOReaderAt(t *testing.T) {
	data := content(64 << 10)
	ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), nil)
	size := int64(len(data))
	b := make([]byte, 1000)

	n, err := ns.ReadAt(b, size-300)
	require.Equal(t, io.EOF, err)
	require.Equal(t, 300, n)
	require.Equal(t, data[size-300:], b[:300])
	n, err = ns.ReadAt(b, size-1000)
	require.NoError(t, err)
	require.Equal(t, 1000, n)
	for _, off := range []int64{size, size + 1, 1 << 62} {
		n, err = ns.ReadAt(b, off)
		require.Equal(t, io.EOF, err)
		require.Zero(t, n)
	}
	n, err = ns.ReadAt(nil, 7)
	require.NoError(t, err)
	require.Zero(t, n)
	_, err = ns.ReadAt(b, -1)
	require.ErrorIs(t, err, ErrRange)
	got, err := io.ReadAll(io.NewSectionReader(ns, 0, size))
	require.NoError(t, err)
	require.Equal(t, data, got)
	m, err := ns.ReadVAt(t.Context(), [][]byte{b[:500], nil, b[500:]}, size-600)
	require.Equal(t, io.EOF, err)
	require.EqualValues(t, 600, m)
	require.Equal(t, data[size-600:], b[:600])
}

func TestF32WriteAtRefusesPartOfABlock(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 4096, make([]byte, 64<<10)))
	ns := open(t, tgt, nil)
	for _, c := range []struct {
		off int64
		n   int
		err error
	}{
		{1, 4096, ErrUnaligned},
		{512, 4096, ErrUnaligned},
		{0, 4095, ErrUnaligned},
		{0, 512, ErrUnaligned},
		{60 << 10, 8192, ErrRange},
		{64 << 10, 4096, ErrRange},
		{-4096, 4096, ErrRange},
		{1 << 62, 4096, ErrRange},
	} {
		n, err := ns.WriteAt(make([]byte, c.n), c.off)
		require.ErrorIs(t, err, c.err)
		require.Zero(t, n)
	}
	n, err := ns.WriteAt(nil, 4096)
	require.NoError(t, err)
	require.Zero(t, n)
	require.Zero(t, tgt.Stats().IO[nvme.OpWrite], "nothing is written of a range that is not right")
}

func TestReadBatch(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(4 << 20)
		ns := open(t, start(t, disk(mode, 512, data)), &Options{Driver: d, NumIOQueues: 2})
		var (
			reads  []*Read
			guards []*guarded
			r      = rand.New(rand.NewPCG(3, 3))
		)
		for range 700 { // more than are outstanding at once
			n := r.IntN(20000)
			g := newGuarded(n)
			guards = append(guards, g)
			reads = append(reads, &Read{Off: r.Int64N(int64(len(data) - n)), Buf: g.b})
		}
		large := newGuarded(3 << 20)
		guards, reads = append(guards, large), append(reads, &Read{Off: 12345, Buf: large.b})
		require.NoError(t, ns.ReadBatch(t.Context(), reads))
		for i, rd := range reads {
			require.NoError(t, rd.Err)
			require.True(t, bytes.Equal(data[rd.Off:][:len(rd.Buf)], rd.Buf), "read %d", i)
			require.True(t, rd.Latency > 0 || len(rd.Buf) == 0)
			guards[i].check(t)
		}

		reads = []*Read{{Off: 0, Buf: make([]byte, 10)}, {Off: int64(len(data)) - 5, Buf: make([]byte, 10)}, {Off: 100, Buf: make([]byte, 10)}}
		require.ErrorIs(t, ns.ReadBatch(t.Context(), reads), ErrRange)
		require.NoError(t, reads[0].Err)
		require.ErrorIs(t, reads[1].Err, ErrRange)
		require.NoError(t, reads[2].Err)
		require.Equal(t, data[100:110], reads[2].Buf)
	})
}

// TestParallelReads has more callers than there are slots.
func TestParallelReads(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(1 << 20)
		ns := open(t, start(t, disk(mode, 512, data)), &Options{Driver: d, NumIOQueues: 2, QueueSize: 8})
		var wg sync.WaitGroup
		for i := range 40 {
			wg.Go(func() {
				r := rand.New(rand.NewPCG(4, uint64(i)))
				for range 10 {
					b := make([]byte, 1+r.IntN(100<<10))
					off := r.Int64N(int64(len(data) - len(b)))
					n, err := ns.ReadAt(b, off)
					if err != nil || n != len(b) || !bytes.Equal(b, data[off:][:len(b)]) {
						t.Errorf("read of %d at %d: %d, %v", len(b), off, n, err)
						return
					}
				}
			})
		}
		wg.Wait()
	})
}

func TestF01InternalErrorOfLargeReads(t *testing.T) {
	data := content(2 << 20)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
	sub := dial(t, tgt, &Options{NumIOQueues: 2})
	ns, err := sub.Namespace(t.Context(), 1)
	require.NoError(t, err)
	require.LessOrEqual(t, ns.MaxIO(), 1<<20, "the limit of our own")

	noMemory := nvme.StatusInternalError.Status()
	tgt.SetFaults(onReads(func(c nvmetest.Command, _ int) nvme.Status {
		if c.SQE.Blocks()*512 > 128<<10 {
			return noMemory
		}
		return 0
	}))
	for _, n := range []int{len(data), 1 << 20, 300001, 200 << 10} {
		g := newGuarded(n)
		got, err := ns.ReadAt(g.b, int64(len(data)-n))
		require.NoError(t, err)
		require.Equal(t, n, got)
		require.True(t, bytes.Equal(data[len(data)-n:], g.b))
		g.check(t)
	}
	require.NotZero(t, sub.Stats().Retries)
	feed := newListFeed(ns, data, 50, 1<<20)
	require.NoError(t, ns.Feed(t.Context(), feed))
	feed.check(t)

	// A controller that never has memory gets a bounded number of tries.
	tgt.SetFaults(onReads(func(nvmetest.Command, int) nvme.Status { return noMemory }))
	before := tgt.Stats().IO[nvme.OpRead]
	_, err = ns.ReadAt(make([]byte, 1<<20), 0)
	require.ErrorIs(t, err, nvme.StatusInternalError)
	require.True(t, Retryable(err))
	require.EqualValues(t, 5, tgt.Stats().IO[nvme.OpRead]-before, "1 MiB, 512, 256, 128 and 64 KiB")

	// With DNR the controller gets none.
	tgt.SetFaults(onReads(func(nvmetest.Command, int) nvme.Status { return noMemory.WithDNR() }))
	before = tgt.Stats().IO[nvme.OpRead]
	_, err = ns.ReadAt(make([]byte, 1<<20), 0)
	require.ErrorIs(t, err, nvme.StatusInternalError)
	require.False(t, Retryable(err))
	require.EqualValues(t, 1, tgt.Stats().IO[nvme.OpRead]-before)
}

func TestF02LargeReadsAreSplit(t *testing.T) {
	data := content(12 << 20)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
	ns := open(t, tgt, nil)
	b := make([]byte, len(data))
	_, err := ns.ReadAt(b, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(data, b))

	ns = open(t, tgt, &Options{MaxIO: 8 << 20})
	before := tgt.Stats().IO[nvme.OpRead]
	n, err := ns.ReadAt(b, 0)
	require.ErrorIs(t, err, nvme.StatusDataSGLLengthInvalid)
	require.ErrorContains(t, err, "lower MaxIO")
	require.False(t, Retryable(err))
	require.Zero(t, n)
	require.EqualValues(t, 2, tgt.Stats().IO[nvme.OpRead]-before, "DNR is not tried again")
}

func TestF04DataDigestErrorIsRetried(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			data := content(1 << 20)
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
			sub := dial(t, tgt, &Options{Driver: d, DataDigest: true, NumIOQueues: 1, MaxIO: 64 << 10})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)

			bad := nvmetest.Action{CorruptDataDigest: true}
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead}, Nth: 2, Count: 3, Do: bad}}})
			b := make([]byte, len(data))
			_, err = ns.ReadAt(b, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, b))
			require.EqualValues(t, 3, sub.Stats().Retries)

			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead}, Do: bad}}})
			before := tgt.Stats().IO[nvme.OpRead]
			n, err := ns.ReadAt(b[:100], 0)
			require.ErrorIs(t, err, ErrDigest)
			require.True(t, Retryable(err))
			require.Zero(t, n)
			require.EqualValues(t, 1+maxTries, tgt.Stats().IO[nvme.OpRead]-before, "bounded")

			tgt.SetFaults(nvmetest.Faults{})
			_, err = ns.ReadAt(b[:100], 0)
			require.NoError(t, err, "the connection goes on")
		})
	}
}

func TestTransientStatusOfReads(t *testing.T) {
	data := content(64 << 10)
	tgt := start(t, disk(nvmetest.ModeSPDK, 512, data))
	ns := open(t, tgt, &Options{NumIOQueues: 1})
	for _, code := range []nvme.Code{nvme.StatusTransientTransportError, nvme.StatusCommandInterrupted, nvme.StatusDataTransferError} {
		tgt.SetFaults(onReads(func(_ nvmetest.Command, nth int) nvme.Status {
			if nth == 1 {
				return code.Status()
			}
			return 0
		}))
		b := make([]byte, 1000)
		_, err := ns.ReadAt(b, 10)
		require.NoError(t, err)
		require.Equal(t, data[10:1010], b)

		tgt.SetFaults(onReads(func(nvmetest.Command, int) nvme.Status { return code.Status().WithDNR() }))
		before := tgt.Stats().IO[nvme.OpRead]
		_, err = ns.ReadAt(b, 10)
		require.ErrorIs(t, err, code)
		require.EqualValues(t, 1, tgt.Stats().IO[nvme.OpRead]-before)
	}
}

func TestCountIsThatOfTheBytesBeforeTheFirstError(t *testing.T) {
	data := content(1 << 20)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
	ns := open(t, tgt, &Options{NumIOQueues: 2, MaxIO: 64 << 10})
	tgt.SetFaults(onReads(func(c nvmetest.Command, _ int) nvme.Status {
		if c.SQE.SLBA() == 5*128 || c.SQE.SLBA() == 9*128 {
			return nvme.StatusUnrecoveredReadError.Status().WithDNR()
		}
		return 0
	}))
	b := make([]byte, len(data))
	n, err := ns.ReadAt(b, 0)
	require.ErrorIs(t, err, nvme.StatusUnrecoveredReadError)
	require.Equal(t, 5*64<<10, n)
	require.True(t, bytes.Equal(data[:n], b[:n]))
	var oe *OpError
	require.ErrorAs(t, err, &oe)
	require.Equal(t, "read of 65536 bytes at 327680 of namespace 1", oe.Op)
	require.NotZero(t, oe.QID)
	require.Equal(t, tgt.NQN(), oe.Controller)
	require.Equal(t, tgt.Addr(), oe.Path)
}

func TestWritesAreSentOnce(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeSPDK, 512, make([]byte, 1<<20)))
	fail := nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpWrite}, Count: 1,
		Do: nvmetest.Action{Status: nvme.StatusTransientTransportError.Status()},
	}}}
	b := content(4096)

	ns := open(t, tgt, &Options{NumIOQueues: 1})
	tgt.SetFaults(fail)
	n, err := ns.WriteAt(b, 0)
	require.ErrorIs(t, err, nvme.StatusTransientTransportError)
	require.True(t, Retryable(err))
	require.Zero(t, n)
	require.EqualValues(t, 1, tgt.Stats().IO[nvme.OpWrite])

	ns = open(t, tgt, &Options{NumIOQueues: 1, RetryWrites: true})
	tgt.SetFaults(fail)
	n, err = ns.WriteAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, len(b), n)
	require.EqualValues(t, 3, tgt.Stats().IO[nvme.OpWrite])
	got := make([]byte, len(b))
	_, err = ns.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, b, got)
}

func TestDigestWritesFitOneH2CData(t *testing.T) {
	tgt := start(t, func() nvmetest.Config {
		c := disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20))
		c.MAXH2CDATA = 32 << 10
		return c
	}())
	ns := open(t, tgt, &Options{NumIOQueues: 1, DataDigest: true})
	b := content(512 << 10)
	_, err := ns.WriteAt(b, 0)
	require.NoError(t, err)
	require.EqualValues(t, 16, tgt.Stats().IO[nvme.OpWrite], "writes are split at MAXH2CDATA")
	got := make([]byte, len(b))
	_, err = ns.ReadAt(got, 0)
	require.NoError(t, err)
	require.True(t, bytes.Equal(b, got))
	require.EqualValues(t, 1, tgt.Stats().IO[nvme.OpRead], "reads are not")
}

// TestF12NoInCapsuleData has no room for data in capsules, and nearly enough for a block.
func TestF12NoInCapsuleData(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		for _, room := range []int{-1, 512 - 16} {
			c := disk(mode, 512, make([]byte, 1<<20))
			c.InCapsule = room
			ns := open(t, start(t, c), &Options{Driver: d})
			b := content(64 << 10)
			for _, n := range []int{512, 4096, 64 << 10} {
				_, err := ns.WriteAt(b[:n], 512)
				require.NoError(t, err)
				got := make([]byte, n)
				_, err = ns.ReadAt(got, 512)
				require.NoError(t, err)
				require.True(t, bytes.Equal(b[:n], got))
			}
		}
	})
}

func TestF32AmplificationIsReported(t *testing.T) {
	data := content(1 << 20)
	tgt := start(t, disk(nvmetest.ModeNVMET, 4096, data))
	sub := dial(t, tgt, nil)
	ns, err := sub.Namespace(t.Context(), 1)
	require.NoError(t, err)
	for _, c := range []struct{ off, n int }{{1, 1}, {4095, 2}, {4096, 4096}, {100, 100 << 10}, {1<<20 - 1, 1}} {
		g := newGuarded(c.n)
		_, err := ns.ReadAt(g.b, int64(c.off))
		require.NoError(t, err)
		require.Equal(t, data[c.off:c.off+c.n], g.b)
		g.check(t)
	}
	st := sub.Stats()
	require.EqualValues(t, 1+2+4096+100<<10+1-100<<10+100<<10, st.BytesAsked)
	require.EqualValues(t, 4096+8192+4096+(104<<10)+4096, st.BytesRead)
}

func TestF34StatusTypeWithoutCode(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(4096)))
	ns := open(t, tgt, nil)
	for sct := 1; sct < 8; sct++ {
		tgt.SetFaults(onReads(func(nvmetest.Command, int) nvme.Status { return nvme.Status(sct << 9) }))
		n, err := ns.ReadAt(make([]byte, 512), 0)
		require.ErrorIs(t, err, nvme.Code(sct<<8))
		require.Zero(t, n)
	}
}

func TestF37BufferIsFreeAfterCancel(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			data := content(1 << 20)
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
			ns := open(t, tgt, &Options{Driver: d, NumIOQueues: 2, MaxIO: 128 << 10})
			for _, size := range []int{1000, 1 << 20} {
				release := hold(t, tgt, 1, func() {})
				b := make([]byte, size)
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				n, err := ns.ReadAtContext(ctx, b, 0)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Zero(t, n)
				require.False(t, Retryable(err))
				mark := bytes.Repeat([]byte{0x5A}, size)
				copy(b, mark)
				tgt.SetFaults(nvmetest.Faults{})
				release()
				flush(t, ns)
				require.True(t, bytes.Equal(mark, b), "late data was written into a buffer that had been given back")
				_, err = ns.ReadAt(b, 0)
				require.NoError(t, err, "the association goes on")
				require.True(t, bytes.Equal(data[:size], b))
			}
		})
	}
}

// TestCancelledWrite: the controller has asked for nothing yet, and may do so at any time.
func TestCancelledWrite(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
				Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpWrite}, Do: nvmetest.Action{Drop: true},
			}}})
			ns := open(t, tgt, &Options{Driver: d, NumIOQueues: 1})
			for _, size := range []int{512, 256 << 10} { // in the capsule, and by R2T
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Millisecond)
				begin := time.Now()
				n, err := ns.WriteAtContext(ctx, make([]byte, size), 0)
				cancel()
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Zero(t, n)
				require.Less(t, time.Since(begin), 2*time.Second)
			}
		})
	}
}

// TestDamagedStream has a target whose bytes are damaged at random. With digests whatever is read is
// right, or an error.
func TestDamagedStream(t *testing.T) {
	data := content(1 << 20)
	for i, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			tgt, err := nvmetest.Start(disk(modes[i], 512, data))
			require.NoError(t, err)
			defer tgt.Close()
			opts := &Options{
				Driver: d, NumIOQueues: 1, HeaderDigest: true, DataDigest: true, ICTimeout: 200 * time.Millisecond,
				ConnectTimeout: 200 * time.Millisecond, CommandTimeout: 200 * time.Millisecond,
			}
			good, bad := 0, 0
			for deadline, seed := time.Now().Add(2*time.Second), uint64(0); time.Now().Before(deadline); seed++ {
				tgt.SetFaults(nvmetest.Faults{Conn: nvmetest.ConnFaults{MangleRate: 1e-5, MangleSeed: 100 * seed}})
				sub, err := testHost.Connect(t.Context(), at(tgt), opts)
				if err != nil {
					bad++
					continue
				}
				ns, err := sub.Namespace(t.Context(), 1)
				for err == nil {
					r := rand.New(rand.NewPCG(seed, 1))
					off := r.IntN(len(data) - 100000)
					g := newGuarded(r.IntN(100000))
					if _, err = ns.ReadAt(g.b, int64(off)); err == nil {
						good++
						require.True(t, bytes.Equal(data[off:off+len(g.b)], g.b))
					}
					g.check(t)
				}
				bad++
				sub.ctrl.release() // as Close, without asking a controller that hears badly
			}
			require.Positive(t, good)
			require.Positive(t, bad)
			t.Logf("%d reads, %d failures", good, bad)
		})
	}
}

func TestCancelledBeforeItBegins(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	ns := open(t, tgt, nil)
	reason := errors.New("the user has gone")
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(reason)
	_, err := ns.ReadAtContext(ctx, make([]byte, 4<<10), 0)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, reason)
	_, err = ns.WriteAtContext(ctx, make([]byte, 512<<10), 0)
	require.ErrorIs(t, err, context.Canceled)
	require.Error(t, ns.Flush(ctx))
	require.ErrorIs(t, ns.Feed(ctx, newListFeed(ns, nil, 0, 1)), context.Canceled)
	require.Empty(t, tgt.Stats().IO)
}

func TestReadAtDoesNotAllocate(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates, and empties pools")
	}
	ns := open(t, start(t, nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
		NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{Backend: nvmetest.Null(1 << 30)}},
	}}}), &Options{NumIOQueues: 2, MaxIO: 64 << 10})
	b := make([]byte, 300<<10)
	for _, n := range []int{4096, 5000, len(b)} {
		got := testing.AllocsPerRun(50, func() {
			if _, err := ns.ReadAt(b[:n], 3); err != nil {
				t.Fatal(err)
			}
		})
		require.Less(t, got, 1.0, "read of %d", n)
	}
}
