package queue_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

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

// A context that has ended keeps Do from sending at all; one that ends later says why.
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

	require.ErrorIs(t, q.Do(ctx, &queue.Command{SQE: nvme.Flush(2)}), context.Canceled)
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
