package e2e

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// Random writes and reads against a model in memory, with every digest setting and on both block sizes.
func TestRandomIO(t *testing.T) {
	forDrivers(t, func(t *testing.T, tg *target, d queue.Driver) {
		for i, dg := range []struct{ header, data bool }{{}, {header: true}, {data: true}, {true, true}} {
			t.Run(fmt.Sprintf("hdgst=%v,ddgst=%v", dg.header, dg.data), func(t *testing.T) {
				sub := tg.connect(t, nvmetcp.Options{Driver: d, NumIOQueues: 1 + i, HeaderDigest: dg.header, DataDigest: dg.data})
				for _, q := range sub.Controller().Queues {
					require.Equal(t, d, q.Driver)
					require.Equal(t, dg.header, q.Digests.Header)
					require.Equal(t, dg.data, q.Digests.Data)
				}
				for _, s := range tg.spaces {
					randomIO(t, sub, s, uint64(i))
				}
			})
		}
	})
}

const modelSize = 4 << 20

func randomIO(t *testing.T, sub *nvmetcp.Subsystem, s namespace, seed uint64) {
	ctx := deadline(t)
	rnd := rand.New(rand.NewPCG(seed, uint64(s.blockSize)))
	ns, err := sub.Namespace(ctx, s.nsid)
	require.NoError(t, err)
	require.Equal(t, s.blockSize, ns.BlockSize())
	require.Equal(t, s.size, ns.Size())
	model := fill(rnd, make([]byte, modelSize))
	n, err := ns.WriteAtContext(ctx, model, 0)
	require.NoError(t, err)
	require.Equal(t, modelSize, n)

	for range 30 { // blocks, in capsules and by R2T
		k := s.blockSize * (1 + rnd.IntN(1<<rnd.IntN(7)))
		off := rnd.IntN((modelSize-k)/s.blockSize) * s.blockSize
		fill(rnd, model[off:off+k])
		_, err := ns.WriteAtContext(ctx, model[off:off+k], int64(off))
		require.NoError(t, err)
	}
	require.NoError(t, ns.Flush(ctx))

	check := func(off int, got []byte) {
		for i, b := range got {
			if b != model[off+i] {
				same := bytes.Index(model, got[i:min(i+32, len(got))])
				require.FailNow(t, "wrong data", "%d bytes at %d differ at %d; what is there belongs to %d", len(got), off, off+i, same)
			}
		}
	}
	for range 30 { // any bytes
		off := rnd.IntN(modelSize)
		k := rnd.IntN(min(modelSize-off, 1<<rnd.IntN(22)) + 1)
		const guard = 64
		buf := bytes.Repeat([]byte{0xEE}, guard+k+guard)
		n, err := ns.ReadAtContext(ctx, buf[guard:guard+k:guard+k], int64(off))
		require.NoError(t, err)
		require.Equal(t, k, n)
		check(off, buf[guard:guard+k])
		require.Equal(t, bytes.Repeat([]byte{0xEE}, guard), buf[:guard])
		require.Equal(t, bytes.Repeat([]byte{0xEE}, guard), buf[guard+k:])
	}

	off := rnd.IntN(1000) // one range into several buffers
	bufs := [][]byte{make([]byte, 1), make([]byte, 70000), nil, make([]byte, 3), make([]byte, 200000)}
	_, err = ns.ReadVAt(ctx, bufs, int64(off))
	require.NoError(t, err)
	check(off, bytes.Join(bufs, nil))

	var batch []*nvmetcp.Read // many at once
	for range 100 {
		batch = append(batch, &nvmetcp.Read{Off: int64(rnd.IntN(modelSize - 5000)), Buf: make([]byte, 1+rnd.IntN(5000))})
	}
	require.NoError(t, ns.ReadBatch(ctx, batch))
	for _, r := range batch {
		require.NoError(t, r.Err)
		check(int(r.Off), r.Buf)
	}

	f := &fullFeed{size: modelSize, chunk: 100_001} // bulk
	require.NoError(t, ns.Feed(ctx, f))
	require.Len(t, f.got, (modelSize+100_000)/100_001)
	for _, r := range f.got {
		require.NoError(t, r.Err)
		check(int(r.Off), r.Buf)
	}
}

func fill(rnd *rand.Rand, b []byte) []byte {
	for i := 0; i+8 <= len(b); i += 8 {
		x := rnd.Uint64()
		for j := range 8 {
			b[i+j] = byte(x >> (8 * j))
		}
	}
	return b
}

// fullFeed reads the first size bytes in chunks.
type fullFeed struct {
	mu    sync.Mutex
	off   int
	size  int
	chunk int
	got   []*nvmetcp.Read
}

func (f *fullFeed) Attach(func()) {}

func (f *fullFeed) Next() (*nvmetcp.Read, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off == f.size {
		return nil, true
	}
	r := &nvmetcp.Read{Off: int64(f.off), Buf: make([]byte, min(f.chunk, f.size-f.off))}
	f.off += len(r.Buf)
	return r, false
}

func (f *fullFeed) Complete(r *nvmetcp.Read) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.got = append(f.got, r)
}

// F01, F02: reads and writes larger than any target takes at once are split.
func TestF01F02LargeIO(t *testing.T) {
	forDrivers(t, func(t *testing.T, tg *target, d queue.Driver) {
		ctx := deadline(t)
		sub := tg.connect(t, nvmetcp.Options{Driver: d, NumIOQueues: 2})
		ns, err := sub.Namespace(ctx, 1)
		require.NoError(t, err)
		want := fill(rand.New(rand.NewPCG(9, 9)), make([]byte, 9<<20))
		_, err = ns.WriteAtContext(ctx, want, 512)
		require.NoError(t, err)
		got := make([]byte, len(want))
		_, err = ns.ReadAtContext(ctx, got, 512)
		require.NoError(t, err)
		require.True(t, bytes.Equal(want, got))
	})
}

// What cannot be done is refused with an error that says so, and nothing is half done.
func TestRefusals(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		ctx := deadline(t)
		sub := tg.connect(t, nvmetcp.Options{})
		_, err := sub.Namespace(ctx, 77)
		require.ErrorIs(t, err, nvmetcp.ErrNoNamespace)
		list, err := sub.Namespaces(ctx)
		require.NoError(t, err)
		require.Subset(t, list, []uint32{1, 2})
		ns, err := sub.Namespace(ctx, 2)
		require.NoError(t, err)
		before := make([]byte, 8192)
		_, err = ns.ReadAt(before, 0)
		require.NoError(t, err)
		_, err = ns.WriteAt(make([]byte, 4096), 512)
		require.ErrorIs(t, err, nvmetcp.ErrUnaligned)
		_, err = ns.WriteAt(make([]byte, 100), 0)
		require.ErrorIs(t, err, nvmetcp.ErrUnaligned)
		_, err = ns.WriteAt(make([]byte, 8192), ns.Size()-4096)
		require.ErrorIs(t, err, nvmetcp.ErrRange)
		after := make([]byte, 8192)
		_, err = ns.ReadAt(after, 0)
		require.NoError(t, err)
		require.Equal(t, before, after)

		n, err := ns.ReadAt(make([]byte, 100), ns.Size()-30)
		require.ErrorIs(t, err, io.EOF)
		require.Equal(t, 30, n)
		n, err = ns.ReadAt(make([]byte, 1), ns.Size())
		require.ErrorIs(t, err, io.EOF)
		require.Zero(t, n)
	})
}

// The controller goes away in the middle of many reads: each of them ends, with an error that says so.
func TestTargetGone(t *testing.T) {
	forDrivers(t, func(t *testing.T, tg *target, d queue.Driver) {
		t.Cleanup(func() { tg.mend(t) })
		ctx := deadline(t)
		sub := tg.connect(t, nvmetcp.Options{Driver: d, NumIOQueues: 2})
		ns, err := sub.Namespace(ctx, 1)
		require.NoError(t, err)
		var wg sync.WaitGroup
		errs := make([]error, 4)
		for i := range errs {
			wg.Go(func() {
				for errs[i] == nil && ctx.Err() == nil {
					_, errs[i] = ns.ReadAtContext(ctx, make([]byte, 1<<20), int64(i)<<20)
				}
			})
		}
		time.Sleep(50 * time.Millisecond)
		tg.cut(t)
		wg.Wait()
		require.NoError(t, ctx.Err())
		for _, err := range errs {
			require.ErrorIs(t, err, nvmetcp.ErrPathLost)
			require.Contains(t, err.Error(), tg.addr[0])
		}
		<-sub.Done()
		require.ErrorIs(t, sub.Err(), nvmetcp.ErrPathLost)
		_, err = ns.ReadAt(make([]byte, 1), 0)
		require.ErrorIs(t, err, nvmetcp.ErrPathLost)
	})
}

// A cancelled read returns at once, its buffer is the caller's, and the association goes on.
func TestCancelledReads(t *testing.T) {
	forDrivers(t, func(t *testing.T, tg *target, d queue.Driver) {
		sub := tg.connect(t, nvmetcp.Options{Driver: d, NumIOQueues: 1})
		ns, err := sub.Namespace(deadline(t), 1)
		require.NoError(t, err)
		buf := make([]byte, 8<<20)
		cancelled := 0
		for i := range 20 {
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i*i)*50*time.Microsecond)
			_, err := ns.ReadAtContext(ctx, buf, 0)
			cancel()
			if err != nil {
				require.ErrorIs(t, err, context.DeadlineExceeded)
				cancelled++
			}
			clear(buf)
			time.Sleep(time.Millisecond)
			for _, b := range buf[:64<<10] {
				require.Zero(t, b, "written after the read had returned")
			}
		}
		require.Positive(t, cancelled)
		_, err = ns.ReadAtContext(deadline(t), buf, 0)
		require.NoError(t, err)
	})
}

// F18: an association that does nothing stays alive by Keep Alive.
func TestF18KeepAlive(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		sub := tg.connect(t, nvmetcp.Options{KeepAlive: time.Second})
		ns, err := sub.Namespace(deadline(t), 1)
		require.NoError(t, err)
		time.Sleep(3 * time.Second)
		require.NoError(t, sub.Err())
		_, err = ns.ReadAt(make([]byte, 1), 0)
		require.NoError(t, err)
		require.Positive(t, sub.Stats().KeepAliveRTT)
	})
}

// Many associations, one after another and some at a time, are made and shut down in good order.
func TestManyAssociations(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		for range 5 {
			var wg sync.WaitGroup
			for range 2 {
				wg.Go(func() {
					sub, err := host(t).Connect(deadline(t), nvmetcp.Target{Addr: tg.addr[0], NQN: tg.multi}, &nvmetcp.Options{NumIOQueues: 2})
					if err == nil {
						err = sub.Close()
					}
					if err != nil {
						t.Error(err)
					}
				})
			}
			wg.Wait()
		}
	})
}

// F34, and the error's text: a status of the target reaches the caller as it is.
func TestStatus(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		_, err := host(t).Connect(deadline(t), nvmetcp.Target{Addr: tg.addr[0], NQN: "nqn.2025-01.io.example:absent"}, nil)
		var st nvme.Status
		require.ErrorAs(t, err, &st)
		require.EqualValues(t, 0x182, st.Code())
		require.ErrorContains(t, err, "nqn.2025-01.io.example:absent")
		require.ErrorContains(t, err, tg.addr[0])
		require.False(t, tg.real && !st.DNR(), "nvmet sets DNR")
	})
}
