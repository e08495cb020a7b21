package queue_test

import (
	"context"
	"io"
	"net"
	"testing"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// FuzzStream lets a controller send anything after ICResp, while reads and writes are outstanding. Whatever
// it is, the queue ends in time, every command completes once, and no byte lands outside its buffer.
func FuzzStream(f *testing.F) {
	c := &controller{}
	const depth = 4
	cid := func(i int) uint16 { return 1<<2 | uint16(i) } // the first generation of each slot
	for _, dg := range digestSettings {
		c.layout = pdu.Layout{Digests: dg}
		how := byte(0)
		if dg.Header {
			how |= 1
		}
		if dg.Data {
			how |= 2
		}
		all := c.data(cid(0), 0, 0, pattern(512, 1))
		all = append(all, c.data(cid(0), 512, pdu.FlagLast|pdu.FlagSuccess, pattern(4096-512, 1))...)
		all = append(all, c.r2t(cid(1), 7, 0, 4096)...)
		all = append(all, c.response(nvme.CQE{CID: cid(1)})...)
		all = append(all, c.data(cid(2), 0, pdu.FlagLast, pattern(100<<10, 1))...)
		all = append(all, c.response(nvme.CQE{CID: cid(2)})...)
		f.Add(how, all)
		f.Add(how|4, all)
		for _, h := range hostile {
			if h.dg == dg {
				f.Add(how, h.send(c, cid(0), cid(1), cid(1), cid(3)))
			}
		}
	}
	f.Fuzz(func(t *testing.T, how byte, stream []byte) {
		cfg := queue.Config{
			QID: 1, Depth: depth, Linger: 20 * time.Millisecond, CommandTimeout: 5 * time.Second,
			Digests: pdu.Digests{Header: how&1 != 0, Data: how&2 != 0}, Driver: queue.DriverConn,
		}
		host, ctrl := net.Pipe()
		if ds := drivers(t); how&4 != 0 {
			h, c := tcpPair(t)
			host, ctrl, cfg.Driver = h, c, ds[int(how>>3)%len(ds)]
		}
		go func() {
			io.ReadFull(ctrl, make([]byte, 128))
			resp := pdu.ICResp{MAXH2CDATA: 4096, DGST: cfg.Digests}
			ctrl.Write(resp.Append(nil))
		}()
		q, err := queue.New(context.Background(), host, cfg)
		if err != nil {
			t.Fatal(err)
		}
		small, large := newGuarded(t, 4096), newGuarded(t, 100<<10)
		all := []*pending{
			submit(t, q, read(4096), small.buf),
			submit(t, q, write(4096), make([]byte, 4096)),
			submit(t, q, read(100<<10), large.buf[:1000:1000], large.buf[1000:]),
			submit(t, q, nvme.Flush(1)),
		}
		go io.Copy(io.Discard, ctrl)
		ctrl.Write(stream)
		ctrl.Close()
		for _, p := range all {
			p.wait()
		}
		<-q.Done()
		small.intact()
		large.intact()
	})
}
