package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// listFeed hands out a list of reads, and notes what comes back.
type listFeed struct {
	data   []byte
	mu     sync.Mutex
	reads  []*Read
	guards []*guarded
	next   int
	back   map[*Read]int
	wake   func()
	hold   int // hand out no more than that for now
}

func newListFeed(ns *Namespace, data []byte, n, size int) *listFeed {
	f := &listFeed{data: data, back: map[*Read]int{}, hold: n}
	r := rand.New(rand.NewPCG(5, uint64(size)))
	for range n {
		length := min(1+r.IntN(size), ns.MaxIO())
		g := newGuarded(length)
		f.guards = append(f.guards, g)
		f.reads = append(f.reads, &Read{Off: r.Int64N(ns.Size() - int64(length) + 1), Buf: g.b})
	}
	return f
}

func (f *listFeed) Attach(wake func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.wake = wake
}

func (f *listFeed) Next() (*Read, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch {
	case f.next == len(f.reads):
		return nil, true
	case f.next >= f.hold:
		return nil, false
	}
	f.next++
	return f.reads[f.next-1], false
}

func (f *listFeed) Complete(r *Read) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.back[r]++
}

// check wants every read done, once and right.
func (f *listFeed) check(t *testing.T) {
	t.Helper()
	for i, r := range f.reads {
		require.NoError(t, r.Err)
		require.Equal(t, 1, f.back[r])
		require.True(t, bytes.Equal(f.data[r.Off:][:len(r.Buf)], r.Buf), "read %d", i)
		require.Positive(t, r.Latency)
		f.guards[i].check(t)
	}
}

// settled wants what was handed out back, once.
func (f *listFeed) settled(t *testing.T) {
	t.Helper()
	require.Len(t, f.back, f.next)
	for _, r := range f.reads[:f.next] {
		require.Equal(t, 1, f.back[r])
	}
}

func TestFeed(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(2 << 20)
		for _, digests := range []bool{false, true} {
			ns := open(t, start(t, disk(mode, 4096, data)), &Options{Driver: d, NumIOQueues: 3, QueueSize: 16, HeaderDigest: digests, DataDigest: digests})
			for _, size := range []int{600, 200 << 10} {
				f := newListFeed(ns, data, 200, size)
				require.NoError(t, ns.Feed(within(t, 20*time.Second), f))
				f.check(t)
			}
		}
	})
}

func TestFeedOfNothing(t *testing.T) {
	ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, content(4096))), nil)
	require.NoError(t, ns.Feed(within(t, 5*time.Second), newListFeed(ns, nil, 0, 1)))
}

// lastFeed says done together with its only read.
type lastFeed struct {
	listFeed
}

func (f *lastFeed) Next() (*Read, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.next == len(f.reads) {
		return nil, true
	}
	f.next++
	return f.reads[f.next-1], f.next == len(f.reads)
}

func TestFeedDoneWithTheLastRead(t *testing.T) {
	data := content(64 << 10)
	ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), &Options{NumIOQueues: 2})
	f := &lastFeed{listFeed{data: data, back: map[*Read]int{}}}
	for i := range 5 {
		g := newGuarded(100)
		f.guards, f.reads = append(f.guards, g), append(f.reads, &Read{Off: int64(i), Buf: g.b})
	}
	require.NoError(t, ns.Feed(within(t, 5*time.Second), f))
	f.check(t)
}

func TestFeedIsWoken(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			data := content(64 << 10)
			ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), &Options{Driver: d, NumIOQueues: 2})
			f := newListFeed(ns, data, 50, 1000)
			f.hold = 0
			var wg sync.WaitGroup
			wg.Go(func() {
				for range 50 {
					time.Sleep(2 * time.Millisecond) // longer than the queues spin
					f.mu.Lock()
					f.hold++
					wake := f.wake
					f.mu.Unlock()
					if wake != nil {
						wake()
					}
				}
			})
			require.NoError(t, ns.Feed(within(t, 10*time.Second), f))
			wg.Wait()
			f.check(t)
			f.wake() // does nothing any more
		})
	}
}

func TestFeedRefusesWhatIsNoRead(t *testing.T) {
	data := content(4 << 20)
	ns := open(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), nil)
	f := newListFeed(ns, data, 0, 1)
	f.reads = []*Read{
		{Off: 0, Buf: make([]byte, ns.MaxIO()+1)},
		{Off: int64(len(data)) - 1, Buf: make([]byte, 2)},
		{Off: -1, Buf: make([]byte, 2)},
		{Off: 5, Buf: nil},
		{Off: 5, Buf: make([]byte, ns.MaxIO())}, // with the rest of its blocks more than one command moves
	}
	f.hold = len(f.reads)
	require.NoError(t, ns.Feed(within(t, 5*time.Second), f))
	f.settled(t)
	require.ErrorIs(t, f.reads[0].Err, ErrTooLarge)
	require.ErrorContains(t, f.reads[0].Err, "1048576")
	require.ErrorIs(t, f.reads[1].Err, ErrRange)
	require.ErrorIs(t, f.reads[2].Err, ErrRange)
	require.NoError(t, f.reads[3].Err)
	require.NoError(t, f.reads[4].Err)
	require.True(t, bytes.Equal(data[5:][:ns.MaxIO()], f.reads[4].Buf))
}

func TestFeedWrites(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		for _, digests := range []bool{false, true} {
			data := content(1 << 20)
			ns := open(t, start(t, disk(mode, 512, make([]byte, len(data)))), &Options{Driver: d, NumIOQueues: 2, HeaderDigest: digests, DataDigest: digests})
			f := newListFeed(ns, data, 0, 1)
			const size = 4096 // what a strict target takes with data digests
			for off := int64(0); off < int64(len(data)); off += size {
				f.reads = append(f.reads, &Read{Write: true, Off: off, Buf: data[off:][:size]})
			}
			f.hold = len(f.reads)
			require.NoError(t, ns.Feed(within(t, 20*time.Second), f))
			f.settled(t)
			for _, r := range f.reads {
				require.NoError(t, r.Err)
			}
			back := make([]byte, len(data))
			_, err := ns.ReadAt(back, 0)
			require.NoError(t, err)
			require.True(t, bytes.Equal(data, back))
			require.Equal(t, uint64(len(data)), ns.sub.Stats().BytesWritten)
		}
	})
}

func TestFeedRefusesWhatIsNoWrite(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(4<<20)))
	ns := open(t, tgt, nil)
	f := newListFeed(ns, nil, 0, 1)
	f.reads = []*Read{
		{Write: true, Off: 1, Buf: make([]byte, 512)},
		{Write: true, Off: 0, Buf: make([]byte, 511)},
		{Write: true, Off: ns.Size(), Buf: make([]byte, 512)},
		{Write: true, Off: 0, Buf: make([]byte, ns.MaxIO()+512)},
	}
	f.hold = len(f.reads)
	require.NoError(t, ns.Feed(within(t, 5*time.Second), f))
	f.settled(t)
	for i, want := range []error{ErrUnaligned, ErrUnaligned, ErrRange, ErrTooLarge} {
		require.ErrorIs(t, f.reads[i].Err, want)
	}
	require.Zero(t, tgt.Stats().IO[nvme.OpWrite])
	err := ns.ReadBatch(within(t, 5*time.Second), []*Read{{Write: true, Buf: make([]byte, 512)}})
	require.ErrorContains(t, err, "a batch only reads")
}

func TestFeedGoesOnAfterAnError(t *testing.T) {
	data := content(1 << 20)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, data))
	ns := open(t, tgt, &Options{NumIOQueues: 2})
	tgt.SetFaults(onReads(func(_ nvmetest.Command, nth int) nvme.Status {
		switch {
		case nth%10 == 3:
			return nvme.StatusUnrecoveredReadError.Status().WithDNR()
		case nth%10 == 7:
			return nvme.StatusTransientTransportError.Status()
		}
		return 0
	}))
	f := newListFeed(ns, data, 100, 5000)
	require.NoError(t, ns.Feed(within(t, 10*time.Second), f))
	f.settled(t)
	failed := 0
	for _, r := range f.reads {
		if r.Err != nil {
			require.ErrorIs(t, r.Err, nvme.StatusUnrecoveredReadError)
			failed++
			continue
		}
		require.True(t, bytes.Equal(data[r.Off:][:len(r.Buf)], r.Buf))
	}
	require.InDelta(t, 11, failed, 2)
}

func TestF37FeedGivesBuffersBackWhenCancelled(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(1 << 20)
		tgt := start(t, disk(mode, 512, data))
		ns := open(t, tgt, &Options{Driver: d, NumIOQueues: 2, QueueSize: 16})
		f := newListFeed(ns, data, 200, 5000)
		reason := errors.New("enough")
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		release := hold(t, tgt, 20, func() { cancel(reason) })
		err := ns.Feed(ctx, f)
		require.ErrorIs(t, err, context.Canceled)
		require.ErrorIs(t, err, reason)
		f.settled(t)
		require.Less(t, f.next, len(f.reads))
		cancelled := 0
		for _, r := range f.reads[:f.next] {
			if r.Err != nil {
				require.ErrorIs(t, r.Err, context.Canceled)
				cancelled++
			}
			clear(r.Buf)
		}
		require.Positive(t, cancelled)
		tgt.SetFaults(nvmetest.Faults{})
		release()
		flush(t, ns)
		for _, r := range f.reads[:f.next] {
			require.True(t, bytes.Equal(make([]byte, len(r.Buf)), r.Buf), "late data")
		}
		f = newListFeed(ns, data, 100, 5000)
		require.NoError(t, ns.Feed(within(t, 5*time.Second), f), "the association goes on")
		f.check(t)
	})
}

func TestFeedEndsWithTheAssociation(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		data := content(1 << 20)
		tgt := start(t, disk(mode, 512, data))
		sub := dial(t, tgt, &Options{Driver: d, NumIOQueues: 2, QueueSize: 16})
		ns, err := sub.Namespace(t.Context(), 1)
		require.NoError(t, err)
		tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{
			{QID: 2, Nth: 20, Do: nvmetest.Action{Close: nvmetest.CloseFIN}},
		}})
		f := newListFeed(ns, data, 5000, 5000)
		err = ns.Feed(within(t, 10*time.Second), f)
		require.ErrorIs(t, err, ErrPathLost)
		require.True(t, Retryable(err))
		f.settled(t)
		for _, r := range f.reads[:f.next] {
			if r.Err != nil {
				require.ErrorIs(t, r.Err, ErrPathLost)
				continue
			}
			require.True(t, bytes.Equal(data[r.Off:][:len(r.Buf)], r.Buf))
		}
		<-sub.Done()
		require.ErrorIs(t, ns.Feed(t.Context(), newListFeed(ns, data, 5, 500)), ErrPathLost)
		require.NoError(t, sub.Close())
		require.ErrorIs(t, ns.Feed(t.Context(), newListFeed(ns, data, 5, 500)), ErrClosed)
	})
}

func TestFeedDoesNotAllocatePerRead(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	ns := open(t, start(t, nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
		NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{Backend: nvmetest.Null(1 << 30)}},
	}}}), &Options{NumIOQueues: 1, QueueSize: 8})
	var allocs [2]float64
	for i, n := range []int{100, 5100} {
		allocs[i] = testing.AllocsPerRun(3, func() {
			f := &countFeed{left: n}
			for range 8 {
				f.free = append(f.free, &Read{Off: 3, Buf: make([]byte, 2000)})
			}
			if err := ns.Feed(context.Background(), f); err != nil {
				t.Fatal(err)
			}
		})
	}
	require.Less(t, (allocs[1]-allocs[0])/5000, 0.02, "allocations per read")
}

// countFeed hands out the same few reads again and again. It serves one queue.
type countFeed struct {
	left int
	free []*Read
}

func (f *countFeed) Attach(func()) {}
func (f *countFeed) Next() (*Read, bool) {
	if f.left == 0 {
		return nil, true
	}
	if len(f.free) == 0 {
		return nil, false
	}
	f.left--
	r := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	return r, false
}
func (f *countFeed) Complete(r *Read) { f.free = append(f.free, r) }
