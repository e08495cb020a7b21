package nvmetest

import (
	"errors"
	"fmt"
	"io"
	"net"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// host is a scripted host: one queue that is driven PDU by PDU.
type host struct {
	t      *testing.T
	nc     net.Conn
	in     pdu.Framing
	out    pdu.Layout
	icresp pdu.ICResp
	cid    uint16
	buf    []byte
}

const testHostNQN = "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-def0-1234-56789abcdef0"

var testHostID = fabrics.HostID{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0}

// dial connects and exchanges ICReq and ICResp.
func dial(t *testing.T, addr string, req pdu.ICReq) *host {
	t.Helper()
	h := dialRaw(t, addr)
	h.ic(req)
	return h
}

// ic exchanges ICReq and ICResp.
func (h *host) ic(req pdu.ICReq) {
	h.t.Helper()
	h.write(req.Append(nil))
	p := h.read()
	require.Equal(h.t, pdu.TypeICResp, p.Type)
	require.NoError(h.t, h.icresp.Decode(p.Header))
	h.in.Ready, h.in.Digests, h.in.Align = true, h.icresp.DGST, req.HPDA
	h.out = pdu.Layout{Digests: h.icresp.DGST, Align: h.icresp.CPDA}
}

func dialRaw(t *testing.T, addr string) *host {
	t.Helper()
	nc, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { nc.Close() })
	require.NoError(t, nc.SetDeadline(time.Now().Add(10*time.Second)))
	return &host{t: t, nc: nc, in: pdu.Framing{Role: pdu.Host}}
}

func (h *host) write(b []byte) {
	h.t.Helper()
	_, err := h.nc.Write(b)
	require.NoError(h.t, err)
}

// next reads one PDU, or the error that ended the connection.
func (h *host) next() (pdu.Raw, error) {
	for {
		p, n, err := h.in.Split(h.buf)
		if err != nil {
			return p, err
		}
		if n > 0 {
			h.buf = h.buf[n:]
			return p, nil
		}
		b := make([]byte, 64<<10)
		k, err := h.nc.Read(b)
		if k == 0 {
			return p, err
		}
		h.buf = append(append([]byte(nil), h.buf...), b[:k]...)
	}
}

func (h *host) read() pdu.Raw {
	h.t.Helper()
	p, err := h.next()
	require.NoError(h.t, err)
	return p
}

// closed expects that the connection ended without another PDU.
func (h *host) closed() {
	h.t.Helper()
	p, err := h.next()
	require.Error(h.t, err, "got a %v", p.Type)
	require.False(h.t, errors.Is(err, errTimeout(err)), "the connection is still open: %v", err)
}

func errTimeout(err error) error {
	var ne net.Error
	if errors.As(err, &ne) && ne.Timeout() {
		return err
	}
	return io.ErrNoProgress
}

// term expects a C2HTermReq and then the end.
func (h *host) term(fes pdu.FES, fei uint32) {
	h.t.Helper()
	p := h.read()
	require.Equal(h.t, pdu.TypeC2HTermReq, p.Type)
	var term pdu.TermReq
	require.NoError(h.t, term.Decode(append(append([]byte(nil), p.Header...), p.Data...)))
	require.Equal(h.t, fes, term.FES, "%v", &term)
	require.Equal(h.t, fei, term.FEI, "%v", &term)
	h.nc.Close()
}

// result is what a command came to.
type result struct {
	cqe     nvme.CQE
	data    []byte
	pieces  int // C2HData
	r2ts    int
	success bool // told by SUCCESS
}

// send sends a command with the data in the capsule (nil for none), and returns its CID.
func (h *host) send(sqe nvme.SQE, inCapsule []byte) uint16 {
	h.t.Helper()
	h.cid++
	sqe.CID = h.cid
	if inCapsule != nil {
		sqe.SGL = nvme.SGL{ID: nvme.SGLInCapsule, Length: uint32(len(inCapsule))}
	} else if sqe.SGL.ID == 0 {
		sqe.SGL.ID = nvme.SGLTransport
	}
	var p pdu.CapsuleCmd
	sqe.Append(p.SQE[:0])
	h.write(p.Append(nil, h.out, inCapsule))
	return sqe.CID
}

// wait handles PDUs until the command cid ends, and answers R2Ts from data.
func (h *host) wait(cid uint16, length int, data []byte) result {
	h.t.Helper()
	var r result
	for {
		p := h.read()
		switch p.Type {
		case pdu.TypeCapsuleResp:
			var c pdu.CapsuleResp
			require.NoError(h.t, c.Decode(p.Header))
			require.NoError(h.t, r.cqe.Decode(c.CQE[:]))
			require.Equal(h.t, cid, r.cqe.CID)
			return r
		case pdu.TypeC2HData:
			var d pdu.Data
			require.NoError(h.t, d.Decode(p.Header))
			require.Equal(h.t, cid, d.CCCID)
			require.Equal(h.t, len(r.data), int(d.DATAO))
			require.False(h.t, p.BadData)
			r.data = append(r.data, p.Data...)
			r.pieces++
			require.Equal(h.t, len(r.data) == length, d.Flags.Has(pdu.FlagLast))
			if d.Flags.Has(pdu.FlagSuccess) {
				r.success = true
				r.cqe.CID = cid
				return r
			}
		case pdu.TypeR2T:
			var t pdu.R2T
			require.NoError(h.t, t.Decode(p.Header))
			require.Equal(h.t, cid, t.CCCID)
			r.r2ts++
			h.h2c(t, data)
		default:
			h.t.Fatalf("unexpected %v", p.Type)
		}
	}
}

// h2c answers an R2T.
func (h *host) h2c(t pdu.R2T, data []byte) {
	h.t.Helper()
	for off, end := t.R2TO, t.R2TO+t.R2TL; off < end; {
		n := min(end-off, h.icresp.MAXH2CDATA)
		d := pdu.Data{Type: pdu.TypeH2CData, CCCID: t.CCCID, TTAG: t.TTAG, DATAO: off}
		if off+n == end {
			d.Flags = pdu.FlagLast
		}
		h.write(d.Append(nil, h.out, data[off:off+n]))
		off += n
	}
}

// do runs a command that brings length bytes.
func (h *host) do(sqe nvme.SQE, length int) result {
	h.t.Helper()
	sqe.SGL.Length = uint32(length)
	return h.wait(h.send(sqe, nil), length, nil)
}

// doWrite runs a command with data by R2T.
func (h *host) doWrite(sqe nvme.SQE, data []byte) result {
	h.t.Helper()
	sqe.SGL = nvme.SGL{ID: nvme.SGLTransport, Length: uint32(len(data))}
	return h.wait(h.send(sqe, nil), 0, data)
}

// doInCapsule runs a command with data in its capsule.
func (h *host) doInCapsule(sqe nvme.SQE, data []byte) result {
	h.t.Helper()
	return h.wait(h.send(sqe, data), 0, nil)
}

func connectData(t *testing.T, subNQN string, cntlid uint16) []byte {
	d := fabrics.ConnectData{HostID: testHostID, CNTLID: cntlid, SubNQN: subNQN, HostNQN: testHostNQN}
	b, err := d.Append(nil)
	require.NoError(t, err)
	return b
}

func (h *host) connect(req fabrics.Connect, subNQN string, cntlid uint16) result {
	h.t.Helper()
	return h.doInCapsule(req.SQE(), connectData(h.t, subNQN, cntlid))
}

func (h *host) getProperty(p fabrics.Property) uint64 {
	h.t.Helper()
	get := fabrics.GetProperty(p)
	r := h.do(get.SQE(), 0)
	require.True(h.t, r.cqe.Status.OK(), r.cqe.Status)
	return r.cqe.Result()
}

func (h *host) setCC(cc fabrics.CC) {
	h.t.Helper()
	set := fabrics.SetProperty(fabrics.PropertyCC, uint64(cc))
	r := h.do(set.SQE(), 0)
	require.True(h.t, r.cqe.Status.OK(), r.cqe.Status)
}

// admin connects an admin queue and enables the controller.
func admin(t *testing.T, addr, subNQN string, req pdu.ICReq) (*host, uint16) {
	t.Helper()
	h := dial(t, addr, req)
	r := h.connect(fabrics.Connect{SQSIZE: 31, KATO: 30000}, subNQN, fabrics.CNTLIDDynamic)
	require.True(t, r.cqe.Status.OK(), r.cqe.Status)
	h.enable()
	return h, uint16(r.cqe.DW0)
}

func (h *host) enable() {
	h.t.Helper()
	h.setCC(fabrics.CCDefault)
	h.setCC(fabrics.CCDefault.WithEN(true))
	for {
		csts := fabrics.CSTS(h.getProperty(fabrics.PropertyCSTS))
		require.False(h.t, csts.CFS())
		if csts.RDY() {
			return
		}
		time.Sleep(time.Millisecond)
	}
}

// ioQueue connects I/O queue 1 after an admin queue.
func ioQueue(t *testing.T, addr, subNQN string, req pdu.ICReq, cattr fabrics.CATTR) (adm, io *host) {
	t.Helper()
	adm, cntlid := admin(t, addr, subNQN, req)
	r := adm.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(1, 1), false), 0)
	require.True(t, r.cqe.Status.OK(), r.cqe.Status)
	io = dial(t, addr, req)
	r = io.connect(fabrics.Connect{QID: 1, SQSIZE: 31, CATTR: cattr}, subNQN, cntlid)
	require.True(t, r.cqe.Status.OK(), r.cqe.Status)
	require.Equal(t, cntlid, uint16(r.cqe.DW0))
	return adm, io
}

// start starts a target that ends with the test, which must have had a host without violations.
func start(t *testing.T, config Config) *Target {
	t.Helper()
	target, err := Start(config)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	return target
}

func pattern(n, seed int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i*7 + i>>8 + seed)
	}
	return b
}

var modes = []Mode{ModeNVMET, ModeSPDK, ModeStrict}

func eachMode(t *testing.T, f func(t *testing.T, mode Mode)) {
	for _, mode := range modes {
		t.Run(mode.String(), func(t *testing.T) { f(t, mode) })
	}
}

func name(parts ...any) string { return fmt.Sprint(parts...) }
