package nvmetest

import (
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestInitialisation(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h, cntlid := admin(t, target.Addr(), target.NQN(), pdu.ICReq{})
		cap := fabrics.CAP(h.getProperty(fabrics.PropertyCAP))
		require.Equal(t, target.profile.entries-1, int(cap.MQES()))
		require.NotZero(t, cap.TO())
		require.NotZero(t, cap.CSS()&fabrics.CSSNVM)
		require.NotZero(t, h.getProperty(fabrics.PropertyVS))

		r := h.do(nvme.Identify(nvme.CNSController, 0, 0), nvme.IdentifyLen)
		var id nvme.IdentifyController
		require.NoError(t, id.Decode(r.data))
		require.Equal(t, cntlid, id.CNTLID)
		require.Equal(t, DefaultNQN, id.SUBNQN)
		require.Equal(t, target.profile.inCapsule, id.InCapsuleBytes())
		require.NotZero(t, id.KAS)
		require.Equal(t, nvme.ControllerTypeIO, id.CNTRLTYPE)

		var list nvme.NamespaceList
		require.NoError(t, list.Decode(h.do(nvme.Identify(nvme.CNSActiveNSList, 0, 0), nvme.IdentifyLen).data))
		require.Equal(t, nvme.NamespaceList{1}, list)
		var ns nvme.IdentifyNamespace
		require.NoError(t, ns.Decode(h.do(nvme.Identify(nvme.CNSNamespace, 1, 0), nvme.IdentifyLen).data))
		size, err := ns.Bytes()
		require.NoError(t, err)
		require.EqualValues(t, 64<<20, size)
		require.EqualValues(t, 512, ns.BlockSize())
		var ids nvme.NamespaceIDs
		require.NoError(t, ids.Decode(h.do(nvme.Identify(nvme.CNSNSDescriptors, 1, 0), nvme.IdentifyLen).data))
		require.Equal(t, ns.NGUID, ids.NGUID)

		r = h.do(nvme.KeepAlive(), 0)
		require.True(t, r.cqe.Status.OK(), r.cqe.Status)
		h.setCC(fabrics.CCDefault.WithEN(true).WithSHN(fabrics.SHNNormal))
		for fabrics.CSTS(h.getProperty(fabrics.PropertyCSTS)).SHST() != fabrics.SHSTComplete {
		}
		require.Empty(t, target.Violations())
	})
}

func TestReadWrite(t *testing.T) {
	for _, mode := range modes {
		for _, dgst := range []pdu.Digests{{}, {Header: true}, {Data: true}, {Header: true, Data: true}} {
			for _, hpda := range []uint8{0, 2, 31} {
				for _, cattr := range []fabrics.CATTR{0, fabrics.CATTRDisableSQFlowControl} {
					if mode == ModeNVMET && hpda != 0 {
						continue
					}
					t.Run(name(mode, "/", dgst, "/hpda", hpda, "/cattr", cattr), func(t *testing.T) {
						testReadWrite(t, Config{Mode: mode}, pdu.ICReq{DGST: dgst, HPDA: hpda, MAXR2T: 2}, cattr)
					})
				}
			}
		}
	}
}

func testReadWrite(t *testing.T, config Config, req pdu.ICReq, cattr fabrics.CATTR) {
	mem := make([]byte, 1<<20)
	config.Subsystems = []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: MemoryOf(mem)}}}}
	target := start(t, config)
	_, h := ioQueue(t, target.Addr(), target.NQN(), req, cattr)

	small := pattern(4096, 1)
	r := h.doInCapsule(nvme.Write(1, 8, 7), small)
	require.True(t, r.cqe.Status.OK(), r.cqe.Status)
	require.Zero(t, r.r2ts)
	require.Equal(t, small, mem[8*512:][:4096])

	big := pattern(100<<10, 2)
	r = h.doWrite(nvme.Write(1, 100, 199), big)
	require.True(t, r.cqe.Status.OK(), r.cqe.Status)
	want := 1
	if s := target.profile.r2tSize; s > 0 {
		want = (len(big) + s - 1) / s
	}
	require.Equal(t, want, r.r2ts)
	require.Equal(t, big, mem[100*512:][:len(big)])

	for _, n := range []int{1, 8, 200} {
		r = h.do(nvme.Read(1, 100, uint16(n-1)), n*512)
		require.True(t, r.cqe.Status.OK(), r.cqe.Status)
		require.Equal(t, big[:n*512], r.data)
		switch {
		case config.Mode == ModeSPDK:
			require.True(t, r.success)
		case config.Mode == ModeNVMET || cattr == 0:
			require.Equal(t, cattr != 0, r.success)
		}
		if s := target.profile.c2hSize; s > 0 {
			require.Equal(t, (n*512+s-1)/s, r.pieces)
		}
	}
	require.Empty(t, target.Violations())
	stats := target.Stats()
	require.EqualValues(t, 3, stats.IO[nvme.OpRead])
	require.EqualValues(t, 2, stats.IO[nvme.OpWrite])
	require.Empty(t, stats.Errors)
}
