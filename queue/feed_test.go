package queue_test

import (
	"context"
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// serve answers every command on the controller's end: reads with blocks that carry their LBA, by SUCCESS
// or CapsuleResp in turn, everything else with success. It ends when the connection does.
func (c *controller) serve(blocks chan<- uint64) {
	var buf, out []byte
	in := make([]byte, 64<<10)
	turn := 0
	for {
		for {
			p, n, err := c.framing.Split(buf)
			if err != nil || n == 0 {
				break
			}
			var cmd pdu.CapsuleCmd
			var sqe nvme.SQE
			if cmd.Decode(p.Header) != nil || sqe.Decode(cmd.SQE[:]) != nil {
				return
			}
			buf = buf[n:]
			if blocks != nil {
				blocks <- sqe.SLBA()
			}
			if sqe.Opcode == nvme.OpRead {
				data := make([]byte, sqe.SGL.Length)
				for i := 0; i < len(data); i += 512 {
					binary.LittleEndian.PutUint64(data[i:], sqe.SLBA()+uint64(i/512))
				}
				turn++
				if turn%2 == 0 {
					out = append(out, c.data(sqe.CID, 0, pdu.FlagLast|pdu.FlagSuccess, data)...)
					continue
				}
				out = append(out, c.data(sqe.CID, 0, pdu.FlagLast, data)...)
			}
			out = append(out, c.response(nvme.CQE{CID: sqe.CID})...)
		}
		if _, err := c.conn.Write(out); err != nil {
			return
		}
		out = out[:0]
		n, err := c.conn.Read(in)
		if err != nil {
			return
		}
		buf = append(append([]byte(nil), buf...), in[:n]...)
	}
}

// countFeed hands out n reads and checks that everything happens once and on one goroutine at a time.
type countFeed struct {
	t         *testing.T
	free      []*queue.Command
	next, end uint64
	avail     atomic.Int64 // how many may be handed out; a Wake follows a change
	completed int
	failed    error
	closed    chan error
	busy      atomic.Bool
}

func newCountFeed(t *testing.T, n, avail, size int) *countFeed {
	f := &countFeed{t: t, end: uint64(n), closed: make(chan error, 1)}
	for range 16 {
		c := &queue.Command{}
		c.SetData(make([]byte, size))
		f.free = append(f.free, c)
	}
	f.avail.Store(int64(avail))
	return f
}

func (f *countFeed) alone() func() {
	if f.busy.Swap(true) {
		panic("feed called twice at a time")
	}
	return func() { f.busy.Store(false) }
}

func (f *countFeed) Next() *queue.Command {
	defer f.alone()()
	if f.next == f.end || len(f.free) == 0 || f.avail.Load() == 0 {
		return nil
	}
	f.avail.Add(-1)
	c := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	c.SQE = nvme.Read(1, f.next, uint16(len(c.Data[0])/512-1))
	f.next++
	return c
}

func (f *countFeed) Complete(c *queue.Command) {
	defer f.alone()()
	f.completed++
	if c.Err != nil {
		f.failed = c.Err
	} else if got := binary.LittleEndian.Uint64(c.Data[0]); got != c.SQE.SLBA() {
		f.failed = errors.New("wrong block")
	}
	f.free = append(f.free, c)
}

func (f *countFeed) Closed(err error) { f.closed <- err }

func TestFeed(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Depth: 8}})
		go c.serve(nil)
		const n = 3000
		f := newCountFeed(t, n, 0, 4096)
		q.Attach(f)
		for range 100 { // in portions, with a wake-up each
			f.avail.Add(n / 100)
			q.Wake()
			var cmd queue.Command // single commands go on beside it
			cmd.SQE = nvme.Flush(1)
			require.NoError(t, q.Do(t.Context(), &cmd))
		}
		for q.Stats().Commands < n+100 {
			time.Sleep(time.Millisecond)
		}
		q.Detach(f)
		require.NoError(t, <-f.closed)
		require.Equal(t, n, f.completed)
		require.NoError(t, f.failed)
		require.Len(t, f.free, 16)
		s := q.Stats()
		require.EqualValues(t, n+100, s.Commands)
		require.Zero(t, s.Errors)
		require.EqualValues(t, n*4096, s.Copied+s.Placed)
		require.Positive(t, s.Turns)
	})
}

func TestFeedOfDyingQueue(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Depth: 8}})
		f := newCountFeed(t, 100, 100, 512)
		q.Attach(f)
		for range 8 {
			c.command()
		}
		c.conn.Close()
		require.ErrorIs(t, <-f.closed, queue.ErrPathLost)
		require.Equal(t, 8, f.completed)
		require.ErrorIs(t, f.failed, queue.ErrPathLost)
		require.Len(t, f.free, 16)
		q.Attach(f)
		require.ErrorIs(t, <-f.closed, queue.ErrPathLost)
	})
}

// Whatever is going on when the queue is closed, every command completes once, and nothing is left.
func TestCloseAnytime(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		fds := 0
		for round := range 40 {
			if round == 5 { // whatever is made once has been made
				fds = openFDs(t)
			}
			t.Run("", func(t *testing.T) { closeAnytime(t, d, round) })
		}
		require.LessOrEqual(t, openFDs(t), fds, "leaked descriptors")
	})
}

func closeAnytime(t *testing.T, d queue.Driver, round int) {
	rnd := rand.New(rand.NewPCG(7, uint64(round)))
	q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Depth: 16}})
	var wg sync.WaitGroup
	wg.Go(func() { c.serve(nil) })
	f := newCountFeed(t, 1<<40, 1<<40, 4096)
	q.Attach(f)
	var submitted, completed atomic.Int64
	for range 4 {
		wg.Go(func() {
			for q.Err() == nil {
				var batch []*queue.Command
				for range 5 {
					once := new(atomic.Bool)
					batch = append(batch, &queue.Command{SQE: nvme.Flush(1), Done: func(*queue.Command) {
						if once.Swap(true) {
							panic("completed twice")
						}
						completed.Add(1)
					}})
				}
				submitted.Add(5)
				q.Submit(batch...)
				ctx, cancel := context.WithTimeout(context.Background(), time.Millisecond)
				buf := make([]byte, 4096)
				cmd := queue.Command{SQE: read(4096)}
				cmd.SetData(buf)
				err := q.Do(ctx, &cmd)
				clear(buf) // the race detector would see a late write of the driver that copies
				if err == nil && binary.LittleEndian.Uint64(buf) != 0 {
					panic("wrong block")
				}
				cancel()
			}
		})
	}
	time.Sleep(time.Duration(rnd.IntN(5000)) * time.Microsecond)
	if round%2 == 0 {
		require.NoError(t, q.Close())
		require.ErrorIs(t, q.Err(), queue.ErrClosed)
		require.NotErrorIs(t, q.Err(), queue.ErrPathLost)
	} else {
		c.conn.SetLinger(0)
		c.conn.Close()
		<-q.Done()
	}
	<-f.closed
	require.Len(t, f.free, 16)
	c.conn.Close()
	wg.Wait()
	require.Equal(t, submitted.Load(), completed.Load())
}

// The steady state allocates nothing, neither with a feed nor with single commands.
func TestNoAllocations(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1}})
		blob := c.data(0, 0, pdu.FlagLast|pdu.FlagSuccess, make([]byte, 4096))
		var wg sync.WaitGroup
		wg.Go(func() { // a controller that does not allocate either
			req := make([]byte, 72)
			for {
				for n := 0; n < len(req); {
					k, err := c.conn.Read(req[n:])
					if err != nil {
						return
					}
					n += k
				}
				copy(blob[8:10], req[10:12])
				if _, err := c.conn.Write(blob); err != nil {
					return
				}
			}
		})
		cmd := queue.Command{}
		cmd.SetData(make([]byte, 4096))
		ctx := context.Background()
		got := testing.AllocsPerRun(2000, func() {
			cmd.SQE = read(4096)
			if err := q.Do(ctx, &cmd); err != nil {
				panic(err)
			}
		})
		if !raceEnabled { // sync.Pool drops things at random there
			require.Zero(t, got)
		}
		c.conn.Close()
		wg.Wait()
	})
}

// A connection that is no socket is driven by the net.Conn driver, with a reason; another driver is refused.
func TestPipe(t *testing.T) {
	for _, d := range []queue.Driver{queue.DriverAuto, queue.DriverConn, queue.DriverEpoll, "nonsense"} {
		t.Run(string(d), func(t *testing.T) {
			host, ctrl := net.Pipe()
			go func() {
				req := make([]byte, 128)
				ctrl.Read(req)
				resp := pdu.ICResp{MAXH2CDATA: 4096}
				ctrl.Write(resp.Append(nil))
				for n := 0; n < 72; {
					k, err := ctrl.Read(req[n:])
					if err != nil {
						return
					}
					n += k
				}
				var r pdu.CapsuleResp
				copy(r.CQE[12:14], req[10:12])
				ctrl.Write(r.Append(nil, pdu.Layout{}))
			}()
			q, err := queue.New(t.Context(), host, queue.Config{Driver: d})
			if d == queue.DriverEpoll || d == "nonsense" {
				require.ErrorContains(t, err, string(d))
				ctrl.Close()
				return
			}
			require.NoError(t, err)
			require.Equal(t, queue.DriverConn, q.Info().Driver)
			require.NotEmpty(t, q.Info().Notes)
			cmd := queue.Command{SQE: nvme.Flush(1)}
			require.NoError(t, q.Do(t.Context(), &cmd))
			require.NoError(t, q.Close())
		})
	}
}

// A feed that goes on handing out what cannot be sent gets it back, and the queue can still be closed.
func TestFeedOfNonsense(t *testing.T) {
	q, _ := connect(t, queue.DriverConn, opts{})
	f := newCountFeed(t, 1<<40, 1<<40, 512)
	q.Attach(nonsense{f})
	for q.Stats().Errors == 0 {
		time.Sleep(time.Millisecond)
	}
	done := make(chan struct{})
	go func() {
		q.Close()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(5 * time.Second):
		require.FailNow(t, "the queue is busy for ever")
	}
	require.ErrorIs(t, <-f.closed, queue.ErrClosed)
	require.Len(t, f.free, 16)
}

// nonsense turns each command into one that moves no data but has some.
type nonsense struct{ *countFeed }

func (n nonsense) Next() *queue.Command {
	c := n.countFeed.Next()
	c.SQE.Opcode = nvme.OpFlush
	return c
}

// A feed that had nothing is asked again after Wake, also when nothing else goes on.
func TestFeedWake(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1}})
		go c.serve(nil)
		f := newCountFeed(t, 1<<40, 0, 512)
		q.Attach(f)
		for i := range uint64(3) {
			time.Sleep(20 * time.Millisecond) // it has been asked and is dry
			require.Equal(t, i, q.Stats().Commands)
			f.avail.Store(1)
			q.Wake()
			require.Eventually(t, func() bool { return q.Stats().Commands == i+1 }, 5*time.Second, time.Millisecond)
		}
	})
}

// A feed that had nothing because all its commands were out is asked again when one comes back.
func TestFeedOfOne(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1}})
		go c.serve(nil)
		f := newCountFeed(t, 50, 50, 512)
		f.free = f.free[:1]
		q.Attach(f)
		require.Eventually(t, func() bool { return q.Stats().Commands == 50 }, 5*time.Second, time.Millisecond)
	})
}

// A detached feed is asked no more, and closed when its last command has completed and not before.
func TestFeedDetach(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, Depth: 4}})
		f, other := newCountFeed(t, 1<<40, 1<<40, 512), newCountFeed(t, 1<<40, 0, 512)
		q.Attach(other)
		q.Attach(f)
		var cids []uint16
		for range 4 {
			sqe, _ := c.command()
			cids = append(cids, sqe.CID)
		}
		q.Detach(f)
		answer := func(cid uint16) {
			c.send(c.data(cid, 0, pdu.FlagLast|pdu.FlagSuccess, make([]byte, 512)))
		}
		for _, cid := range cids[:3] {
			answer(cid)
		}
		cmd := queue.Command{SQE: nvme.Flush(1)} // goes to the slots that are free now
		ret := make(chan error)
		go func() { ret <- q.Do(t.Context(), &cmd) }()
		sqe, _ := c.command()
		require.EqualValues(t, nvme.OpFlush, sqe.Opcode)
		c.send(c.response(nvme.CQE{CID: sqe.CID}))
		require.NoError(t, <-ret)
		require.Empty(t, f.closed)
		answer(cids[3])
		require.NoError(t, <-f.closed)
		require.Equal(t, 4, f.completed)
		require.Len(t, f.free, 16)
		require.Empty(t, other.closed, "another feed stays")
		q.Detach(other)
		require.NoError(t, <-other.closed, "with nothing outstanding it is closed at once")
	})
}
