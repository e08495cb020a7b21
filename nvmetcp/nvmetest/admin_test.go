package nvmetest

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func (h *host) getLog(lid nvme.LID, n int, off uint64, rae bool) result {
	h.t.Helper()
	return h.do(nvme.GetLogPage(nvme.NSIDAll, lid, uint32(n/4), off, rae), n)
}

func TestDiscovery(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		const hidden = "nqn.2025-01.io.nvstage:hidden"
		target := start(t, Config{
			Mode: mode,
			Subsystems: []Subsystem{
				{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: Memory(1 << 20)}}},
				{NQN: hidden, AllowedHosts: []string{}},
			},
			Referrals: []Referral{{Addr: "192.0.2.1:8009"}},
		})
		second, err := target.Listen("127.0.0.1:0")
		require.NoError(t, err)
		require.Equal(t, []string{target.Addr(), second}, target.Addrs())

		h := dial(t, second, pdu.ICReq{})
		r := h.connect(fabrics.Connect{SQSIZE: 31}, fabrics.DiscoveryNQN, 0xFFFF)
		require.True(t, r.cqe.Status.OK())
		h.enable()
		var id nvme.IdentifyController
		require.NoError(t, id.Decode(h.do(nvme.Identify(nvme.CNSController, 0, 0), nvme.IdentifyLen).data))
		require.Equal(t, nvme.ControllerTypeDiscovery, id.CNTRLTYPE)
		require.Equal(t, fabrics.DiscoveryNQN, id.SUBNQN)

		var hdr fabrics.DiscoveryHeader
		require.NoError(t, hdr.Decode(h.getLog(nvme.LIDDiscovery, 1024, 0, true).data))
		require.EqualValues(t, 4, hdr.NUMREC)
		b := h.getLog(nvme.LIDDiscovery, 1024*5, 0, false).data
		var got []fabrics.DiscoveryEntry
		for i := range 4 {
			var e fabrics.DiscoveryEntry
			require.NoError(t, e.Decode(b[1024*(i+1):]))
			require.Equal(t, fabrics.TRTYPETCP, e.TRTYPE)
			require.Equal(t, fabrics.ADRFAMIPv4, e.ADRFAM)
			got = append(got, e)
		}
		addr := func(e fabrics.DiscoveryEntry) string { return e.TRADDR + ":" + e.TRSVCID }
		require.Equal(t, fabrics.SUBTYPECurrent, got[0].SUBTYPE)
		require.Equal(t, second, addr(got[0]))
		for i, a := range target.Addrs() {
			require.Equal(t, fabrics.SUBTYPENVM, got[1+i].SUBTYPE)
			require.Equal(t, DefaultNQN, got[1+i].SubNQN)
			require.Equal(t, a, addr(got[1+i]))
		}
		require.Equal(t, fabrics.SUBTYPEReferral, got[3].SUBTYPE)
		require.Equal(t, "192.0.2.1:8009", addr(got[3]))
		require.Empty(t, target.Violations())

		// No I/O, no namespaces.
		require.Equal(t, nvme.StatusInvalidField, h.do(nvme.Identify(nvme.CNSActiveNSList, 0, 0), nvme.IdentifyLen).cqe.Status.Code())
		require.False(t, h.getLog(nvme.LIDANA, 1024, 0, true).cqe.Status.OK())
		h.getLog(nvme.LIDDiscovery, 1024, 1024*5, true)
		require.Len(t, target.Violations(), 1, "a read past the end")
	})
}

func TestDiscoveryChanges(t *testing.T) {
	target := start(t, Config{})
	h := dial(t, target.Addr(), pdu.ICReq{})
	h.connect(fabrics.Connect{SQSIZE: 31, KATO: 30000}, fabrics.DiscoveryNQN, 0xFFFF)
	h.enable()
	genctr := func() uint64 {
		var hdr fabrics.DiscoveryHeader
		require.NoError(t, hdr.Decode(h.getLog(nvme.LIDDiscovery, 1024, 0, false).data))
		return hdr.GENCTR
	}
	first := genctr()
	require.Equal(t, first, genctr())
	target.SetFaults(Faults{Controller: ControllerFaults{DiscoveryChanges: 2}})
	require.Equal(t, []uint64{first, first + 1, first + 2, first + 2}, []uint64{genctr(), genctr(), genctr(), genctr()})
	target.SetFaults(Faults{Controller: ControllerFaults{DiscoveryChanges: -1}})
	for i := range uint64(5) {
		require.Equal(t, first+2+i, genctr())
	}
	target.SetFaults(Faults{})

	// A new port is an event, but only once until the log is read.
	require.True(t, h.do(nvme.SetFeatures(nvme.FIDAsyncEventConfig, 0, nvme.AECDiscoveryLog, false), 0).cqe.Status.OK())
	aer := h.send(nvme.AsyncEventRequest(), nil)
	before := genctr()
	_, err := target.Listen("127.0.0.1:0")
	require.NoError(t, err)
	r := h.wait(aer, 0, nil)
	require.Equal(t, nvme.AsyncEvent{Type: nvme.AsyncEventNotice, Info: nvme.NoticeDiscoveryLog, LogPage: nvme.LIDDiscovery}, nvme.ParseAsyncEvent(r.cqe.DW0))
	require.Equal(t, before+1, genctr())
}

func TestEvents(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h, _ := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		require.True(t, h.do(nvme.SetFeatures(nvme.FIDAsyncEventConfig, 0, nvme.AECNamespaceAttribute, false), 0).cqe.Status.OK())
		require.Equal(t, nvme.AECNamespaceAttribute, h.do(nvme.GetFeatures(nvme.FIDAsyncEventConfig, 0, 0), 0).cqe.DW0)
		aers := []uint16{}
		for range 4 {
			aers = append(aers, h.send(nvme.AsyncEventRequest(), nil))
		}
		require.Equal(t, nvme.StatusAERLimitExceeded, h.do(nvme.AsyncEventRequest(), 0).cqe.Status.Code())
		require.Len(t, target.Violations(), 1)

		target.SetANA(DefaultNQN, 1, nvme.ANANonOptimized) // nobody asked for these events
		target.SetNamespace(DefaultNQN, Namespace{NSID: 7, Backend: Memory(4096)})
		target.RemoveNamespace(DefaultNQN, 7)
		target.SetNamespace(DefaultNQN, Namespace{NSID: 9, Backend: Memory(4096)})
		r := h.wait(aers[0], 0, nil)
		require.Equal(t, nvme.NoticeNamespaceAttribute, nvme.ParseAsyncEvent(r.cqe.DW0).Info)
		var changed nvme.ChangedNamespaces
		require.NoError(t, changed.Decode(h.getLog(nvme.LIDChangedNamespaces, 4096, 0, true).data))
		require.Equal(t, []uint32{7, 9}, changed.NSIDs)
		// Reading without RAE lets the next event come: the one of what followed the first.
		cid := h.send(withLength(nvme.GetLogPage(nvme.NSIDAll, nvme.LIDChangedNamespaces, 1024, 0, false), 4096), nil)
		var ended []uint16
		for len(ended) < 2 {
			p := h.read()
			switch p.Type {
			case pdu.TypeC2HData:
				if p.Flags.Has(pdu.FlagSuccess) {
					ended = append(ended, cid)
				}
			case pdu.TypeCapsuleResp:
				var cqe nvme.CQE
				require.NoError(t, cqe.Decode(p.Header[8:]))
				ended = append(ended, cqe.CID)
			}
		}
		require.ElementsMatch(t, []uint16{cid, aers[1]}, ended)

		require.True(t, h.do(nvme.SetFeatures(nvme.FIDAsyncEventConfig, 0, nvme.AECANA, false), 0).cqe.Status.OK())
		target.SetANA(DefaultNQN, 1, nvme.ANAOptimized)
		require.Equal(t, nvme.NoticeANA, nvme.ParseAsyncEvent(h.wait(aers[2], 0, nil).cqe.DW0).Info)
		target.Event(DefaultNQN, nvme.AsyncEvent{Type: nvme.AsyncEventError, Info: nvme.EventPersistentError, LogPage: nvme.LIDErrorInformation})
		require.Equal(t, nvme.EventPersistentError, nvme.ParseAsyncEvent(h.wait(aers[3], 0, nil).cqe.DW0).Info)
	})
}

func withLength(sqe nvme.SQE, n int) nvme.SQE {
	sqe.SGL.Length = uint32(n)
	return sqe
}

func TestANA(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{
			{Backend: Memory(4096)},
			{Backend: Memory(4096), ANAGroup: 2, ANAState: nvme.ANAInaccessible},
		}}}})
		adm, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		var log nvme.ANALog
		require.NoError(t, log.Decode(adm.getLog(nvme.LIDANA, 512, 0, true).data))
		require.Equal(t, []nvme.ANAGroup{
			{AGID: 1, State: nvme.ANAOptimized, NSIDs: []uint32{1}},
			{AGID: 2, State: nvme.ANAInaccessible, NSIDs: []uint32{2}},
		}, log.Groups)
		require.True(t, h.do(nvme.Read(1, 0, 0), 512).cqe.Status.OK())
		for state, want := range map[nvme.ANAState]nvme.Code{
			nvme.ANAOptimized: 0, nvme.ANANonOptimized: 0, nvme.ANAInaccessible: 0x302, nvme.ANAPersistentLoss: 0x301, nvme.ANAChange: 0x303,
		} {
			target.SetANA(DefaultNQN, 2, state)
			require.Equal(t, want.Status(), h.do(nvme.Read(2, 0, 0), 512).cqe.Status, state)
		}
	})
}

func TestFeaturesAndLogs(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h, _ := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		for lid, n := range map[nvme.LID]int{0: 1024, 1: 64, 2: 512, 3: 512, 4: 4096, 5: 4096, 0x0C: 128} {
			r := h.getLog(lid, n, 0, true)
			require.True(t, r.cqe.Status.OK(), "log %#x: %v", lid, r.cqe.Status)
			require.Len(t, r.data, n)
		}
		require.False(t, h.getLog(0x70, 1024, 0, true).cqe.Status.OK())
		for cns, n := range map[nvme.CNS]uint32{0: 1, 1: 0, 2: 0, 3: 1, 5: 1, 6: 0, 8: 1} {
			r := h.do(nvme.Identify(cns, n, 0), nvme.IdentifyLen)
			require.True(t, r.cqe.Status.OK(), "CNS %d: %v", cns, r.cqe.Status)
		}
		require.Equal(t, nvme.StatusInvalidField, h.do(nvme.Identify(0x1D, 0, 0), nvme.IdentifyLen).cqe.Status.Code())
		require.Equal(t, make([]byte, 4096), h.do(nvme.Identify(0, 5, 0), nvme.IdentifyLen).data, "an inactive NSID")
		require.Equal(t, nvme.StatusInvalidNamespace, h.do(nvme.Identify(3, 5, 0), nvme.IdentifyLen).cqe.Status.Code())

		get := nvme.GetFeatures(nvme.FIDHostIdentifier, 0, 0)
		get.CDW11 = 1
		require.Equal(t, testHostID[:], h.do(get, 16).data)
		require.Equal(t, nvme.StatusCommandSequenceError, h.do(nvme.SetFeatures(nvme.FIDHostIdentifier, 0, 1, false), 0).cqe.Status.Code())
		behavior := nvme.HostBehavior{ACRE: true}
		r := h.doInCapsule(nvme.SetFeatures(nvme.FIDHostBehavior, 0, 0, false), behavior.Append(nil))
		require.Equal(t, mode != ModeNVMET, r.cqe.Status.OK())
		require.Empty(t, target.Violations())

		require.Equal(t, nvme.StatusInvalidOpcode, h.do(nvme.SQE{Opcode: nvme.OpCreateSQ, Flags: 0x40}, 0).cqe.Status.Code())
		require.Equal(t, nvme.StatusInvalidField, h.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, 0xFFFF, false), 0).cqe.Status.Code())
		short := h.do(nvme.Identify(1, 0, 0), 2048)
		require.False(t, short.cqe.Status.OK())
		long := h.do(nvme.Identify(1, 0, 0), 8192)
		require.Equal(t, mode == ModeSPDK, long.cqe.Status.OK())
		require.Len(t, target.Violations(), 3)
	})
}

func TestAbort(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		target.SetFaults(Faults{Rules: []Rule{
			{Opcodes: []nvme.Opcode{nvme.OpRead}, Queue: IOQueue, Nth: 1, Count: 1, Do: Action{Drop: true}},
			{Opcodes: []nvme.Opcode{nvme.OpRead}, Queue: IOQueue, Count: 1, Do: Action{Delay: time.Hour}},
		}})
		adm, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		for _, what := range []string{"dropped", "delayed"} {
			cid := h.send(withLength(nvme.Read(1, 0, 0), 512), nil)
			require.Eventually(t, func() bool { return target.Stats().IO[nvme.OpRead] > 0 }, 5*time.Second, time.Millisecond)
			time.Sleep(5 * time.Millisecond)
			r := adm.do(nvme.Abort(1, cid), 0)
			require.True(t, r.cqe.Status.OK())
			if mode == ModeNVMET {
				require.EqualValues(t, 1, r.cqe.DW0, what)
				continue
			}
			require.Zero(t, r.cqe.DW0, what)
			require.Equal(t, nvme.StatusAbortRequested, h.wait(cid, 0, nil).cqe.Status.Code(), what)
		}
		require.EqualValues(t, 1, adm.do(nvme.Abort(1, 999), 0).cqe.DW0)
	})
}

func TestProperties(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h, _ := admin(t, target.Addr(), DefaultNQN, pdu.ICReq{})
		want := nvme.StatusInvalidField.Status().WithDNR()
		if mode == ModeSPDK {
			want = nvme.Status(0x182 << 1)
		}
		for _, get := range []fabrics.PropertyGet{{OFST: 0x40}, {OFST: fabrics.PropertyVS, Wide: true}} {
			require.Equal(t, want, h.do(get.SQE(), 0).cqe.Status)
		}
		set := fabrics.SetProperty(fabrics.PropertyCSTS, 0)
		require.Equal(t, want, h.do(set.SQE(), 0).cqe.Status)
	})
}
