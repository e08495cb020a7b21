package staging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

// reader is a Feed that knows what should be read, has few reads in flight, and sees that each of them completes once.
type reader struct {
	t    testing.TB
	r    *rand.Rand
	want []byte

	mayFail bool // reads may complete with an error
	damaged bool // their bytes may be wrong, with or without one
	most    int  // in flight
	failed  int
	onNext  func(n int)

	mu     sync.Mutex
	todo   []*Read
	flying map[*Read]bool
	given  int
	over   bool
	asleep bool
	wake   func()
}

func newReader(t testing.TB, r *rand.Rand, want []byte) *reader {
	f := &reader{t: t, r: r, want: want, most: 1000, flying: map[*Read]bool{}}
	if r != nil {
		f.most = 1 + r.IntN(20)
	}
	return f
}

func (f *reader) add(off, n int) {
	f.todo = append(f.todo, &Read{Off: int64(off), Buf: bytes.Repeat([]byte{0xbd}, n), Err: errMedium})
}

// line adds reads of n bytes for all of [from,to).
func (f *reader) line(from, to, n int) {
	for ; from < to; from += n {
		f.add(from, min(n, to-from))
	}
}

func (f *reader) Attach(wake func()) { f.wake = wake }

func (f *reader) Next() (*Read, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over {
		f.t.Error("Next after the end")
	}
	if len(f.todo) == 0 {
		return nil, true
	}
	if len(f.flying) >= f.most || f.asleep {
		return nil, false
	}
	if f.r != nil && f.r.IntN(10) == 0 { // nothing now, and only a wake-up will help
		f.asleep = true
		time.AfterFunc(time.Duration(f.r.IntN(200))*time.Microsecond, func() {
			f.mu.Lock()
			f.asleep = false
			f.mu.Unlock()
			f.wake()
		})
		return nil, false
	}
	r := f.todo[0]
	f.todo = f.todo[1:]
	f.flying[r] = true
	f.given++
	if f.onNext != nil {
		f.onNext(f.given)
	}
	return r, len(f.todo) == 0 && f.r != nil && f.r.IntN(2) == 0
}

func (f *reader) Complete(r *Read) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.over || !f.flying[r] {
		f.t.Errorf("a read at %d completed twice, or after the end", r.Off)
	}
	delete(f.flying, r)
	switch {
	case r.Err != nil:
		if f.failed++; !f.mayFail {
			f.t.Errorf("read at %d: %v", r.Off, r.Err)
		}
	case !f.damaged && !bytes.Equal(r.Buf, f.want[r.Off:r.Off+int64(len(r.Buf))]):
		f.t.Errorf("wrong bytes in the read of %d at %d", len(r.Buf), r.Off)
	}
}

// finished is called when the Feed has returned.
func (f *reader) finished() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.over = true
	require.Empty(f.t, f.flying, "reads that did not complete")
	if !f.mayFail {
		require.Empty(f.t, f.todo)
	}
}

// Whatever goes wrong: what is delivered is right, every read completes once, nothing is in flight or left afterwards.
func TestLZ4FeedProperties(t *testing.T) {
	defer goleak.VerifyNone(t, goleak.IgnoreCurrent())
	cases := 150
	if testing.Short() {
		cases = 40
	}
	outcomes := map[string]int{}
	for seed := range uint64(cases) {
		if !t.Run(fmt.Sprint("seed=", seed), func(t *testing.T) { outcomes[lz4Once(t, seed)]++ }) {
			return
		}
	}
	t.Log(outcomes)
	for _, o := range []error{nil, errMedium, errFeed, errCause} {
		require.NotZero(t, outcomes[fmt.Sprint(o)], "no case ended with %v: the test does not test", o)
	}
}

func lz4Once(t *testing.T, seed uint64) string {
	r := rand.New(rand.NewPCG(seed, 1))
	var want, framed []byte
	for range 1 + r.IntN(3) {
		content := someBytes(r, r.IntN(600_000))
		options := []lz4.Option{
			lz4.BlockSizeOption([]lz4.BlockSize{lz4.Block64Kb, lz4.Block256Kb}[r.IntN(2)]),
			lz4.BlockChecksumOption(r.IntN(2) == 0), lz4.ChecksumOption(r.IntN(2) == 0),
		}
		if r.IntN(2) == 0 {
			options = append(options, lz4.SizeOption(uint64(len(content))))
		}
		want = append(want, content...)
		framed = append(framed, frame(t, content, options...)...)
	}
	d := on(t, framed)
	d.queues, d.depth, d.seed, d.maxIO = 1+r.IntN(3), 1+r.IntN(4), seed, d.block*(1+r.IntN(200))
	workers := 1 + r.IntN(3)
	s, err := OpenLZ4(t.Context(), d, LZ4Config{Workers: workers, Memory: int64(workers+4+r.IntN(5)) * (270 << 10)})
	require.NoError(t, err)
	require.EqualValues(t, len(want), s.Size())

	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	f := newReader(t, r, want)
	if r.IntN(2) == 0 {
		f.line(r.IntN(len(want)+1), len(want), 1+r.IntN(200_000))
	}
	for range r.IntN(30) {
		off := r.IntN(len(want) + 1)
		f.add(off, r.IntN(min(len(want)-off, 200_000)+1))
	}
	at := int64(1 + r.IntN(20))
	var expected error
	switch r.IntN(6) {
	case 0:
		d.failAt, expected = at, errMedium
	case 1:
		d.breakAt, expected = at, errFeed
	case 2:
		d.onRead = func(n int64) {
			if n == at {
				cancel(errCause)
			}
		}
		expected = errCause
	case 3:
		f.onNext = func(n int) {
			if int64(n) == at {
				cancel(errCause)
			}
		}
		expected = errCause
	}
	f.mayFail = expected != nil
	err = s.Feed(ctx, f)
	f.finished()
	require.LessOrEqual(t, s.stats.decoded.Load(), int64(len(want))*int64(f.given+1))
	if err == nil {
		require.Empty(t, f.todo)
		require.Zero(t, f.failed)
		return fmt.Sprint(nil)
	}
	require.NotNil(t, expected, "%v", err)
	require.ErrorIs(t, err, expected)
	if expected == errMedium {
		var le *LZ4Error
		require.ErrorAs(t, err, &le)
		require.GreaterOrEqual(t, le.Block, 0)
	}
	// And again, from the same source, as if nothing had happened.
	d.failAt, d.breakAt, d.onRead = 0, 0, nil
	again := newReader(t, r, want)
	again.line(0, len(want), 50_000)
	require.NoError(t, s.Feed(t.Context(), again))
	again.finished()
	return expected.Error()
}

// Reads that the source cannot serve complete with an error, and the others do not suffer.
func TestLZ4FeedRange(t *testing.T) {
	want := make([]byte, 1000)
	s, err := OpenLZ4(t.Context(), on(t, frame(t, want)), LZ4Config{})
	require.NoError(t, err)
	f := newReader(t, nil, want)
	f.mayFail = true
	f.add(0, 1000)
	for _, off := range []int64{-1, 996, 1001, 1 << 62} {
		f.todo = append(f.todo, &Read{Off: off, Buf: make([]byte, 5)})
	}
	f.todo = append(f.todo, &Read{Buf: make([]byte, 5), Write: true})
	f.add(1000, 0)
	require.NoError(t, s.Feed(t.Context(), f))
	f.finished()
	require.Equal(t, 5, f.failed)
}

// A source that breaks its promises is an error, and what it may still write to is not given back.
func TestLZ4FaithlessSource(t *testing.T) {
	d := on(t, frame(t, make([]byte, 100)))
	s, err := OpenLZ4(t.Context(), &faithless{device: d}, LZ4Config{})
	require.NoError(t, err)
	f := newReader(t, nil, make([]byte, 100))
	f.mayFail = true
	f.add(0, 100)
	err = s.Feed(t.Context(), f)
	f.finished()
	require.Error(t, err)
	require.True(t, errors.Is(err, err))
}

// Several Feeds and ReadAts at once.
func TestLZ4Concurrent(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 1))
	want := someBytes(r, 1_500_000)
	s, err := OpenLZ4(t.Context(), on(t, frame(t, want, lz4.BlockSizeOption(lz4.Block64Kb))), LZ4Config{Workers: 2, Memory: 1 << 20})
	require.NoError(t, err)
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 9))
			f := newReader(t, r, want)
			for range 30 {
				off := r.IntN(len(want))
				f.add(off, r.IntN(min(100_000, len(want)-off)))
			}
			if err := s.Feed(t.Context(), f); err != nil {
				t.Error(err)
			}
			f.finished()
		})
		wg.Go(func() {
			r := rand.New(rand.NewPCG(uint64(i), 10))
			for range 30 {
				off := r.IntN(len(want) - 1000)
				p := make([]byte, 1000)
				if _, err := s.ReadAt(p, int64(off)); err != nil || !bytes.Equal(p, want[off:off+1000]) {
					t.Errorf("ReadAt %d: %v", off, err)
				}
			}
		})
	}
	wg.Wait()
}

// The buffer of a kept block goes to another one only when nobody copies out of it.
func TestLZ4KeepsWhatIsCopied(t *testing.T) {
	s, err := OpenLZ4(t.Context(), on(t, frame(t, make([]byte, 200_000), lz4.BlockSizeOption(lz4.Block64Kb))), LZ4Config{})
	require.NoError(t, err)
	f, b := s.frames[0], &lz4Buffer{}
	old := &lz4Work{frame: f, block: 0, out: b, settled: true, users: 1}
	e := &lz4Run{s: s, live: map[*lz4Block]*lz4Work{&f.blocks[0]: old}, kept: []*lz4Work{old}}
	w := &lz4Work{frame: f, block: 1}
	require.False(t, e.ready(w))
	require.Len(t, e.live, 1)
	old.users = 0
	require.True(t, e.ready(w))
	require.Same(t, b, w.out)
	require.Empty(t, e.live)
	require.Empty(t, e.kept)
}
