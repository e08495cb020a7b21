package queue_test

import (
	"context"
	"io"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// slowConn is a connection whose Write takes a while to let go of the bytes after it has failed.
type slowConn struct {
	net.Conn
	using   atomic.Int32 // calls of Write that have not returned
	changed atomic.Bool  // the bytes of one did change meanwhile
}

func (c *slowConn) Write(b []byte) (int, error) {
	c.using.Add(1)
	defer c.using.Add(-1)
	first := b[0]
	n, err := c.Conn.Write(b)
	if err != nil {
		time.Sleep(30 * time.Millisecond)
	}
	if b[0] != first {
		c.changed.Store(true)
	}
	return n, err
}

// Whatever ends a queue in the middle of a write, the buffer comes back when nobody sends from it any more.
func TestF05BufferOfUnfinishedWrite(t *testing.T) {
	const n = 64 << 10
	for how, end := range map[string]struct {
		do func(q *queue.Queue, ctrl net.Conn, cancel func())
		is error
	}{
		"closed here":  {func(q *queue.Queue, _ net.Conn, _ func()) { go q.Close() }, queue.ErrClosed},
		"closed there": {func(_ *queue.Queue, ctrl net.Conn, _ func()) { ctrl.Close() }, queue.ErrPathLost},
		"timed out":    {func(*queue.Queue, net.Conn, func()) {}, queue.ErrTimeout},
		"cancelled":    {func(_ *queue.Queue, _ net.Conn, cancel func()) { cancel() }, queue.ErrTimeout},
		"breach":       {func(_ *queue.Queue, ctrl net.Conn, _ func()) { ctrl.Write(make([]byte, 24)) }, queue.ErrProtocol},
	} {
		t.Run(how, func(t *testing.T) {
			host, ctrl := net.Pipe()
			defer ctrl.Close()
			conn := &slowConn{Conn: host}
			c := &controller{t: t, framing: pdu.Framing{Role: pdu.Controller, Ready: true}}
			go func() {
				io.ReadFull(ctrl, make([]byte, 128))
				resp := pdu.ICResp{MAXH2CDATA: 4096}
				ctrl.Write(resp.Append(nil))
			}()
			timeout := time.Minute
			if how == "timed out" {
				timeout = time.Second
			}
			q, err := queue.New(t.Context(), conn, queue.Config{QID: 1, Linger: 20 * time.Millisecond, CommandTimeout: timeout})
			require.NoError(t, err)
			defer q.Close()

			buf := pattern(n, 1)
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ret := make(chan error, 1)
			go func() {
				cmd := queue.Command{SQE: nvme.Write(1, 0, n/512-1)}
				cmd.SetData(buf)
				err := q.Do(ctx, &cmd)
				if conn.using.Load() != 0 {
					conn.changed.Store(true)
				}
				clear(buf) // it is ours again
				ret <- err
			}()
			capsule := make([]byte, 72)
			_, err = io.ReadFull(ctrl, capsule)
			require.NoError(t, err)
			p, _, err := c.framing.Split(capsule)
			require.NoError(t, err)
			var cmd pdu.CapsuleCmd
			var sqe nvme.SQE
			require.NoError(t, cmd.Decode(p.Header))
			require.NoError(t, sqe.Decode(cmd.SQE[:]))
			_, err = ctrl.Write(c.r2t(sqe.CID, 1, 0, n))
			require.NoError(t, err)
			_, err = io.ReadFull(ctrl, make([]byte, 24+1000)) // and then no more
			require.NoError(t, err)

			end.do(q, ctrl, cancel)
			require.ErrorIs(t, <-ret, end.is)
			require.False(t, conn.changed.Load(), "the buffer was given back while it was being sent from")
		})
	}
}
