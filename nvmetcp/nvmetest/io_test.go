package nvmetest

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestNamespaces(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		text := strings.NewReader(strings.Repeat("0123456789abcdef", 4096/16))
		target := start(t, Config{Mode: mode, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{
			{NSID: 1, Backend: Memory(1 << 20), BlockSize: 4096},
			{NSID: 2, Backend: ReaderAt(text, 4096)},
			{NSID: 3, Backend: Memory(4096), Metadata: 8},
			{NSID: 4, Inactive: true},
			{NSID: 5},
			{NSID: 6, Backend: Memory(4096), ReadOnly: true},
			{NSID: 7, Backend: ReaderAt(text, 8192)},
			{NSID: 8, Backend: Null(1 << 40)},
		}}}})
		adm, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		var list nvme.NamespaceList
		require.NoError(t, list.Decode(adm.do(nvme.Identify(2, 0, 0), 4096).data))
		require.Equal(t, nvme.NamespaceList{1, 2, 3, 5, 6, 7, 8}, list)
		require.NoError(t, list.DecodeAfter(adm.do(nvme.Identify(2, 4, 0), 4096).data, 4))
		require.Equal(t, nvme.NamespaceList{5, 6, 7, 8}, list)
		identify := func(nsid uint32) (ns nvme.IdentifyNamespace) {
			require.NoError(t, ns.Decode(adm.do(nvme.Identify(0, nsid, 0), 4096).data))
			return ns
		}
		ns := identify(1)
		require.EqualValues(t, 4096, ns.BlockSize())
		ns = identify(3)
		require.Equal(t, 8, ns.MetadataSize())
		require.True(t, ns.ExtendedLBA())
		require.EqualValues(t, 1, identify(2).NSATTR)
		require.EqualValues(t, 1, identify(6).NSATTR)
		require.Zero(t, identify(4).NSZE)
		require.Zero(t, identify(5).NSZE)
		require.EqualValues(t, 1<<31, identify(8).NSZE)

		p := pattern(4096, 3)
		require.True(t, h.doInCapsule(nvme.Write(1, 2, 0), p).cqe.Status.OK())
		require.Equal(t, p, h.do(nvme.Read(1, 2, 0), 4096).data)
		require.Equal(t, []byte("0123456789abcdef"), h.do(nvme.Read(2, 0, 0), 512).data[:16])

		dnr := nvme.StatusDNR
		status := func(want nvme.Status, r result) {
			t.Helper()
			require.Equal(t, want, r.cqe.Status, "%v, want %v", r.cqe.Status, want)
		}
		status(nvme.StatusWriteProtected.Status()|dnr, h.doInCapsule(nvme.Write(2, 0, 0), p[:512]))
		status(nvme.StatusWriteProtected.Status()|dnr, h.doWrite(nvme.Write(6, 0, 0), p[:512]))
		status(nvme.StatusWriteProtected.Status()|dnr, h.do(nvme.WriteZeroes(6, 0, 0), 0))
		status(nvme.StatusLBAOutOfRange.Status()|dnr, h.do(nvme.Read(1, 256, 0), 4096))
		status(nvme.StatusLBAOutOfRange.Status()|dnr, h.do(nvme.Read(1, 255, 1), 8192))
		status(nvme.StatusLBAOutOfRange.Status()|dnr, h.do(nvme.Read(1, 1<<63, 0), 4096))
		status(nvme.StatusLBAOutOfRange.Status()|dnr, h.do(nvme.Read(5, 0, 0), 512))
		require.Equal(t, nvme.StatusInvalidNamespace, h.do(nvme.Read(4, 0, 0), 512).cqe.Status.Code())
		require.Equal(t, nvme.StatusInvalidNamespace, h.do(nvme.Read(0, 0, 0), 512).cqe.Status.Code())
		require.Equal(t, nvme.StatusInvalidField, h.do(nvme.Read(3, 0, 0), 512).cqe.Status.Code())
		require.Equal(t, nvme.StatusUnrecoveredReadError, h.do(nvme.Read(7, 12, 0), 512).cqe.Status.Code())
		require.Equal(t, nvme.StatusInvalidOpcode, h.do(nvme.SQE{Opcode: nvme.OpVerify, Flags: 0x40, NSID: 1}, 0).cqe.Status.Code())
		require.Empty(t, target.Violations())
		status(nvme.StatusDataSGLLengthInvalid.Status()|dnr, h.do(nvme.Read(1, 0, 0), 512))
		require.Len(t, target.Violations(), 1)
	})
}

func TestOtherIOCommands(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		mem := pattern(1<<20, 0)
		target := start(t, Config{Mode: mode, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: MemoryOf(mem)}}}}})
		_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
		p := append([]byte(nil), mem[:4096]...)
		r := h.doInCapsule(nvme.Compare(1, 0, 7), p)
		if mode == ModeNVMET {
			require.Equal(t, nvme.StatusInvalidOpcode, r.cqe.Status.Code())
		} else {
			require.True(t, r.cqe.Status.OK(), r.cqe.Status)
			p[17] ^= 1
			require.Equal(t, nvme.StatusCompareFailure, h.doWrite(nvme.Compare(1, 0, 7), p).cqe.Status.Code())
		}
		require.True(t, h.do(nvme.WriteZeroes(1, 8, 0), 0).cqe.Status.OK())
		ranges := (&nvme.DSMRange{SLBA: 16, NLB: 2}).Append(nil)
		ranges = (&nvme.DSMRange{SLBA: 20, NLB: 1}).Append(ranges)
		require.True(t, h.doInCapsule(nvme.DatasetManagement(1, 1, nvme.DSMDeallocate), ranges).cqe.Status.OK())
		require.True(t, h.do(nvme.Flush(1), 0).cqe.Status.OK())
		require.True(t, h.do(nvme.Flush(nvme.NSIDAll), 0).cqe.Status.OK())
		got := h.do(nvme.Read(1, 0, 31), 32*512).data
		want := pattern(1<<20, 0)[:32*512]
		clear(want[8*512:][:512])
		clear(want[16*512:][:1024])
		clear(want[20*512:][:512])
		require.Equal(t, want, got)
		ranges = (&nvme.DSMRange{SLBA: 2047, NLB: 2}).Append(nil)
		require.Equal(t, nvme.StatusLBAOutOfRange, h.doInCapsule(nvme.DatasetManagement(1, 0, nvme.DSMDeallocate), ranges).cqe.Status.Code())
		require.Empty(t, target.Violations())
	})
}

func TestFileBackend(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "ns"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(1<<20))
	b, err := File(f)
	require.NoError(t, err)
	target := start(t, Config{Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: b}}}}})
	_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
	p := pattern(100<<10, 5)
	require.True(t, h.doWrite(nvme.Write(1, 2048-200, 199), p).cqe.Status.OK())
	require.True(t, h.do(nvme.Flush(1), 0).cqe.Status.OK())
	require.Equal(t, p, h.do(nvme.Read(1, 2048-200, 199), len(p)).data)
	all, err := os.ReadFile(f.Name())
	require.NoError(t, err)
	require.Equal(t, p, all[1<<20-len(p):])
}

func TestNullBackend(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		for _, dgst := range []pdu.Digests{{}, {Header: true, Data: true}} {
			target := start(t, Config{Mode: mode, MDTS: -1, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: Null(1 << 30)}}}}})
			_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{DGST: dgst}, 0)
			require.True(t, h.doInCapsule(nvme.Write(1, 0, 7), pattern(4096, 1)).cqe.Status.OK())
			for _, n := range []int{4096, 4096, 8192, 4096, 2 << 20} { // digests that are known, and not; the last without the hot buffer
				b := h.do(nvme.Read(1, 64, uint16(n/512-1)), n).data // which compares digests
				require.Len(t, b, n)
				for i := range b {
					if b[i] != byte(i%251) {
						t.Fatalf("byte %d of %d is %d", i, n, b[i])
					}
				}
			}
			if dgst.Data {
				target.SetFaults(Faults{Rules: []Rule{{Queue: IOQueue, Do: Action{CorruptDataDigest: true}}}})
				h.send(withLength(nvme.Read(1, 0, 0), 512), nil)
				require.True(t, h.read().BadData)
			}
		}
	})
}

// The strict mode interleaves the data of commands that are outstanding together, and asks for
// several pieces of a write at once where the host allows it.
func TestStrictInterleaves(t *testing.T) {
	target := start(t, Config{Mode: ModeStrict})
	_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{MAXR2T: 1}, fabrics.CATTRDisableSQFlowControl)
	var b []byte
	for cid := range uint16(3) {
		sqe := withLength(nvme.Read(1, 0, 63), 32<<10)
		sqe.CID, sqe.SGL.ID = cid, nvme.SGLTransport
		var p pdu.CapsuleCmd
		sqe.Append(p.SQE[:0])
		b = p.Append(b, h.out, nil)
	}
	h.write(b)
	var order []uint16
	success, ended := 0, 0
	offsets := map[uint8]bool{}
	for ended < 3 {
		p := h.read()
		if p.Type == pdu.TypeCapsuleResp {
			ended++
			continue
		}
		var d pdu.Data
		require.NoError(t, d.Decode(p.Header))
		order = append(order, d.CCCID)
		offsets[p.PDO] = true
		if d.Flags.Has(pdu.FlagSuccess) {
			success++
			ended++
		}
	}
	require.Equal(t, []uint16{0, 1, 2, 0, 1, 2}, order[:6])
	require.Len(t, order, 3*7)
	require.NotZero(t, success)
	require.NotEqual(t, 3, success, "SUCCESS on and off")
	require.Equal(t, map[uint8]bool{24: true, 128: true}, offsets)

	h.cid = 100
	cid := h.send(withLength(nvme.Write(1, 0, 127), 64<<10), nil)
	first, second := h.read(), h.read()
	require.Equal(t, []pdu.Type{pdu.TypeR2T, pdu.TypeR2T}, []pdu.Type{first.Type, second.Type})
	var r1, r2 pdu.R2T
	require.NoError(t, r1.Decode(first.Header))
	require.NoError(t, r2.Decode(second.Header))
	require.Equal(t, r1.R2TL, r2.R2TO)
	require.NotEqual(t, r1.TTAG, r2.TTAG)
	require.NoError(t, h.nc.SetReadDeadline(time.Now().Add(50*time.Millisecond)))
	_, err := h.next()
	require.Error(t, err, "MAXR2T allows two")
	require.NoError(t, h.nc.SetReadDeadline(time.Now().Add(10*time.Second)))
	data := pattern(64<<10, 0)
	h.h2c(r1, data)
	h.h2c(r2, data)
	require.True(t, h.wait(cid, 0, data).cqe.Status.OK())
	require.Equal(t, data, h.do(nvme.Read(1, 0, 127), 64<<10).data)
	require.Empty(t, target.Violations())
}

// A host has to answer the R2Ts of a command in their order.
func TestR2TOrder(t *testing.T) {
	target := start(t, Config{Mode: ModeStrict})
	_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{MAXR2T: 1}, 0)
	cid := h.send(withLength(nvme.Write(1, 0, 63), 32<<10), nil)
	var r1, r2 pdu.R2T
	require.NoError(t, r1.Decode(h.read().Header))
	require.NoError(t, r2.Decode(h.read().Header))
	data := pattern(32<<10, 0)
	h.h2c(r2, data)
	h.h2c(r1, data)
	require.True(t, h.wait(cid, 0, data).cqe.Status.OK())
	require.NotEmpty(t, target.Violations())
	require.Contains(t, target.Violations()[0], "before that up to offset")
}

// What a steady stream of I/O costs in allocations, of the whole process: the host here has none.
func TestAllocations(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector allocates")
	}
	for _, mode := range modes {
		for _, n := range []int{512, 32 << 10} {
			for _, write := range []bool{false, true} {
				t.Run(name(mode, "/", n, "/write=", write), func(t *testing.T) {
					target := start(t, Config{Mode: mode, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: Memory(1 << 20)}}}}})
					_, h := ioQueue(t, target.Addr(), DefaultNQN, pdu.ICReq{}, 0)
					sqe := nvme.Read(1, 0, uint16(n/512-1))
					if write {
						sqe = nvme.Write(1, 0, uint16(n/512-1))
					}
					sqe.CID, sqe.SGL = 9, nvme.SGL{ID: nvme.SGLTransport, Length: uint32(n)}
					var p pdu.CapsuleCmd
					sqe.Append(p.SQE[:0])
					capsule := p.Append(nil, h.out, nil)
					buf := make([]byte, 64<<10)
					out := make([]byte, 0, 64<<10)
					data := make([]byte, n)
					one := func() {
						if _, err := h.nc.Write(capsule); err != nil {
							t.Fatal(err)
						}
						fill := 0
						for {
							raw, k, err := h.in.Split(buf[:fill])
							if err != nil {
								t.Fatal(err)
							}
							if k == 0 {
								got, err := h.nc.Read(buf[fill:])
								if err != nil {
									t.Fatal(err)
								}
								fill += got
								continue
							}
							end := raw.Type == pdu.TypeCapsuleResp || raw.Flags.Has(pdu.FlagSuccess)
							if raw.Type == pdu.TypeR2T {
								var r pdu.R2T
								_ = r.Decode(raw.Header)
								out = out[:0]
								for off, last := r.R2TO, r.R2TO+r.R2TL; off < last; {
									m := min(last-off, h.icresp.MAXH2CDATA)
									d := pdu.Data{Type: pdu.TypeH2CData, CCCID: 9, TTAG: r.TTAG, DATAO: off}
									if off+m == last {
										d.Flags = pdu.FlagLast
									}
									out = d.Append(out, h.out, data[off:off+m])
									off += m
								}
								if _, err := h.nc.Write(out); err != nil {
									t.Fatal(err)
								}
							}
							fill = copy(buf, buf[k:fill])
							if end {
								return
							}
						}
					}
					for range 20 {
						one()
					}
					require.Less(t, testing.AllocsPerRun(200, one), 0.5)
					require.Empty(t, target.Violations())
				})
			}
		}
	}
}

func TestConfigErrors(t *testing.T) {
	for _, c := range []Config{
		{Mode: 9},
		{MaxQueueEntries: 1},
		{MAXH2CDATA: 4000},
		{CPDA: 32},
		{InCapsule: 100},
		{R2TBytes: 5},
		{Addr: "nowhere"},
		{Subsystems: []Subsystem{{NQN: "x"}}},
		{Subsystems: []Subsystem{{NQN: DefaultNQN}, {NQN: DefaultNQN}}},
		{Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{NSID: 1}, {NSID: 1}}}}},
		{Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{BlockSize: 1000}}}}},
	} {
		target, err := Start(c)
		require.ErrorContains(t, err, "nvmetest: ")
		require.Nil(t, target)
	}
}

func TestBuffers(t *testing.T) {
	var p buffers
	for _, n := range []int{1, 4096, 4097, 1 << 20} {
		b := p.get(n)
		require.Len(t, b.b, n)
		copy(b.b, bytes.Repeat([]byte{1}, n))
		p.put(b)
		require.Same(t, b, p.get(n))
	}
}

func TestTags(t *testing.T) {
	for _, mode := range modes {
		p := (&Config{Mode: mode}).profile()
		for i := range 1 << 16 {
			require.Equal(t, i, p.place(p.tag(i)))
		}
	}
}
