package nvmetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestConnectErrors(t *testing.T) {
	const closedNQN = "nqn.2025-01.io.nvstage:closed"
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode, Subsystems: []Subsystem{
			{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: Memory(1 << 20)}}},
			{NQN: closedNQN, AllowedHosts: []string{"nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"}},
		}})
		dnr := nvme.Status(0)
		if mode != ModeSPDK {
			dnr = nvme.StatusDNR
		}
		const inData = 1 << 16
		for _, c := range []struct {
			name   string
			req    fabrics.Connect
			nqn    string
			cntlid uint16
			want   nvme.Code
			dw0    uint32
		}{
			{"unknown subsystem", fabrics.Connect{SQSIZE: 31}, "nqn.2025-01.io.nvstage:nothere", 0xFFFF, 0x182, 256 | inData},
			{"host not allowed", fabrics.Connect{SQSIZE: 31}, closedNQN, 0xFFFF, 0x184, 0},
			{"static controller", fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFE, 0x182, 16 | inData},
			{"SQSIZE 0", fabrics.Connect{}, DefaultNQN, 0xFFFF, 0x182, 44},
			{"SQSIZE", fabrics.Connect{SQSIZE: 0xFFFF}, DefaultNQN, 0xFFFF, 0x182, 44},
			{"RECFMT", fabrics.Connect{RECFMT: 1, SQSIZE: 31}, DefaultNQN, 0xFFFF, 0x180, 0},
			{"unknown CNTLID", fabrics.Connect{QID: 1, SQSIZE: 31}, DefaultNQN, 77, 0x182, 16 | inData},
		} {
			t.Run(c.name, func(t *testing.T) {
				h := dial(t, target.Addr(), pdu.ICReq{})
				r := h.connect(c.req, c.nqn, c.cntlid)
				require.Equal(t, c.want.Status()|dnr, r.cqe.Status)
				if c.want == 0x184 && mode == ModeNVMET {
					c.dw0 = 512
				}
				require.Equal(t, c.dw0, r.cqe.DW0)
				require.EqualValues(t, 0xFFFF, r.cqe.SQHD)
			})
		}
	})
}

func TestIOConnectErrors(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		adm := dial(t, target.Addr(), pdu.ICReq{})
		cntlid := uint16(adm.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFF).cqe.DW0)
		try := func(qid uint16) nvme.Status {
			h := dial(t, target.Addr(), pdu.ICReq{})
			return h.connect(fabrics.Connect{QID: qid, SQSIZE: 31}, DefaultNQN, cntlid).cqe.Status
		}
		if mode == ModeSPDK {
			require.Equal(t, fabrics.StatusConnectInvalidParameters.Status(), try(1), "before CC.EN")
		} else {
			require.Equal(t, nvme.StatusCommandSequenceError.Status().WithDNR(), try(1), "before CC.EN")
		}
		adm.enable()
		require.Len(t, target.Violations(), 1)
		n := 2
		target.SetFaults(Faults{Controller: ControllerFaults{MaxQueues: n}})
		r := adm.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(4, 4), false), 0)
		sqs, cqs := nvme.ParseNumberOfQueues(r.cqe.DW0)
		require.Equal(t, []int{n, n}, []int{sqs, cqs})
		require.True(t, try(1).OK())
		require.True(t, try(2).OK())
		require.False(t, try(3).OK(), "more than were granted")
		require.False(t, try(2).OK(), "duplicate QID")
		require.Len(t, target.Violations(), 3)
		// A second Connect on one connection.
		require.Equal(t, nvme.StatusCommandSequenceError, adm.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFF).cqe.Status.Code())
	})
}

func TestIOConnectIdentity(t *testing.T) {
	target := start(t, Config{})
	adm, cntlid := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
	adm.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(4, 4), false), 0)
	for i, d := range []fabrics.ConnectData{
		{HostID: testHostID, CNTLID: cntlid, SubNQN: DefaultNQN, HostNQN: testHostNQN + "x"},
		{HostID: fabrics.HostID{1}, CNTLID: cntlid, SubNQN: DefaultNQN, HostNQN: testHostNQN},
	} {
		h := dial(t, target.Addr(), pdu.ICReq{})
		b, err := d.Append(nil)
		require.NoError(t, err)
		req := fabrics.Connect{QID: 1, SQSIZE: 31}
		r := h.doInCapsule(req.SQE(), b)
		require.Equal(t, fabrics.StatusConnectInvalidParameters, r.cqe.Status.Code())
		require.Equal(t, uint32([]int{512, 0}[i]|1<<16), r.cqe.DW0)
	}
	h := dial(t, target.Addr(), pdu.ICReq{})
	r := h.connect(fabrics.Connect{QID: 1, SQSIZE: 31, KATO: 5}, DefaultNQN, cntlid)
	require.True(t, r.cqe.Status.OK())
	v := target.Violations()
	require.Contains(t, v[len(v)-1], "with KATO 5")
}

func TestCNTLID(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode, FirstCNTLID: 100})
		h, first := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		_, second := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		require.Equal(t, []uint16{100, 101}, []uint16{first, second})
		h.nc.Close()
		require.Eventually(t, func() bool { return target.Stats().Controllers == 1 }, 5*time.Second, time.Millisecond)
		_, third := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		want := uint16(100)
		if mode == ModeSPDK {
			want = 102
		}
		require.Equal(t, want, third)
	})
}

func TestKeepAliveExpires(t *testing.T) {
	for _, feed := range []string{"nothing", "Keep Alive", "other commands"} {
		for _, mode := range []Mode{ModeNVMET, ModeStrict} {
			t.Run(name(mode, "/", feed), func(t *testing.T) {
				t.Parallel()
				target := start(t, Config{Mode: mode})
				h := dial(t, target.Addr(), pdu.ICReq{})
				kato := 300 * time.Millisecond
				if mode == ModeNVMET {
					kato = time.Second
				}
				h.connect(fabrics.Connect{SQSIZE: 31, KATO: uint32(kato / time.Millisecond)}, DefaultNQN, 0xFFFF)
				h.enable()
				begin := time.Now()
				for feed != "nothing" && time.Since(begin) < 2*kato+kato/2 {
					sqe := nvme.KeepAlive()
					if feed == "other commands" {
						sqe = nvme.GetFeatures(nvme.FIDKATO, 0, 0)
						if mode == ModeStrict {
							break // without TBKAS they do not count
						}
					}
					require.True(t, h.do(sqe, 0).cqe.Status.OK())
					time.Sleep(kato / 5)
				}
				h.closed()
				require.Equal(t, 1, target.Stats().KeepAliveExpired)
				require.Zero(t, target.Stats().Controllers)
			})
		}
	}
}

func TestKeepAliveWithoutKATO(t *testing.T) {
	target := start(t, Config{})
	h := dial(t, target.Addr(), pdu.ICReq{})
	h.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFF)
	h.enable()
	require.Equal(t, nvme.StatusKeepAliveInvalid, h.do(nvme.KeepAlive(), 0).cqe.Status.Code())
}

func TestResetAndShutdown(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		adm, io := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		adm.setCC(fabrics.CCDefault)
		require.False(t, fabrics.CSTS(adm.getProperty(fabrics.PropertyCSTS)).RDY())
		if mode == ModeNVMET {
			require.Equal(t, nvme.StatusCommandSequenceError, io.do(nvme.Flush(1), 0).cqe.Status.Code())
		} else {
			io.closed()
		}
		adm.enable()
		adm.setCC(fabrics.CCDefault.WithEN(true).WithSHN(fabrics.SHNNormal))
		n := 1
		for fabrics.CSTS(adm.getProperty(fabrics.PropertyCSTS)).SHST() != fabrics.SHSTComplete {
			n++
		}
		require.Equal(t, mode == ModeStrict, n == 2)
	})
}

func TestBadConfiguration(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h := dial(t, target.Addr(), pdu.ICReq{})
		h.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, 0xFFFF)
		h.setCC(1) // entry sizes are 0
		csts := fabrics.CSTS(h.getProperty(fabrics.PropertyCSTS))
		require.True(t, csts.CFS())
		require.False(t, csts.RDY())
	})
}

// What takes a whole controller down in nvmet takes only the queue elsewhere.
func TestQueueLoss(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		adm, io := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		io.write(ch(8, 0, 24, 0, 24, 24))
		if mode == ModeNVMET {
			adm.closed()
			return
		}
		io.term(pdu.FESInvalidHeaderField, 0)
		require.True(t, adm.do(nvme.KeepAlive(), 0).cqe.Status.OK())
		adm.nc.Close()
		require.Eventually(t, func() bool { return target.Stats().Controllers == 0 && target.Stats().Open == 0 }, 5*time.Second, time.Millisecond)
	})
}
