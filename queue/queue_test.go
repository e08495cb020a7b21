package queue_test

import (
	"context"
	"errors"
	"net"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// A configuration that cannot be is refused before a byte is sent, and the connection is closed.
func TestConfig(t *testing.T) {
	for what, cfg := range map[string]queue.Config{
		"depth -1":   {Depth: -1},
		"depth 4096": {Depth: queue.MaxDepth + 1},
		"HPDA 32":    {HPDA: 32},
		"MaxR2T 16":  {MaxR2T: 16},
	} {
		host, ctrl := net.Pipe()
		q, err := queue.New(t.Context(), host, cfg)
		require.ErrorContains(t, err, what)
		require.Nil(t, q)
		n, err := ctrl.Read(make([]byte, 1))
		require.Zero(t, n)
		require.Error(t, err)
	}
	for _, cfg := range []queue.Config{{Depth: 1}, {Depth: queue.MaxDepth}, {HPDA: 31}, {MaxR2T: 15}} {
		q, c := connect(t, queue.DriverConn, opts{cfg: cfg})
		p := submit(t, q, nvme.Flush(1))
		sqe, _ := c.command()
		c.send(c.response(nvme.CQE{CID: sqe.CID}))
		require.NoError(t, p.wait())
	}
}

// A context that has ended keeps Do from sending at all; it says why, as does one that ends later.
func TestDoContext(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{})
	ctx, cancel := context.WithCancelCause(t.Context())
	why := errors.New("the reason")
	ret := make(chan error)
	go func() { ret <- q.Do(ctx, &queue.Command{SQE: nvme.Flush(1)}) }()
	sqe, _ := c.command()
	cancel(why)
	require.ErrorIs(t, <-ret, why)
	c.send(c.response(nvme.CQE{CID: sqe.CID}))

	require.ErrorIs(t, q.Do(ctx, &queue.Command{SQE: nvme.Flush(2)}), why)
	submit(t, q, nvme.Flush(3))
	sqe, _ = c.command()
	require.EqualValues(t, 3, sqe.NSID)
}

// Completions may submit again, and the end of the queue completes those, too.
func TestSubmitFromDone(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{cfg: queue.Config{Depth: 2}})
		go c.serve(nil)
		var cmds [5]queue.Command
		left := 1000
		last := make(chan error, len(cmds))
		for i := range cmds {
			cmds[i].SQE = nvme.Flush(1)
			cmds[i].Done = func(cmd *queue.Command) {
				if left--; left > 0 && cmd.Err == nil {
					q.Submit(cmd)
					return
				}
				if left == 0 {
					go q.Close()
				}
				if cmd.Err == nil { // once more, with the end on its heels
					q.Submit(cmd)
					return
				}
				last <- cmd.Err
			}
			q.Submit(&cmds[i])
		}
		for range cmds {
			select {
			case err := <-last:
				require.ErrorIs(t, err, queue.ErrClosed)
			case <-time.After(10 * time.Second):
				require.FailNow(t, "a command did not complete")
			}
		}
		<-q.Done()
	})
}

// The limit of the connection's set-up is not one of the connection's life.
func TestICTimeoutEnds(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{cfg: queue.Config{ICTimeout: 500 * time.Millisecond}})
	time.Sleep(600 * time.Millisecond)
	p := submit(t, q, nvme.Flush(1))
	sqe, _ := c.command()
	c.send(c.response(nvme.CQE{CID: sqe.CID}))
	require.NoError(t, p.wait())
}

// A command that was cancelled once can be used again like any other.
func TestCancelledCommandAgain(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{})
	p := submit(t, q, read(512), make([]byte, 512))
	c.command()
	q.Cancel(p.cmd)
	require.ErrorIs(t, p.wait(), context.Canceled)
	again := &pending{t, p.cmd, make(chan struct{})}
	p.cmd.Done = func(*queue.Command) { close(again.done) }
	q.Submit(p.cmd)
	sqe, _ := c.command()
	other := submit(t, q, read(512), make([]byte, 512))
	c.command()
	q.Cancel(other.cmd)
	require.ErrorIs(t, other.wait(), context.Canceled)
	require.True(t, again.open())
	c.send(c.data(sqe.CID, 0, pdu.FlagLast|pdu.FlagSuccess, pattern(512, 1)))
	require.NoError(t, again.wait())
}

// What ends a queue first is what it ended of.
func TestFirstEnd(t *testing.T) {
	q, c := connect(t, queue.DriverConn, opts{})
	in, out := make(chan struct{}), make(chan struct{})
	q.Submit(&queue.Command{SQE: nvme.Flush(1), Done: func(*queue.Command) { // keeps the queue from looking
		close(in)
		<-out
	}})
	sqe, _ := c.command()
	c.send(c.response(nvme.CQE{CID: sqe.CID}))
	<-in
	why := errors.New("the reason")
	q.Fail(why)
	q.Fail(errors.New("another"))
	close(out)
	<-q.Done()
	require.ErrorIs(t, q.Err(), why)
}

// Only a goroutine that needs a thread of its own keeps one.
func TestLockedToThread(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		q, c := connect(t, d, opts{})
		p := submit(t, q, nvme.Flush(1))
		c.command()
		b := make([]byte, 1<<20)
		b = b[:runtime.Stack(b, true)]
		found := false
		for _, g := range strings.Split(string(b), "\n\n") {
			if strings.Contains(g, ".(*engine).loop(") {
				found = true
				header, _, _ := strings.Cut(g, "\n")
				require.Equal(t, d == queue.DriverURing, strings.Contains(header, "locked to thread"), header)
			}
		}
		require.True(t, found, "there is no queue")
		q.Close()
		require.Error(t, p.wait())
	})
}
