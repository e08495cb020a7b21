package nvmetcp

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

const connectFCTYPE = int(fabrics.TypeConnect)

// onConnect answers the Connects of a queue. nth counts them, from 1.
func onConnect(qid uint16, status func(nth int) nvme.Status) nvmetest.Faults {
	var n atomicCounter
	return nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.SQE.Opcode != nvme.OpFabrics || fabrics.Type(&c.SQE) != fabrics.TypeConnect || uint16(c.SQE.CDW10>>16) != qid {
			return nvmetest.Action{}
		}
		return nvmetest.Action{Status: status(n.next())}
	}}
}

func TestConnect(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		tgt := start(t, disk(mode, 512, make([]byte, 1<<20)))
		sub, err := testHost.Connect(t.Context(), at(tgt), &Options{Driver: d, NumIOQueues: 3, HeaderDigest: true, CPUs: []int{0}})
		require.NoError(t, err)
		info := sub.Controller()
		require.Equal(t, tgt.NQN(), info.NQN)
		require.Equal(t, testHost.NQN, info.HostNQN)
		require.Equal(t, testHost.ID, info.HostID)
		require.Equal(t, tgt.Addr(), info.Addr)
		require.Equal(t, info.CNTLID, info.Identify.CNTLID)
		require.Equal(t, DefaultKeepAlive, info.KATO)
		require.Len(t, info.Queues, 3)
		for i, q := range info.Queues {
			require.EqualValues(t, i+1, q.QID)
			require.Equal(t, d, q.Driver)
			require.Equal(t, pdu.Digests{Header: true}, q.Digests)
		}
		require.NoError(t, sub.Err())
		st := sub.Stats()
		require.Len(t, st.Queues, 3)
		require.NoError(t, sub.Close())
		require.NoError(t, sub.Close(), "again")
		<-sub.Done()
		require.ErrorIs(t, sub.Err(), ErrClosed)
		require.NotErrorIs(t, sub.Err(), ErrPathLost)
		_, err = sub.Namespace(t.Context(), 1)
		require.ErrorIs(t, err, ErrClosed)
		_, err = sub.Namespaces(t.Context())
		require.ErrorIs(t, err, ErrClosed)
		require.Eventually(t, func() bool { return tgt.Stats().Controllers == 0 && tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond)
	})
}

func TestUseAfterClose(t *testing.T) {
	ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20))), nil)
	require.NoError(t, ns.sub.Close())
	_, err := ns.ReadAt(make([]byte, 100), 0)
	require.ErrorIs(t, err, ErrClosed)
	require.False(t, Retryable(err))
	_, err = ns.WriteAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, ErrClosed)
	require.ErrorIs(t, ns.Flush(t.Context()), ErrClosed)
	r := &Read{Buf: make([]byte, 1)}
	require.ErrorIs(t, ns.ReadBatch(t.Context(), []*Read{r}), ErrClosed)
	require.ErrorIs(t, r.Err, ErrClosed)
}

func TestNamespaces(t *testing.T) {
	const n = 2500 // more than two pages
	var list []nvmetest.Namespace
	for i := range uint32(n) {
		list = append(list, nvmetest.Namespace{NSID: 2 * (i + 1), Backend: nvmetest.Null(1 << 20)})
	}
	list[7].UUID = [16]byte{1, 2, 3}
	list[7].NGUID = [16]byte{4, 5, 6}
	list[7].EUI64 = [8]byte{7, 8, 9}
	list = append(list, nvmetest.Namespace{NSID: 3, Inactive: true, Backend: nvmetest.Null(1 << 20)},
		nvmetest.Namespace{NSID: 5}, // of size 0
		nvmetest.Namespace{NSID: 7, BlockSize: 128 << 10, Backend: nvmetest.Null(1 << 20)})
	tgt := start(t, nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: list}}})
	sub := dial(t, tgt, &Options{NumIOQueues: 1})
	got, err := sub.Namespaces(t.Context())
	require.NoError(t, err)
	require.Len(t, got, n+2)
	require.IsIncreasing(t, got)
	require.EqualValues(t, 2*n, got[len(got)-1])

	ns, err := sub.Namespace(t.Context(), 16)
	require.NoError(t, err)
	require.EqualValues(t, 16, ns.NSID())
	require.Equal(t, [16]byte{1, 2, 3}, ns.UUID())
	require.Equal(t, [16]byte{4, 5, 6}, ns.NGUID())
	require.Equal(t, [8]byte{7, 8, 9}, ns.EUI64())

	for _, nsid := range []uint32{0, 3, 5, 9999, nvme.NSIDAll} {
		_, err = sub.Namespace(t.Context(), nsid)
		require.Error(t, err, nsid)
		if nsid != 9999 { // which may also be Invalid Namespace, says the target
			require.ErrorIs(t, err, ErrNoNamespace)
		}
	}
	_, err = sub.Namespace(t.Context(), 7)
	require.ErrorContains(t, err, "blocks of 131072 bytes")
}

func TestNamespacesThatNeverEnd(t *testing.T) {
	page := make([]byte, nvme.IdentifyLen)
	for i := range nvme.IdentifyLen / 4 {
		binary.LittleEndian.PutUint32(page[4*i:], uint32(i+1))
	}
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
	sub := dial(t, tgt, &Options{NumIOQueues: 1})
	tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.SQE.Opcode != nvme.OpIdentify {
			return nvmetest.Action{}
		}
		return nvmetest.Action{Raw: rawRead(c.SQE.CID, page)}
	}})
	_, err := sub.Namespaces(within(t, 10*time.Second))
	require.ErrorIs(t, err, ErrController)
	require.EqualValues(t, 2, tgt.Stats().Admin[nvme.OpIdentify]-1, "the second page begins where the first did")
}

func TestF31MetadataIsRefused(t *testing.T) {
	c := disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20))
	c.Subsystems[0].Namespaces[0].Metadata = 8
	_, err := dial(t, start(t, c), nil).Namespace(t.Context(), 1)
	require.ErrorIs(t, err, ErrMetadata)
	require.ErrorContains(t, err, "8 bytes of metadata")
}

func TestF03DigestsRefused(t *testing.T) {
	for _, d := range []pdu.Digests{{Header: true}, {Data: true}} {
		c := disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20))
		c.RefuseDigests = d
		tgt := start(t, c)
		_, err := testHost.Connect(t.Context(), at(tgt), &Options{HeaderDigest: true, DataDigest: true})
		require.ErrorIs(t, err, ErrDigestsRefused)
		require.False(t, Retryable(err))
		require.ErrorContains(t, err, "turn HeaderDigest and DataDigest off")
		require.Equal(t, 1, tgt.Stats().Connections)
	}
}

func TestF08SuccessFlag(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(1 << 20)
		tgt := start(t, disk(mode, 512, data))
		for _, disable := range []bool{false, true} {
			ns := open(t, tgt, &Options{Driver: d, NumIOQueues: 1, DisableSQFlow: disable})
			f := newListFeed(ns, data, 50, 9000)
			require.NoError(t, ns.Feed(within(t, 10*time.Second), f))
			f.check(t)
		}
		log, err := testHost.Discover(within(t, 10*time.Second), Target{Addr: tgt.Addr()}, &Options{Driver: d, DisableSQFlow: true})
		require.NoError(t, err)
		require.NotEmpty(t, log.Entries)
	})
}

// TestF13QueueDepth has targets that count what is outstanding.
func TestF13QueueDepth(t *testing.T) {
	for entries, want := range map[int]int{2: 1, 4: 3, 128: 127, 1024: 127} {
		data := content(1 << 20)
		c := disk(nvmetest.ModeNVMET, 512, data)
		c.MaxQueueEntries = entries
		tgt := start(t, c)
		sub := dial(t, tgt, &Options{NumIOQueues: 2})
		for _, q := range sub.Controller().Queues {
			require.Equal(t, want, q.Depth)
		}
		ns, err := sub.Namespace(t.Context(), 1)
		require.NoError(t, err)
		f := newListFeed(ns, data, 300, 3000)
		require.NoError(t, ns.Feed(within(t, 10*time.Second), f))
		f.check(t)
	}
}

func TestF13F14DepthIsTheLeastOfThree(t *testing.T) {
	for _, c := range []struct{ mqes, maxcmd, size, want int }{
		{1023, 1024, 128, 127}, {63, 0, 128, 63}, {63, 32, 128, 31}, {1023, 16, 8, 7}, {65535, 0, 4096, 4095}, {1, 0, 128, 1},
	} {
		ctl := controller{cap: fabrics.CAP(c.mqes), opts: &Options{QueueSize: c.size}}
		ctl.identify.MAXCMD = uint16(c.maxcmd)
		require.Equal(t, c.want, ctl.depth(), "%+v", c)
	}
}

// TestF14SQSIZE is about what the controller is told: one less than the entries of the queue.
func TestF14SQSIZE(t *testing.T) {
	for entries, want := range map[int]uint16{1024: 127, 64: 63, 2: 1} {
		c := disk(nvmetest.ModeNVMET, 512, content(1<<20))
		c.MaxQueueEntries = entries
		tgt := start(t, c)
		sizes := make(chan uint16, 10)
		tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
			var req fabrics.Connect
			if req.DecodeSQE(&c.SQE) == nil {
				sizes <- req.SQSIZE
			}
			return nvmetest.Action{}
		}})
		dial(t, tgt, &Options{NumIOQueues: 1})
		require.EqualValues(t, 31, <-sizes, "the admin queue has 32 entries")
		require.Equal(t, want, <-sizes)
	}
}

func TestF15NumberOfQueues(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
	require.Len(t, dial(t, tgt, &Options{NumIOQueues: 3}).Controller().Queues, 3, "more are granted than asked for")
	tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{MaxQueues: 2}})
	require.Len(t, dial(t, tgt, &Options{NumIOQueues: 3}).Controller().Queues, 2, "fewer are granted, and found anew each time")

	// The halves of the answer differ: the smaller one counts.
	halves := uint64(0)<<16 | 4
	tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Opcodes: []nvme.Opcode{nvme.OpSetFeatures}, Do: nvmetest.Action{Result: &halves}}}})
	require.Len(t, dial(t, tgt, &Options{NumIOQueues: 3}).Controller().Queues, 1)
}

func TestF16DuplicateQueue(t *testing.T) {
	for _, st := range []nvme.Status{
		nvme.StatusInvalidQueueID.Status(), fabrics.StatusConnectControllerBusy.Status(), nvme.StatusCommandSequenceError.Status(),
	} {
		tgt := start(t, disk(nvmetest.ModeSPDK, 512, make([]byte, 1<<20)))
		tgt.SetFaults(onConnect(2, func(nth int) nvme.Status {
			if nth <= 2 {
				return st
			}
			return 0
		}))
		sub, err := testHost.Connect(within(t, 10*time.Second), at(tgt), &Options{NumIOQueues: 2})
		require.NoError(t, err, "%v", st)
		require.EqualValues(t, 3+3+3, tgt.Stats().Fabrics[fabrics.TypeConnect], "each attempt begins with an admin queue")
		require.EqualValues(t, 3, sub.Controller().CNTLID, "and has a controller of its own")
		require.NoError(t, sub.Close())

		// Never without bound.
		tgt.SetFaults(onConnect(2, func(int) nvme.Status { return st }))
		before, begin := tgt.Stats().Fabrics[fabrics.TypeConnect], time.Now()
		_, err = testHost.Connect(within(t, 20*time.Second), at(tgt), &Options{NumIOQueues: 2})
		require.ErrorIs(t, err, st.Code())
		require.GreaterOrEqual(t, time.Since(begin), (1<<(connectAttempts-1)-1)*connectBackoff, "the pauses grow")
		require.EqualValues(t, 3*connectAttempts, tgt.Stats().Fabrics[fabrics.TypeConnect]-before)

		// And not at all when the controller says so.
		tgt.SetFaults(onConnect(2, func(int) nvme.Status { return st.WithDNR() }))
		before = tgt.Stats().Fabrics[fabrics.TypeConnect]
		_, err = testHost.Connect(within(t, 10*time.Second), at(tgt), &Options{NumIOQueues: 2})
		require.ErrorIs(t, err, st.Code())
		require.EqualValues(t, 3, tgt.Stats().Fabrics[fabrics.TypeConnect]-before)
		require.Eventually(t, func() bool { return tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond, "connections are closed")
	}
}

// TestF16ControllerHasGone is about a controller that forgets its CNTLID before the I/O queues are made.
func TestF16ControllerHasGone(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeSPDK, 512, make([]byte, 1<<20)))
	tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		var req fabrics.Connect
		if req.DecodeSQE(&c.SQE) != nil || req.QID == 0 || tgt.Stats().Connections > 2 {
			return nvmetest.Action{}
		}
		return nvmetest.Action{
			Status: fabrics.StatusConnectInvalidParameters.Status(),
			Result: new(1<<16 | uint64(fabrics.IPOCNTLID)),
		}
	}})
	sub, err := testHost.Connect(within(t, 10*time.Second), at(tgt), &Options{NumIOQueues: 1})
	require.NoError(t, err)
	require.EqualValues(t, 2, sub.Controller().CNTLID, "a new one")
	require.NoError(t, sub.Close())
}

func TestF16BusyEndsWithTheContext(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeSPDK, 512, make([]byte, 1<<20)))
	tgt.SetFaults(onConnect(0, func(int) nvme.Status { return fabrics.StatusConnectControllerBusy.Status() }))
	for pauses := 1; pauses < connectAttempts; pauses++ {
		ctx, cancel := context.WithCancel(t.Context())
		before, n := tgt.Stats().Fabrics[fabrics.TypeConnect], 0
		_, err := testHost.Connect(ctx, at(tgt), &Options{Logger: slog.New(onLog{slog.DiscardHandler, func(msg string) {
			if msg == "controller is busy, connecting again" {
				if n++; n == pauses {
					cancel()
				}
			}
		}})})
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, fabrics.StatusConnectControllerBusy, "the reason is told too")
		require.EqualValues(t, pauses, tgt.Stats().Fabrics[fabrics.TypeConnect]-before)
	}
}

func TestF18KeepAliveUnderLoad(t *testing.T) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) {
			t.Parallel()
			data := content(1 << 20)
			tgt := start(t, disk(mode, 512, data))
			sub := dial(t, tgt, &Options{NumIOQueues: 2, KeepAlive: 3 * time.Second}) // half of which a pause of the machine does not reach
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			ctx, cancel := context.WithCancel(within(t, 30*time.Second))
			defer cancel()
			go func() {
				defer cancel()
				for ctx.Err() == nil && tgt.Stats().Admin[nvme.OpKeepAlive] < 4 {
					time.Sleep(time.Millisecond)
				}
			}()
			var wg sync.WaitGroup
			for range 8 {
				wg.Go(func() {
					b := make([]byte, 50<<10)
					for ctx.Err() == nil {
						if _, err := ns.ReadAt(b, 1000); err != nil {
							cancel()
							t.Error(err)
							return
						}
					}
				})
			}
			wg.Wait()
			require.GreaterOrEqual(t, tgt.Stats().Admin[nvme.OpKeepAlive], uint64(4), "one every KATO/2, traffic or not")
			require.Positive(t, sub.Stats().KeepAliveRTT)
			require.Zero(t, tgt.Stats().KeepAliveExpired)
			require.NoError(t, sub.Err())
		})
	}
}

func TestF18KeepAliveUnanswered(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
			sub := dial(t, tgt, &Options{Driver: d, CommandTimeout: -1, KeepAlive: 200 * time.Millisecond})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{
				{Opcodes: []nvme.Opcode{nvme.OpKeepAlive}, Do: nvmetest.Action{Drop: true}},
				{Queue: nvmetest.IOQueue, Do: nvmetest.Action{Drop: true}},
			}})
			_, err = ns.ReadAt(make([]byte, 512), 0) // whose answer will never come, and which nothing else ends
			require.ErrorIs(t, err, ErrPathLost)
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "keep alive: timed out: no answer in 200ms")
			<-sub.Done()
			require.ErrorIs(t, sub.Err(), ErrPathLost)
			require.NoError(t, sub.Close())
		})
	}
}

// onLog calls on with every message.
type onLog struct {
	slog.Handler
	on func(msg string)
}

func (l onLog) Enabled(context.Context, slog.Level) bool { return true }

func (l onLog) Handle(_ context.Context, r slog.Record) error {
	l.on(r.Message)
	return nil
}

// A controller whose admin queue is gone may close the others before this side has come to them.
func TestCauseOfTheEnd(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
			ended := make(chan struct{}, 2)
			sub := dial(t, tgt, &Options{Driver: d, NumIOQueues: 1, CommandTimeout: -1, KeepAlive: 200 * time.Millisecond, Logger: slog.New(onLog{slog.DiscardHandler, func(msg string) {
				switch msg {
				case "association lost": // and no queue knows yet
					for _, c := range tgt.Conns() {
						c.Close()
					}
					<-ended
					<-ended
				case "queue ended":
					ended <- struct{}{}
				}
			}})})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Do: nvmetest.Action{Drop: true}}}})
			_, err = ns.ReadAt(make([]byte, 512), 0)
			require.ErrorIs(t, err, ErrPathLost)
			require.ErrorIs(t, err, ErrTimeout)
			require.ErrorContains(t, err, "keep alive")
			require.NotErrorIs(t, err, io.ErrUnexpectedEOF)
		})
	}
}

// Of the queues that end together each says what it was doing, and who is to blame.
func TestWhoseEnd(t *testing.T) {
	own := &queue.Error{QID: 1, Addr: "a:1", Op: queue.OpConnection, Err: io.ErrUnexpectedEOF}
	for name, c := range map[string]struct {
		cause error
		says  string
		is    error
	}{
		"still up":                 {nil, "queue 1: connection: unexpected EOF", io.ErrUnexpectedEOF},
		"another connection":       {&queue.Error{QID: 2, Addr: "a:1", Op: queue.OpConnection, Err: syscall.ECONNRESET}, "queue 1: connection: unexpected EOF", io.ErrUnexpectedEOF},
		"a breach":                 {&queue.Error{QID: 2, Addr: "a:1", Op: "receive", Err: queue.ErrProtocol}, "queue 1: association: queue 2 to a:1: receive: " + queue.ErrProtocol.Error(), queue.ErrProtocol},
		"closed after it was lost": {fmt.Errorf("association: %w", ErrClosed), "queue 1: connection: unexpected EOF", io.ErrUnexpectedEOF},
	} {
		t.Run(name, func(t *testing.T) {
			ctrl := &controller{opts: &Options{}, addr: "a:1", err: c.cause}
			err := ctrl.wrap("read", 1, own)
			require.ErrorContains(t, err, c.says)
			require.ErrorIs(t, err, c.is)
			require.ErrorIs(t, err, ErrPathLost)
			require.True(t, Retryable(err))
		})
	}
}

func TestNoKeepAlive(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	sub := dial(t, tgt, &Options{KeepAlive: -1})
	require.Zero(t, sub.Controller().KATO)
	time.Sleep(50 * time.Millisecond)
	require.Zero(t, tgt.Stats().Admin[nvme.OpKeepAlive])
}

// TestF20EveryLossEndsTheAssociation is also interop quirk 16: an I/O queue that drops alone.
func TestF20EveryLossEndsTheAssociation(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		for qid := range 3 {
			tgt := start(t, disk(mode, 512, content(1<<20)))
			sub := dial(t, tgt, &Options{Driver: d, NumIOQueues: 2})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Do: nvmetest.Action{Drop: true}}}})
			failed := make(chan error, 2)
			for range 2 {
				go func() {
					_, err := ns.ReadAt(make([]byte, 100), 0)
					failed <- err
				}()
			}
			require.Eventually(t, func() bool { return tgt.Stats().IO[nvme.OpRead] == 2 }, 5*time.Second, time.Millisecond)
			for _, c := range tgt.Conns() {
				if c.QID() == qid {
					c.Close()
				}
			}
			for range 2 {
				err := <-failed
				require.ErrorIs(t, err, ErrPathLost)
				require.NotErrorIs(t, err, io.EOF, "a lost connection is not the end of the namespace")
				require.True(t, Retryable(err))
			}
			<-sub.Done()
			require.ErrorIs(t, sub.Err(), ErrPathLost)
			_, err = ns.ReadAt(make([]byte, 100), 0)
			require.ErrorIs(t, err, ErrPathLost)
			_, err = sub.Namespaces(t.Context())
			require.ErrorIs(t, err, ErrPathLost)
			require.Eventually(t, func() bool { return tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond, "all queues are closed")
			require.NoError(t, sub.Close())
		}
	})
}

func TestCommandTimeout(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	ns := open(t, tgt, &Options{CommandTimeout: 100 * time.Millisecond})
	tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Do: nvmetest.Action{Drop: true}}}})
	begin := time.Now()
	_, err := ns.ReadAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, ErrPathLost)
	require.Less(t, time.Since(begin), 2*time.Second)
}

func TestF22SourceAddress(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	to := at(tgt)
	to.HostTraddr = "127.0.0.7"
	sub, err := testHost.Connect(t.Context(), to, &Options{NumIOQueues: 2})
	require.NoError(t, err)
	defer sub.Close()
	require.Len(t, tgt.Conns(), 3)
	for _, c := range tgt.Conns() {
		require.Equal(t, "127.0.0.7", c.RemoteAddr().(*net.TCPAddr).IP.String())
	}

	to.HostTraddr = "192.0.2.77" // an address that has gone
	_, err = testHost.Connect(t.Context(), to, nil)
	require.ErrorContains(t, err, "192.0.2.77 is not an address of this machine")
	to.HostTraddr = "eth0"
	_, err = testHost.Connect(t.Context(), to, nil)
	require.ErrorContains(t, err, "HostTraddr \"eth0\" is not an IP address")
}

func TestConnectErrorsHelp(t *testing.T) {
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	refused := closed.Addr().String()
	closed.Close()
	for name, c := range map[string]struct {
		config func(*nvmetest.Config)
		faults nvmetest.Faults
		target func(*Target)
		is     error
		retry  bool
		says   string
	}{
		"host not allowed": {
			config: func(c *nvmetest.Config) { c.Subsystems[0].AllowedHosts = []string{"nqn.2025-01.io.example:other"} },
			is:     fabrics.StatusConnectInvalidHost,
			says:   `host NQN "` + testHost.NQN + `" is not allowed on subsystem "` + nvmetest.DefaultNQN + `": add it to allowed_hosts`,
		},
		"unknown subsystem": {
			target: func(t *Target) { t.NQN = "nqn.2025-01.io.example:none" },
			is:     fabrics.StatusConnectInvalidParameters,
			says:   `no subsystem "nqn.2025-01.io.example:none" at 127.0.0.1:`,
		},
		"discovery subsystem": {
			target: func(t *Target) { t.NQN = fabrics.DiscoveryNQN },
			is:     ErrController, says: "Host.Discover reads a discovery controller",
		},
		"nobody listens": {
			target: func(t *Target) { t.Addr = refused },
			retry:  true, says: "nothing listens there",
		},
		"silent port": {
			faults: nvmetest.Faults{Conn: nvmetest.ConnFaults{NoICResp: true}},
			is:     ErrTimeout, retry: true, says: "does an NVMe/TCP controller listen there?",
		},
		"reset": {
			faults: nvmetest.Faults{Conn: nvmetest.ConnFaults{Refuse: true}},
			retry:  true,
		},
		"not NVMe": {
			faults: nvmetest.Faults{Conn: nvmetest.ConnFaults{RawICResp: []byte("HTTP/1.1 400 Bad Request\r\n\r\n")}},
			is:     queue.ErrProtocol, retry: true,
		},
		"authentication": {
			faults: nvmetest.Faults{Rules: []nvmetest.Rule{{FCTYPE: connectFCTYPE, Do: nvmetest.Action{Result: new(uint64(1<<17 | 1))}}}},
			is:     ErrAuth,
		},
		"authentication and channel": {
			faults: nvmetest.Faults{Rules: []nvmetest.Rule{{FCTYPE: connectFCTYPE, Do: nvmetest.Action{Result: new(uint64(1<<18 | 1))}}}},
			is:     ErrAuth,
		},
		"fatal": {
			faults: nvmetest.Faults{Controller: nvmetest.ControllerFaults{Fatal: true}},
			is:     ErrController, says: "CSTS.CFS",
		},
		"wrong CNTLID": {
			faults: nvmetest.Faults{Controller: nvmetest.ControllerFaults{WrongCNTLID: true}},
			is:     ErrController, says: "Identify says",
		},
		"no answer to Connect": {
			faults: nvmetest.Faults{Rules: []nvmetest.Rule{{FCTYPE: connectFCTYPE, Do: nvmetest.Action{Drop: true}}}},
			is:     ErrTimeout, retry: true, says: "no answer in 300ms",
		},
		"I/O queue of another controller": {
			faults: nvmetest.Faults{Rules: []nvmetest.Rule{{FCTYPE: connectFCTYPE, Nth: 2, Do: nvmetest.Action{Result: new(uint64(99))}}}},
			is:     ErrController, says: "CNTLID 99",
		},
	} {
		t.Run(name, func(t *testing.T) {
			config := disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20))
			if c.config != nil {
				c.config(&config)
			}
			tgt := start(t, config)
			tgt.SetFaults(c.faults)
			to := at(tgt)
			if c.target != nil {
				c.target(&to)
			}
			// What is answered may take its time, so that nothing but what is tested times out.
			opts := Options{ICTimeout: 5 * time.Second, ConnectTimeout: 5 * time.Second}
			switch {
			case c.is != ErrTimeout:
			case c.faults.Conn.NoICResp:
				opts.ICTimeout = 300 * time.Millisecond
			default:
				opts.ConnectTimeout = 300 * time.Millisecond
			}
			begin := time.Now()
			_, err := testHost.Connect(within(t, 10*time.Second), to, &opts)
			t.Log(err)
			require.Error(t, err)
			require.Less(t, time.Since(begin), 3*time.Second)
			var oe *OpError
			require.ErrorAs(t, err, &oe)
			require.Equal(t, to.NQN, oe.Controller)
			require.Equal(t, to.Addr, oe.Path)
			if c.is != nil {
				require.ErrorIs(t, err, c.is)
			}
			require.Equal(t, c.retry, Retryable(err))
			require.ErrorContains(t, err, c.says)
			require.NotContains(t, err.Error(), "\n", "one line")
			require.Eventually(t, func() bool { return tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond, "nothing stays connected")
		})
	}
}

func TestConnectNeedsATarget(t *testing.T) {
	for _, c := range []struct {
		Target
		says string
	}{
		{Target{}, "Target.NQN is empty"},
		{Target{NQN: "nqn.2025-01.io.example:x"}, "Target.Addr is empty"},
		{Target{Addr: "127.0.0.1", NQN: "models"}, "Target.NQN"},
	} {
		_, err := testHost.Connect(t.Context(), c.Target, nil)
		require.ErrorContains(t, err, c.says)
	}
	_, err := Host{NQN: "nonsense"}.Connect(t.Context(), Target{Addr: "127.0.0.1", NQN: "nqn.2025-01.io.example:x"}, nil)
	require.ErrorIs(t, err, ErrIdentity)
}

func TestNeverReady(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
	tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{ReadyDelay: 300 * time.Millisecond}})
	sub := dial(t, tgt, nil)
	require.NoError(t, sub.Err(), "a controller may take its time")

	tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{NeverReady: true}})
	_, err := testHost.Connect(within(t, 200*time.Millisecond), at(tgt), nil)
	require.ErrorIs(t, err, context.DeadlineExceeded)

	shortCAP := uint64(1<<37 | 0<<24 | 1023) // TO is 0
	tgt.SetFaults(nvmetest.Faults{
		Controller: nvmetest.ControllerFaults{NeverReady: true},
		Rules:      []nvmetest.Rule{{FCTYPE: int(fabrics.TypePropertyGet), Count: 1, Do: nvmetest.Action{Result: &shortCAP}}},
	})
	begin := time.Now()
	_, err = testHost.Connect(within(t, 10*time.Second), at(tgt), nil)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, "CSTS is still 0x0")
	require.Less(t, time.Since(begin), readyMargin+5*time.Second)
}

func TestControllersThatCannotBeUsed(t *testing.T) {
	good := nvme.IdentifyController{CNTRLTYPE: nvme.ControllerTypeIO, IOCCSZ: 4, IORCSZ: 1, SGLS: 1}
	check := func(change func(*nvme.IdentifyController, *fabrics.CAP)) error {
		c := controller{identify: good, cap: 1023, opts: &Options{QueueSize: 128}}
		change(&c.identify, &c.cap)
		return c.checkIO()
	}
	require.NoError(t, check(func(*nvme.IdentifyController, *fabrics.CAP) {}))
	require.NoError(t, check(func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.CNTRLTYPE = 0 }))
	for says, change := range map[string]func(*nvme.IdentifyController, *fabrics.CAP){
		"IOCCSZ":    func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.IOCCSZ = 3 },
		"IORCSZ":    func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.IORCSZ = 0 },
		"ICDOFF":    func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.ICDOFF = 1 },
		"SGLS":      func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.SGLS = 1 << 20 },
		"MQES":      func(_ *nvme.IdentifyController, c *fabrics.CAP) { *c = 0 },
		"MAXCMD 1":  func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.MAXCMD = 1 },
		"discovery": func(i *nvme.IdentifyController, _ *fabrics.CAP) { i.CNTRLTYPE = nvme.ControllerTypeDiscovery },
	} {
		err := check(change)
		require.ErrorIs(t, err, ErrController)
		require.ErrorContains(t, err, says)
	}
}

func TestCommandSets(t *testing.T) {
	for _, c := range []struct {
		css       uint8
		discovery bool
		want      fabrics.CC
	}{
		{fabrics.CSSNVM, false, 0x00460000},
		{fabrics.CSSNVM | fabrics.CSSIOCS, false, 0x00460000},
		{fabrics.CSSIOCS, false, 0x00460060},
		{0, false, 0x00460000},
		{fabrics.CSSNone, true, 0x00460070},
		{fabrics.CSSNone, false, 0},
	} {
		ctl := controller{cap: fabrics.CAP(c.css) << 37, discovery: c.discovery}
		got, err := ctl.configuration()
		require.Equal(t, c.want, got)
		require.Equal(t, c.want == 0, err != nil)
	}
}

func TestCloseDoesNotHang(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
	sub := dial(t, tgt, nil)
	tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{NeverShutdown: true}})
	begin := time.Now()
	require.ErrorIs(t, sub.Close(), ErrTimeout)
	require.Less(t, time.Since(begin), minShutdown+2*time.Second)
	require.Eventually(t, func() bool { return tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond)
}

func TestNoSuchHostHelps(t *testing.T) {
	err := &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{Name: "storage", Err: "no such host", IsNotFound: true}}
	require.Contains(t, hint(err, "", Target{}), "check the name")
}

func TestTimeoutHelps(t *testing.T) {
	for op, want := range map[string]string{"dial": "routes and firewalls", "read": "does an NVMe/TCP controller listen there?"} {
		err := fmt.Errorf("no answer: %w", &net.OpError{Op: op, Net: "tcp", Err: os.ErrDeadlineExceeded})
		require.Contains(t, hint(err, "", Target{}), want)
	}
}

func TestInaccessibleHelps(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
	sub := dial(t, tgt, nil)
	ns, err := sub.Namespace(t.Context(), 1)
	require.NoError(t, err)
	tgt.SetANA(tgt.NQN(), 1, nvme.ANAInaccessible)
	_, err = ns.ReadAt(make([]byte, 512), 0)
	require.ErrorIs(t, err, nvme.StatusANAInaccessible)
	require.ErrorContains(t, err, "try another one of the subsystem")
}

func TestRetryable(t *testing.T) {
	require.False(t, Retryable(nil))
	for err, want := range map[error]bool{
		ErrPathLost: true, ErrTimeout: true, ErrDigest: true,
		ErrClosed: false, ErrAuth: false, ErrUnaligned: false, ErrMetadata: false, ErrDigestsRefused: false,
		context.Canceled: false, context.DeadlineExceeded: false,
		nvme.StatusInternalError.Status():           true,
		nvme.StatusInternalError.Status().WithDNR(): false,
		nvme.StatusInvalidField.Status():            false,
		&net.DNSError{IsNotFound: true}:             false,
		&net.DNSError{IsTemporary: true}:            true,
		&queue.Error{Err: queue.ErrClosed}:          false,
		&queue.Error{Err: net.ErrClosed}:            true,
	} {
		require.Equal(t, want, Retryable(&OpError{Err: err}), "%v", err)
	}
}

// A limit that ends a dial, or another attempt at a busy controller, says so, and what was in the way.
func TestLimitIsTheCause(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	limit := fmt.Errorf("%w: no answer in time", ErrTimeout)
	busyErr := &fabrics.ConnectError{Status: fabrics.StatusConnectControllerBusy.Status()}
	attempts := 0
	err := again(ctx, (&Options{Logger: slog.New(slog.DiscardHandler)}), Target{}, func() error {
		if attempts++; attempts == 1 {
			return busyErr
		}
		cancel(limit)
		return dialError(ctx, &Options{}, context.Canceled)
	})
	require.Equal(t, 2, attempts)
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorIs(t, err, busyErr)
	require.ErrorIs(t, dialError(ctx, &Options{}, context.Canceled), limit)
}
