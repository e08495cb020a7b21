package queue_test

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// forDrivers runs f once with each driver that this machine has.
func forDrivers(t *testing.T, f func(t *testing.T, d queue.Driver)) {
	t.Helper()
	for _, d := range drivers(t) {
		t.Run(string(d), func(t *testing.T) { f(t, d) })
	}
}

// controller is the other end of a queue, played by the test step by step. Its methods fail the test and
// are called on the test's goroutine.
type controller struct {
	t       *testing.T
	conn    *net.TCPConn
	framing pdu.Framing
	layout  pdu.Layout // of what the controller sends
	buf     []byte
}

// opts says how the two ends are set up; zero values are the plain case.
type opts struct {
	cfg        queue.Config
	cpda       uint8
	maxH2CData uint32
}

// connect returns a queue and the controller that it is connected to.
func connect(t *testing.T, d queue.Driver, o opts) (*queue.Queue, *controller) {
	t.Helper()
	if o.maxH2CData == 0 {
		o.maxH2CData = 128 << 10
	}
	o.cfg.Driver = d
	if o.cfg.Linger == 0 {
		o.cfg.Linger = 5 * time.Second // the tests close by themselves
	}
	host, ctrl := tcpPair(t)
	c := &controller{t: t, conn: ctrl, framing: pdu.Framing{Role: pdu.Controller, Align: o.cpda}}
	type made struct {
		q   *queue.Queue
		err error
	}
	ch := make(chan made, 1)
	go func() {
		q, err := queue.New(context.Background(), host, o.cfg)
		ch <- made{q, err}
	}()
	raw := c.next()
	var req pdu.ICReq
	require.NoError(t, req.Decode(raw.Header))
	resp := pdu.ICResp{CPDA: o.cpda, DGST: req.DGST, MAXH2CDATA: o.maxH2CData}
	c.send(resp.Append(nil))
	c.framing.Ready = true
	c.framing.Digests = req.DGST
	c.layout = pdu.Layout{Digests: req.DGST, Align: req.HPDA}
	m := <-ch
	require.NoError(t, m.err)
	t.Cleanup(func() {
		ctrl.Close()
		m.q.Close()
	})
	require.Equal(t, d, m.q.Info().Driver)
	return m.q, c
}

func tcpPair(t testing.TB) (host, ctrl *net.TCPConn) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	h, err := net.Dial("tcp", l.Addr().String())
	require.NoError(t, err)
	a, err := l.Accept()
	require.NoError(t, err)
	a.SetDeadline(time.Now().Add(20 * time.Second)) // no test hangs
	t.Cleanup(func() { a.Close() })
	return h.(*net.TCPConn), a.(*net.TCPConn)
}

// next receives one PDU; its parts stay valid until the test ends.
func (c *controller) next() pdu.Raw {
	c.t.Helper()
	for {
		p, n, err := c.framing.Split(c.buf)
		require.NoError(c.t, err)
		if n > 0 {
			c.buf = c.buf[n:]
			return p
		}
		b := make([]byte, 64<<10)
		k, err := c.conn.Read(b)
		require.NoError(c.t, err, "the queue sent no whole PDU")
		c.buf = append(append([]byte(nil), c.buf...), b[:k]...)
	}
}

// command receives a capsule.
func (c *controller) command() (nvme.SQE, []byte) {
	c.t.Helper()
	p := c.next()
	require.Equal(c.t, pdu.TypeCapsuleCmd, p.Type)
	require.False(c.t, p.BadData)
	var cmd pdu.CapsuleCmd
	var sqe nvme.SQE
	require.NoError(c.t, cmd.Decode(p.Header))
	require.NoError(c.t, sqe.Decode(cmd.SQE[:]))
	return sqe, p.Data
}

// h2cData receives an H2CData.
func (c *controller) h2cData() (pdu.Data, []byte) {
	c.t.Helper()
	p := c.next()
	require.Equal(c.t, pdu.TypeH2CData, p.Type)
	require.False(c.t, p.BadData)
	var d pdu.Data
	require.NoError(c.t, d.Decode(p.Header))
	return d, p.Data
}

func (c *controller) send(b []byte) {
	c.t.Helper()
	_, err := c.conn.Write(b)
	require.NoError(c.t, err)
}

func (c *controller) data(cid uint16, off int, flags pdu.Flags, b []byte) []byte {
	d := pdu.Data{Type: pdu.TypeC2HData, CCCID: cid, DATAO: uint32(off), Flags: flags}
	return d.Append(nil, c.layout, b)
}

func (c *controller) response(cqe nvme.CQE) []byte {
	var p pdu.CapsuleResp
	cqe.Append(p.CQE[:0])
	return p.Append(nil, c.layout)
}

func (c *controller) r2t(cid, ttag uint16, off, n int) []byte {
	p := pdu.R2T{CCCID: cid, TTAG: ttag, R2TO: uint32(off), R2TL: uint32(n)}
	return p.Append(nil, c.layout)
}

// termReq expects H2CTermReq as the queue's last word.
func (c *controller) termReq(fes pdu.FES, fei uint32) pdu.TermReq {
	c.t.Helper()
	p := c.next()
	require.Equal(c.t, pdu.TypeH2CTermReq, p.Type)
	var term pdu.TermReq
	require.NoError(c.t, term.Decode(append(append([]byte(nil), p.Header...), p.Data...)))
	require.Equal(c.t, fes.String(), term.FES.String())
	require.Equal(c.t, fei, term.FEI)
	c.conn.CloseWrite()
	c.closed()
	return term
}

// closed expects the queue to close the connection without another byte.
func (c *controller) closed() {
	c.t.Helper()
	n, err := io.Copy(io.Discard, c.conn)
	require.Zero(c.t, n+int64(len(c.buf)), "bytes after the last PDU")
	require.False(c.t, errors.Is(err, os.ErrDeadlineExceeded), "the queue did not close")
}

// pending is a command on its way.
type pending struct {
	t    *testing.T
	cmd  *queue.Command
	done chan struct{}
}

// submit starts a command with one buffer.
func submit(t *testing.T, q *queue.Queue, sqe nvme.SQE, data ...[]byte) *pending {
	p := &pending{t, &queue.Command{SQE: sqe, Data: data}, make(chan struct{})}
	p.cmd.Done = func(*queue.Command) { close(p.done) } // panics when it completes twice
	q.Submit(p.cmd)
	return p
}

func (p *pending) wait() error {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(20 * time.Second):
		require.FailNow(p.t, "the command did not complete")
	}
	return p.cmd.Err
}

func (p *pending) open() bool {
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

func read(n int) nvme.SQE  { return nvme.Read(1, 0, uint16(n/512-1)) }
func write(n int) nvme.SQE { return nvme.Write(1, 0, uint16(n/512-1)) }

// guarded is a buffer between two zones that must not change.
type guarded struct {
	t   *testing.T
	all []byte
	buf []byte
}

const guard = 64

func newGuarded(t *testing.T, n int) *guarded {
	g := &guarded{t: t, all: make([]byte, n+2*guard)}
	for i := range g.all {
		g.all[i] = 0xEE
	}
	g.buf = g.all[guard : guard+n : guard+n]
	return g
}

func (g *guarded) intact() {
	g.t.Helper()
	for _, b := range append(append([]byte(nil), g.all[:guard]...), g.all[len(g.all)-guard:]...) {
		require.EqualValues(g.t, 0xEE, b, "a byte outside the buffer was written")
	}
}

// pattern fills n bytes so that each place has its own value.
func pattern(n, seed int) []byte {
	b := make([]byte, n)
	x := uint32(seed)*2654435761 + 1
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

func openFDs(t *testing.T) int {
	ents, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		t.Logf("descriptors are not counted: %v", err)
		return 0
	}
	return len(ents)
}
