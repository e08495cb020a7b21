package nvmetest

import (
	"bytes"
	"io"
	"net"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// faulty starts a target with a queue on which the reads and writes that follow meet an action.
func faulty(t *testing.T, mode Mode, dgst pdu.Digests, a Action) (*Target, *host) {
	t.Helper()
	target := start(t, Config{Mode: mode, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: MemoryOf(pattern(1<<20, 0))}}}}})
	_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{DGST: dgst}, 0)
	target.SetFaults(Faults{Rules: []Rule{{Queue: IOQueue, Count: 1, Do: a}}})
	return target, h
}

func readSQE(n int) nvme.SQE  { return withLength(nvme.Read(1, 0, uint16(n/512-1)), n) }
func writeSQE(n int) nvme.SQE { return withLength(nvme.Write(1, 0, uint16(n/512-1)), n) }

// pdus reads PDUs until nothing comes for a while, or the connection ends.
func (h *host) pdus() (all []pdu.Raw, err error) {
	h.t.Helper()
	for {
		require.NoError(h.t, h.nc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
		p, err := h.next()
		if err != nil {
			require.NoError(h.t, h.nc.SetReadDeadline(time.Now().Add(10*time.Second)))
			if errTimeout(err) == err {
				err = nil
			}
			return all, err
		}
		all = append(all, p)
	}
}

func dataOf(t *testing.T, p pdu.Raw) pdu.Data {
	t.Helper()
	require.Equal(t, pdu.TypeC2HData, p.Type)
	le32 := func(b []byte) uint32 { return pdu.ReadDigest(b) }
	return pdu.Data{
		Flags: p.Flags, CCCID: uint16(p.Header[8]) | uint16(p.Header[9])<<8,
		DATAO: le32(p.Header[12:]), DATAL: le32(p.Header[16:]),
	}
}

func cqeOf(t *testing.T, p pdu.Raw) (cqe nvme.CQE) {
	t.Helper()
	require.Equal(t, pdu.TypeCapsuleResp, p.Type)
	require.NoError(t, cqe.Decode(p.Header[8:]))
	return cqe
}

func r2tOf(t *testing.T, p pdu.Raw) pdu.R2T {
	t.Helper()
	require.Equal(t, pdu.TypeR2T, p.Type)
	return pdu.R2T{
		CCCID: uint16(p.Header[8]) | uint16(p.Header[9])<<8, TTAG: uint16(p.Header[10]) | uint16(p.Header[11])<<8,
		R2TO: pdu.ReadDigest(p.Header[12:]), R2TL: pdu.ReadDigest(p.Header[16:]),
	}
}

func TestStatusFault(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		_, twice := faulty(t, mode, pdu.Digests{}, Action{Status: nvme.StatusInternalError.Status(), Breach: BreachDuplicateResp})
		twice.send(readSQE(512), nil)
		both, err := twice.pdus()
		require.NoError(t, err)
		require.Len(t, both, 2)
		require.Equal(t, nvme.StatusInternalError, cqeOf(t, both[1]).Status.Code())

		st := nvme.StatusNamespaceNotReady.Status().WithCRD(2)
		for _, sqe := range []nvme.SQE{readSQE(4096), writeSQE(4096)} {
			target, h := faulty(t, mode, pdu.Digests{}, Action{Status: st})
			cid := h.send(sqe, nil)
			all, err := h.pdus()
			require.NoError(t, err)
			require.Len(t, all, 1)
			cqe := cqeOf(t, all[0])
			require.Equal(t, cid, cqe.CID)
			require.Equal(t, st, cqe.Status)
			require.EqualValues(t, 1, target.Stats().Errors[nvme.StatusNamespaceNotReady])
			require.True(t, h.wait(h.send(readSQE(4096), nil), 4096, nil).cqe.Status.OK(), "only one command")
		}
		_, h := faulty(t, mode, pdu.Digests{}, Action{Status: st})
		require.Equal(t, st, h.doInCapsule(nvme.Write(1, 0, 7), make([]byte, 4096)).cqe.Status)
		require.Equal(t, pattern(4096, 0), h.do(nvme.Read(1, 0, 7), 4096).data, "it was not executed")
	})
}

func TestNthAndCount(t *testing.T) {
	target, h := faulty(t, ModeNVMET, pdu.Digests{}, Action{})
	target.SetFaults(Faults{Rules: []Rule{{Opcodes: []nvme.Opcode{nvme.OpFlush}, QID: 1, NSID: 1, Nth: 3, Count: 2, Do: Action{Status: nvme.StatusInternalError.Status()}}}})
	var failed []bool
	for range 6 {
		require.True(t, h.do(nvme.Read(1, 0, 0), 512).cqe.Status.OK())
		failed = append(failed, !h.do(nvme.Flush(1), 0).cqe.Status.OK())
	}
	require.Equal(t, []bool{false, false, true, true, false, false}, failed)
	require.True(t, h.do(nvme.Flush(nvme.NSIDAll), 0).cqe.Status.OK())

	var seen []Command
	target.SetFaults(Faults{OnCommand: func(cmd Command) Action {
		seen = append(seen, cmd)
		return Action{Status: nvme.StatusInternalError.Status()}
	}})
	require.False(t, h.do(nvme.Flush(1), 0).cqe.Status.OK())
	require.Len(t, seen, 1)
	require.EqualValues(t, 1, seen[0].QID)
	require.Equal(t, nvme.OpFlush, seen[0].SQE.Opcode)
	require.Equal(t, 1, seen[0].Conn.QID())
}

func TestFabricsRule(t *testing.T) {
	target := start(t, Config{})
	target.SetFaults(Faults{Rules: []Rule{
		{FCTYPE: -1, Nth: 2, Count: 1, Do: Action{Status: nvme.StatusInternalError.Status()}},
		{FCTYPE: int(fabrics.TypePropertyGet), Do: Action{Result: new(uint64)}},
	}})
	h := dial(t, target.Addr(), pdu.ICReq{})
	require.True(t, h.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFF).cqe.Status.OK())
	require.Zero(t, h.getProperty(fabrics.PropertyCAP))
	set := fabrics.SetProperty(fabrics.PropertyCC, uint64(fabrics.CCDefault))
	require.True(t, h.do(set.SQE(), 0).cqe.Status.OK())
	require.False(t, h.do(set.SQE(), 0).cqe.Status.OK())
	require.True(t, h.do(set.SQE(), 0).cqe.Status.OK())
}

func TestDelayAndDrop(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		_, h := faulty(t, mode, pdu.Digests{}, Action{Delay: 100 * time.Millisecond})
		begin := time.Now()
		slow := h.send(readSQE(512), nil)
		require.Equal(t, pattern(512, 0), h.do(nvme.Read(1, 0, 0), 512).data, "others pass it")
		r := h.wait(slow, 512, nil)
		require.Equal(t, pattern(512, 0), r.data)
		require.GreaterOrEqual(t, time.Since(begin), 100*time.Millisecond)

		_, h = faulty(t, mode, pdu.Digests{}, Action{Drop: true})
		h.send(readSQE(512), nil)
		all, err := h.pdus()
		require.NoError(t, err)
		require.Empty(t, all)
	})
}

func TestCorruption(t *testing.T) {
	both := pdu.Digests{Header: true, Data: true}
	eachMode(t, func(t *testing.T, mode Mode) {
		_, h := faulty(t, mode, both, Action{CorruptData: true})
		r := h.wait(h.send(readSQE(4096), nil), 4096, nil) // which checks the digests
		require.NotEqual(t, pattern(4096, 0), r.data)
		require.Equal(t, pattern(4096, 0), h.do(nvme.Read(1, 0, 7), 4096).data, "the namespace is as it was")

		_, h = faulty(t, mode, both, Action{CorruptDataDigest: true})
		h.send(readSQE(32<<10), nil)
		all, err := h.pdus()
		require.NoError(t, err)
		bad := 0
		for _, p := range all {
			if p.BadData {
				bad++
			}
		}
		require.Equal(t, 1, bad)

		for _, sqe := range []nvme.SQE{readSQE(4096), writeSQE(4096), nvme.Flush(1)} {
			_, h = faulty(t, mode, both, Action{CorruptHeaderDigest: true})
			h.send(sqe, nil)
			_, err = h.next()
			var perr *pdu.Error
			require.ErrorAs(t, err, &perr)
			require.Equal(t, pdu.FESHeaderDigest, perr.FES)
		}
	})
}

func TestCloseFaults(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		_, h := faulty(t, mode, pdu.Digests{}, Action{Close: CloseFIN})
		h.send(readSQE(4096), nil)
		_, err := h.next()
		require.ErrorIs(t, err, io.EOF)

		_, h = faulty(t, mode, pdu.Digests{}, Action{Close: CloseReset})
		h.send(readSQE(4096), nil)
		_, err = h.next()
		require.ErrorIs(t, err, syscall.ECONNRESET)

		_, h = faulty(t, mode, pdu.Digests{}, Action{Close: CloseFIN, CloseAfter: 1000})
		h.send(readSQE(4096), nil)
		b, err := io.ReadAll(h.nc)
		require.NoError(t, err)
		require.Len(t, b, 1000)

		target, h := faulty(t, mode, pdu.Digests{}, Action{Term: &pdu.TermReq{Type: pdu.TypeC2HTermReq, FES: pdu.FESOutOfRange, FEI: 3}})
		h.send(readSQE(4096), nil)
		h.term(pdu.FESOutOfRange, 3)
		require.Empty(t, target.Violations())

		_, h = faulty(t, mode, pdu.Digests{}, Action{Raw: []byte("anything")})
		h.send(readSQE(4096), nil)
		b = make([]byte, 8)
		_, err = io.ReadFull(h.nc, b)
		require.NoError(t, err)
		require.Equal(t, "anything", string(b))
	})
}

func TestReadBreaches(t *testing.T) {
	const n = 4096
	want := pattern(n, 0)
	eachMode(t, func(t *testing.T, mode Mode) {
		run := func(b Breach, sqe nvme.SQE) []pdu.Raw {
			t.Helper()
			_, h := faulty(t, mode, pdu.Digests{}, Action{Breach: b})
			h.send(sqe, nil)
			all, _ := h.pdus()
			return all
		}
		read := readSQE(n)

		all := run(BreachSuccessWithoutLast, read)
		require.Len(t, all, 1)
		require.Equal(t, pdu.FlagSuccess, dataOf(t, all[0]).Flags)

		all = run(BreachSuccessThenResp, read)
		require.Len(t, all, 2)
		require.Equal(t, pdu.FlagSuccess|pdu.FlagLast, dataOf(t, all[0]).Flags)
		require.True(t, cqeOf(t, all[1]).Status.OK())

		all = run(BreachDataOutOfOrder, read)
		require.Len(t, all, 3)
		require.EqualValues(t, n/2, dataOf(t, all[0]).DATAO)
		require.Zero(t, dataOf(t, all[1]).DATAO)
		require.Equal(t, want[n/2:], all[0].Data)

		all = run(BreachDataOverlap, read)
		require.EqualValues(t, n/2-4, dataOf(t, all[1]).DATAO)
		require.EqualValues(t, n/2+4, dataOf(t, all[1]).DATAL)

		all = run(BreachDataOutOfRange, read)
		require.EqualValues(t, n+4096, dataOf(t, all[0]).DATAL)

		all = run(BreachDataOffset, read)
		require.EqualValues(t, 1<<31, dataOf(t, all[0]).DATAO)

		all = run(BreachDataUnknownCCCID, read)
		require.Len(t, all, 1)
		require.NotEqual(t, uint16(2), dataOf(t, all[0]).CCCID)

		all = run(BreachShortRead, read)
		require.Len(t, all, 2)
		require.EqualValues(t, n/2, dataOf(t, all[0]).DATAL)
		require.True(t, cqeOf(t, all[1]).Status.OK())

		all = run(BreachNoData, read)
		require.Len(t, all, 1)
		require.True(t, cqeOf(t, all[0]).Status.OK())

		all = run(BreachEarlyResp, read)
		require.Len(t, all, 2)
		require.True(t, cqeOf(t, all[0]).Status.OK())
		require.Equal(t, want, all[1].Data)

		all = run(BreachR2TForRead, read)
		require.EqualValues(t, 512, r2tOf(t, all[0]).R2TL)

		for _, sqe := range []nvme.SQE{read, nvme.Flush(1)} {
			all = run(BreachDuplicateResp, sqe)
			k := len(all)
			require.Equal(t, cqeOf(t, all[k-1]).CID, cqeOf(t, all[k-2]).CID)

			all = run(BreachUnknownCID, sqe)
			require.Len(t, all, 1)
			require.NotEqual(t, uint16(2), cqeOf(t, all[0]).CID)
		}
		all = run(BreachStaleResp, nvme.Flush(1))
		require.Len(t, all, 2)
		require.Equal(t, []uint16{1, 2}, []uint16{cqeOf(t, all[0]).CID, cqeOf(t, all[1]).CID})

		all = run(BreachDataForWrite, nvme.Flush(1))
		require.Len(t, all, 2)
		require.EqualValues(t, 512, dataOf(t, all[0]).DATAL)

		all = run(BreachSecondICResp, nvme.Flush(1))
		require.Empty(t, all, "a second ICResp is refused by the PDU package already")
	})
}

func TestR2TBreaches(t *testing.T) {
	const n = 8192
	eachMode(t, func(t *testing.T, mode Mode) {
		run := func(a Action, bait bool) (target *Target, all []pdu.Raw) {
			t.Helper()
			target, h := faulty(t, mode, pdu.Digests{}, a)
			h.send(writeSQE(n), nil)
			all, err := h.pdus()
			require.NoError(t, err)
			require.NotEmpty(t, all)
			if bait && all[0].Type == pdu.TypeR2T {
				// A host that falls for it is noticed, and harms nothing.
				if r := r2tOf(t, all[0]); r.R2TL > 0 {
					h.h2c(r, make([]byte, 2*n))
					_, err := h.pdus()
					require.NoError(t, err)
				}
			}
			return target, all
		}
		_, all := run(Action{Breach: BreachR2TZero}, false)
		require.Zero(t, r2tOf(t, all[0]).R2TL)

		target, all := run(Action{Breach: BreachR2TOffset}, true)
		require.EqualValues(t, 4, r2tOf(t, all[0]).R2TO)
		require.Contains(t, target.Violations()[0], "R2T that was wrong")

		target, all = run(Action{Breach: BreachR2TBeyond}, true)
		require.EqualValues(t, n+4, r2tOf(t, all[0]).R2TL)
		require.Contains(t, target.Violations()[0], "R2T that was wrong")

		_, all = run(Action{Breach: BreachR2TTooMany}, false)
		require.Len(t, all, 9)

		_, all = run(Action{Breach: BreachR2TTwice}, false)
		require.Len(t, all, 2)
		require.Equal(t, r2tOf(t, all[0]).R2TO, r2tOf(t, all[1]).R2TO)

		_, all = run(Action{Breach: BreachR2TUnknown}, false)
		require.NotEqual(t, uint16(2), r2tOf(t, all[0]).CCCID)

		_, all = run(Action{Breach: BreachSuccessNoR2T}, false)
		require.Len(t, all, 1)
		require.True(t, cqeOf(t, all[0]).Status.OK())

		target, all = run(Action{Breach: BreachSuccessInsteadOfData}, true)
		require.Len(t, all, 2)
		require.EqualValues(t, n/2, r2tOf(t, all[0]).R2TL)
		require.True(t, cqeOf(t, all[1]).Status.OK())
		require.Empty(t, target.Violations())

		// An early error is allowed, and so is data for an R2T that was answered already.
		st := nvme.StatusWriteFault.Status()
		target, all = run(Action{Breach: BreachEarlyError, Status: st}, true)
		require.Len(t, all, 2)
		require.EqualValues(t, n, r2tOf(t, all[0]).R2TL)
		require.Equal(t, st, cqeOf(t, all[1]).Status)
		require.Empty(t, target.Violations())

		// R2T for a command that has brought its data.
		_, h := faulty(t, mode, pdu.Digests{}, Action{Breach: BreachR2TInCapsule})
		h.send(nvme.Write(1, 0, 0), make([]byte, 512))
		all, err := h.pdus()
		require.NoError(t, err)
		require.Len(t, all, 2)
		require.EqualValues(t, 512, r2tOf(t, all[0]).R2TL)
		require.True(t, cqeOf(t, all[1]).Status.OK())
	})
}

func TestMalformedPDUs(t *testing.T) {
	for _, m := range Malformed() {
		t.Run(m.Name, func(t *testing.T) {
			// They are malformed by the rules of package pdu too, but for CPDA and MAXH2CDATA, which are
			// in the body.
			in := pdu.Framing{Role: pdu.Host, Ready: !m.First, Digests: pdu.Digests{Header: m.HDGST}}
			p, n, err := in.Split(m.PDU)
			if n > 0 {
				switch p.Type {
				case pdu.TypeICResp:
					err = new(pdu.ICResp).Decode(p.Header)
				case pdu.TypeC2HData:
					err = new(pdu.Data).Decode(p.Header)
				case pdu.TypeR2T:
					err = new(pdu.R2T).Decode(p.Header)
				}
			} else if err == nil {
				err = new(pdu.Data).Decode(m.PDU)
			}
			var perr *pdu.Error
			require.ErrorAs(t, err, &perr)
			require.Equal(t, m.FES, perr.FES, perr)
			require.Equal(t, m.FEI, perr.FEI, perr)
		})
	}
}

func TestConnFaults(t *testing.T) {
	target := start(t, Config{})
	icreq := (&pdu.ICReq{DGST: pdu.Digests{Header: true, Data: true}}).Append(nil)
	first := func(f ConnFaults) (*host, pdu.Raw, error) {
		t.Helper()
		target.SetFaults(Faults{Conn: f})
		h := dialRaw(t, target.Addr())
		_, _ = h.nc.Write(icreq)
		if f.NoICResp || f.StallAfterSent > 0 { // whatever comes is there by then; all else may take its time
			require.NoError(t, h.nc.SetReadDeadline(time.Now().Add(200*time.Millisecond)))
		}
		p, err := h.next()
		return h, p, err
	}
	target.SetFaults(Faults{Conn: ConnFaults{Refuse: true}})
	nc, err := net.Dial("tcp", target.Addr())
	if err == nil {
		_, err = nc.Read(make([]byte, 1))
		nc.Close()
	}
	require.ErrorIs(t, err, syscall.ECONNRESET)
	_, _, err = first(ConnFaults{NoICResp: true})
	require.Equal(t, err, errTimeout(err))
	begin := time.Now()
	_, p, err := first(ConnFaults{ICRespDelay: 50 * time.Millisecond})
	require.NoError(t, err)
	require.Equal(t, pdu.TypeICResp, p.Type)
	require.GreaterOrEqual(t, time.Since(begin), 50*time.Millisecond)
	_, p, err = first(ConnFaults{ICResp: func(p *pdu.ICResp) { p.PFV, p.MAXH2CDATA = 2, 100 }})
	require.NoError(t, err)
	require.Error(t, new(pdu.ICResp).Decode(p.Header))
	_, p, err = first(ConnFaults{RawICResp: (&pdu.ICResp{CPDA: 31, MAXH2CDATA: 4096}).Append(nil)})
	require.NoError(t, err)
	require.EqualValues(t, 31, p.Header[10])

	h, _, err := first(ConnFaults{CloseAfterSent: 100})
	require.Error(t, err)
	require.Len(t, h.buf, 100)
	h, _, err = first(ConnFaults{StallAfterSent: 100})
	require.Equal(t, err, errTimeout(err))
	require.Len(t, h.buf, 100)
	_, _, err = first(ConnFaults{CloseAfterReceived: 100, Reset: true})
	require.ErrorIs(t, err, syscall.ECONNRESET)

	refuse := start(t, Config{RefuseDigests: pdu.Digests{Data: true}})
	h = dial(t, refuse.Addr(), pdu.ICReq{DGST: pdu.Digests{Header: true, Data: true}})
	require.Equal(t, pdu.Digests{Header: true}, h.icresp.DGST)
}

func TestConnMethods(t *testing.T) {
	target := start(t, Config{})
	conn := func() (*host, *Conn) {
		h, _ := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		for _, c := range target.Conns() {
			if c.RemoteAddr().String() == h.nc.LocalAddr().String() {
				return h, c
			}
		}
		t.Fatal("no such connection")
		return nil, nil
	}
	h, c := conn()
	c.SendRaw([]byte("abc"))
	b := make([]byte, 3)
	_, err := io.ReadFull(h.nc, b)
	require.NoError(t, err)
	c.Terminate(pdu.TermReq{FES: pdu.FESUnsupported, FEI: 9})
	h.term(pdu.FESUnsupported, 9)

	h, c = conn()
	c.CloseAfter(10, false)
	h.send(nvme.KeepAlive(), nil)
	b, err = io.ReadAll(h.nc)
	require.NoError(t, err)
	require.Len(t, b, 10)

	h, c = conn()
	c.Stall()
	h.send(nvme.KeepAlive(), nil)
	all, err := h.pdus()
	require.NoError(t, err)
	require.Empty(t, all)

	h, c = conn()
	c.Reset()
	_, err = h.next()
	require.ErrorIs(t, err, syscall.ECONNRESET)

	h, _ = conn()
	target.CloseConnections()
	h.closed()
	require.Empty(t, target.Violations())
}

func TestOnConn(t *testing.T) {
	target := start(t, Config{})
	target.SetFaults(Faults{OnConn: func(c *Conn) { c.Mangle(1, 1) }})
	h := dialRaw(t, target.Addr())
	h.write((&pdu.ICReq{}).Append(nil))
	require.NoError(t, h.nc.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	b := make([]byte, 128)
	_, _ = io.ReadFull(h.nc, b)
	require.NotEqual(t, (&pdu.ICResp{MAXH2CDATA: 4 << 20}).Append(nil), b)
}

func TestMangleIsRepeatable(t *testing.T) {
	in := pattern(100000, 0)
	run := func(seed uint64, rate float64) []byte {
		var w wire
		w.mangle(seed, rate)
		return w.damage(nil, in)
	}
	require.Equal(t, run(1, 1e-3), run(1, 1e-3))
	require.NotEqual(t, run(1, 1e-3), run(2, 1e-3))
	require.Equal(t, in, run(1, 1e-12))
	same := 0
	for seed := range uint64(200) {
		if bytes.Equal(in[:1000], run(seed, 1e-3)[:min(1000, len(run(seed, 1e-3)))]) {
			same++
		}
	}
	require.InDelta(t, 200/2.718, same, 30, "one in 1/rate bytes")
}

func TestControllerFaults(t *testing.T) {
	target := start(t, Config{Mode: ModeStrict})
	h := dial(t, target.Addr(), pdu.ICReq{})
	r := h.connect(fabrics.Connect{SQSIZE: 31, KATO: 200}, DefaultNQN, 0xFFFF)
	cntlid := uint16(r.cqe.DW0)
	target.SetFaults(Faults{Controller: ControllerFaults{NeverReady: true}})
	h.setCC(fabrics.CCDefault.WithEN(true))
	time.Sleep(2 * readyDelay)
	csts := func() fabrics.CSTS { return fabrics.CSTS(h.getProperty(fabrics.PropertyCSTS)) }
	require.False(t, csts().RDY())
	target.SetFaults(Faults{Controller: ControllerFaults{ReadyDelay: time.Hour}})
	require.False(t, csts().RDY())
	target.SetFaults(Faults{Controller: ControllerFaults{Fatal: true}})
	require.True(t, csts().CFS())
	target.SetFaults(Faults{Controller: ControllerFaults{WrongCNTLID: true, NeverShutdown: true, IgnoreKeepAlive: true}})
	require.Equal(t, fabrics.CSTSReady, csts())
	var id nvme.IdentifyController
	require.NoError(t, id.Decode(h.do(nvme.Identify(1, 0, 0), 4096).data))
	require.NotEqual(t, cntlid, id.CNTLID)
	for range 3 {
		h.setCC(fabrics.CCDefault.WithEN(true).WithSHN(fabrics.SHNNormal))
		require.Equal(t, fabrics.SHSTInProgress, csts().SHST())
	}
	for {
		cid := h.send(nvme.KeepAlive(), nil)
		p, err := h.next()
		if err != nil {
			break
		}
		require.Equal(t, cid, cqeOf(t, p).CID)
		time.Sleep(10 * time.Millisecond)
	}
	require.Equal(t, 1, target.Stats().KeepAliveExpired)
}

// A host that reads nothing does not keep the target from being closed, or from taking its data.
func TestHostThatDoesNotRead(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		require.NoError(t, h.nc.(*net.TCPConn).SetReadBuffer(4096))
		n := target.profile.limit()
		for range 30 {
			h.send(readSQE(n), nil)
		}
		require.Eventually(t, func() bool { return target.Stats().IO[nvme.OpRead] == 30 }, 5*time.Second, time.Millisecond)
		begin := time.Now()
		require.NoError(t, target.Close())
		require.Less(t, time.Since(begin), 5*time.Second)
		require.Empty(t, target.Violations())
	})
}
