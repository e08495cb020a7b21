package queue_test

import (
	"context"
	"fmt"
	"net"
	"testing"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// BenchmarkRead reads from a responder in this process over loopback: by a feed with one or 32 reads
// outstanding, and by Do from one goroutine.
func BenchmarkRead(b *testing.B) {
	for _, d := range drivers(b) {
		for _, size := range []int{4 << 10, 128 << 10, 1 << 20} {
			for _, depth := range []int{1, 32} {
				b.Run(fmt.Sprintf("%s/%dKiB/feed%d", d, size>>10, depth), func(b *testing.B) {
					benchFeed(b, benchQueue(b, d, depth), size, depth)
				})
			}
			b.Run(fmt.Sprintf("%s/%dKiB/do", d, size>>10), func(b *testing.B) { benchDo(b, benchQueue(b, d, 1), size) })
		}
	}
}

func benchFeed(b *testing.B, q *queue.Queue, size, depth int) {
	f := &benchSource{cmds: make([]queue.Command, depth), todo: b.N, left: b.N, done: make(chan error, 1)}
	for i := range f.cmds {
		f.cmds[i].SQE = read(size)
		f.cmds[i].SetData(make([]byte, size))
		f.free = append(f.free, &f.cmds[i])
	}
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	q.Attach(f)
	if err := <-f.done; err != nil {
		b.Fatal(err)
	}
}

// benchSource hands out each of its commands again and again.
type benchSource struct {
	cmds       []queue.Command
	free       []*queue.Command // the last one back is the next one out
	todo, left int
	done       chan error
}

func (f *benchSource) Next() *queue.Command {
	if f.todo == 0 || len(f.free) == 0 {
		return nil
	}
	f.todo--
	c := f.free[len(f.free)-1]
	f.free = f.free[:len(f.free)-1]
	return c
}

func (f *benchSource) Complete(c *queue.Command) {
	f.free = append(f.free, c)
	if f.left--; f.left == 0 || c.Err != nil {
		f.todo = 0
		select {
		case f.done <- c.Err:
		default:
		}
	}
}

func (f *benchSource) Closed(error) {}

func benchDo(b *testing.B, q *queue.Queue, size int) {
	c := queue.Command{SQE: read(size)}
	c.SetData(make([]byte, size))
	b.SetBytes(int64(size))
	b.ReportAllocs()
	b.ResetTimer()
	for range b.N {
		if err := q.Do(context.Background(), &c); err != nil {
			b.Fatal(err)
		}
	}
}

// benchQueue is connected to a controller that answers reads with C2HData and SUCCESS, in batches and
// without allocating.
func benchQueue(b *testing.B, d queue.Driver, depth int) *queue.Queue {
	host, ctrl := tcpPair(b)
	go func() {
		in := make([]byte, 72*64)
		n, err := 0, error(nil)
		for n < 128 && err == nil { // ICReq
			var k int
			k, err = ctrl.Read(in[n:128])
			n += k
		}
		resp := pdu.ICResp{MAXH2CDATA: 128 << 10}
		ctrl.Write(resp.Append(nil))
		var (
			data   = make([]byte, 1<<20)
			heads  = make([]byte, 0, 24*64)
			list   = make([][]byte, 0, 2*64)
			sqe    nvme.SQE
			h      = pdu.Data{Type: pdu.TypeC2HData, Flags: pdu.FlagLast | pdu.FlagSuccess}
			out    net.Buffers
			filled int
		)
		for {
			k, err := ctrl.Read(in[filled:])
			if err != nil {
				return
			}
			filled += k
			heads, list = heads[:0], list[:0]
			for ; filled >= 72; filled = copy(in, in[72:filled]) {
				sqe.Decode(in[8:72])
				h.CCCID, h.DATAL = sqe.CID, sqe.SGL.Length
				heads = h.AppendHeader(heads, pdu.Layout{})
				list = append(list, heads[len(heads)-24:], data[:h.DATAL])
			}
			out = list
			if _, err := out.WriteTo(ctrl); err != nil {
				return
			}
		}
	}()
	q, err := queue.New(context.Background(), host, queue.Config{QID: 1, Depth: depth, Driver: d})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { q.Close() })
	return q
}
