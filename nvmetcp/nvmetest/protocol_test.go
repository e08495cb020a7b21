package nvmetest

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// refuses expects the end of the connection, as the mode does it, and a violation that contains text.
func refuses(t *testing.T, target *Target, h *host, fes pdu.FES, fei uint32, text string) {
	t.Helper()
	if target.profile.termReq {
		h.term(fes, fei)
	} else {
		h.closed()
	}
	v := strings.Join(target.Violations(), "\n")
	require.Contains(t, v, text)
}

func ch(typ pdu.Type, flags pdu.Flags, hlen, pdo uint8, plen, size int) []byte {
	b := pdu.CommonHeader{Type: typ, Flags: flags, HLEN: hlen, PDO: pdo, PLEN: uint32(plen)}.Append(nil)
	return append(b, make([]byte, size-len(b))...)
}

func TestBadFirstPDU(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		pfv := (&pdu.ICReq{PFV: 1}).Append(nil)
		hpda := (&pdu.ICReq{HPDA: 32}).Append(nil)
		for _, c := range []struct {
			name string
			b    []byte
			fes  pdu.FES
			fei  uint32
		}{
			{"capsule", ch(pdu.TypeCapsuleCmd, 0, 72, 0, 72, 72), pdu.FESSequenceError, 0},
			{"unknown type", ch(8, 0, 24, 0, 24, 24), pdu.FESInvalidHeaderField, 0},
			{"ICResp", ch(pdu.TypeICResp, 0, 128, 0, 128, 128), pdu.FESInvalidHeaderField, 0},
			{"HLEN", ch(pdu.TypeICReq, 0, 127, 0, 128, 128), pdu.FESInvalidHeaderField, 2},
			{"PLEN", ch(pdu.TypeICReq, 0, 128, 0, 129, 129), pdu.FESInvalidHeaderField, 4},
			{"PFV", pfv, pdu.FESInvalidHeaderField, 8},
			{"HPDA", hpda, pdu.FESInvalidHeaderField, 10},
		} {
			t.Run(c.name, func(t *testing.T) {
				target := start(t, Config{Mode: mode})
				h := dialRaw(t, target.Addr())
				h.write(c.b)
				refuses(t, target, h, c.fes, c.fei, "before Connect: protocol error")
			})
		}
	})
}

func TestNvmetRefusesHPDA(t *testing.T) {
	target := start(t, Config{})
	h := dialRaw(t, target.Addr())
	h.write((&pdu.ICReq{HPDA: 1}).Append(nil))
	h.closed()
}

func TestBadCapsule(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		capsule := func(sqe nvme.SQE, l pdu.Layout, data []byte) []byte {
			var p pdu.CapsuleCmd
			sqe.Append(p.SQE[:0])
			return p.Append(nil, l, data)
		}
		sglType := uint32(47)
		if mode == ModeSPDK {
			sglType = 40
		}
		write := func(sgl nvme.SGL) nvme.SQE {
			s := nvme.Write(1, 0, 0)
			s.SGL = sgl
			return s
		}
		inCapsule := nvme.SGL{ID: nvme.SGLInCapsule, Length: 512}
		for _, c := range []struct {
			name string
			b    func(h *host) []byte
			fes  pdu.FES
			fei  uint32
			only Mode // 1 + mode, 0 = all
		}{
			{"second ICReq", func(*host) []byte { return (&pdu.ICReq{}).Append(nil) }, pdu.FESSequenceError, 0, 0},
			{"R2T", func(*host) []byte { return ch(pdu.TypeR2T, 0, 24, 0, 24, 24) }, pdu.FESInvalidHeaderField, 0, 0},
			{"HLEN", func(*host) []byte { return ch(pdu.TypeCapsuleCmd, 0, 71, 0, 72, 72) }, pdu.FESInvalidHeaderField, 2, 0},
			{"PLEN", func(*host) []byte { return ch(pdu.TypeCapsuleCmd, 0, 72, 0, 71, 72) }, pdu.FESInvalidHeaderField, 4, 0},
			{"digest flag", func(*host) []byte { return ch(pdu.TypeCapsuleCmd, pdu.FlagHDGST, 72, 0, 76, 76) }, pdu.FESInvalidHeaderField, 1, 0},
			{"LAST_PDU on a capsule", func(*host) []byte { return ch(pdu.TypeCapsuleCmd, pdu.FlagLast, 72, 0, 72, 72) }, pdu.FESInvalidHeaderField, 1, 1 + ModeStrict},
			{"PDO", func(*host) []byte { return capsule(write(inCapsule), pdu.Layout{}, make([]byte, 512)) }, pdu.FESInvalidHeaderField, 3, 1 + ModeStrict},
			{"SGL longer", func(h *host) []byte {
				return capsule(write(nvme.SGL{ID: nvme.SGLInCapsule, Length: 516}), h.out, make([]byte, 512))
			}, pdu.FESInvalidHeaderField, 4, 0},
			{"data with a transport SGL", func(h *host) []byte {
				return capsule(write(nvme.SGL{ID: nvme.SGLTransport, Length: 512}), h.out, make([]byte, 512))
			}, pdu.FESInvalidHeaderField, 4, 0},
			{"more than IOCCSZ", func(h *host) []byte {
				return capsule(write(nvme.SGL{ID: nvme.SGLInCapsule, Length: 64 << 10}), h.out, make([]byte, 64<<10))
			}, pdu.FESLimitExceeded, 0, -1},
			{"SGL offset", func(h *host) []byte {
				return capsule(write(nvme.SGL{ID: nvme.SGLInCapsule, Length: 512, Address: 8}), h.out, make([]byte, 512))
			}, pdu.FESUnsupported, 32, -1},
			{"SGL type", func(h *host) []byte { return capsule(write(nvme.SGL{ID: 0x40}), h.out, nil) }, pdu.FESUnsupported, sglType, -1},
			{"H2CData unknown TTAG", func(h *host) []byte {
				d := pdu.Data{Type: pdu.TypeH2CData, Flags: pdu.FlagLast, TTAG: 0x1234}
				return d.Append(nil, h.out, make([]byte, 512))
			}, pdu.FESSequenceError, 0, 0},
			{"H2CData DATAL 0", func(*host) []byte { return ch(pdu.TypeH2CData, 0, 24, 24, 24, 24) }, pdu.FESInvalidHeaderField, 4, 0},
		} {
			if c.only > 0 && c.only != mode+1 || c.only == -1 && mode == ModeNVMET {
				continue
			}
			t.Run(c.name, func(t *testing.T) {
				target := start(t, Config{Mode: mode})
				_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
				h.write(c.b(h))
				if c.name == "H2CData DATAL 0" && mode == ModeStrict {
					h.term(pdu.FESInvalidHeaderField, 3) // PDO 24 is no multiple of 20
					return
				}
				refuses(t, target, h, c.fes, c.fei, "queue 1: ")
			})
		}
	})
}

func TestBadHeaderDigest(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h := dial(t, target.Addr(), pdu.ICReq{DGST: pdu.Digests{Header: true}})
		sqe := nvme.KeepAlive()
		var p pdu.CapsuleCmd
		sqe.Append(p.SQE[:0])
		b := p.Append(nil, h.out, nil)
		b[72] ^= 1
		h.write(b)
		refuses(t, target, h, pdu.FESHeaderDigest, pdu.ReadDigest(b[72:]), "Header Digest Error")
	})
}

// request sends a write without its data and returns the first R2T.
func (h *host) request(n int) (uint16, pdu.R2T) {
	h.t.Helper()
	sqe := nvme.Write(1, 0, uint16(n/512-1))
	sqe.SGL.Length = uint32(n)
	cid := h.send(sqe, nil)
	p := h.read()
	require.Equal(h.t, pdu.TypeR2T, p.Type)
	var r pdu.R2T
	require.NoError(h.t, r.Decode(p.Header))
	require.Equal(h.t, cid, r.CCCID)
	return cid, r
}

func TestBadH2CData(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		for _, c := range []struct {
			name string
			edit func(d *pdu.Data) (data int)
			fes  pdu.FES
			fei  uint32
		}{
			{"CCCID", func(d *pdu.Data) int { d.CCCID++; return 4096 }, pdu.FESSequenceError, 0},
			{"DATAO", func(d *pdu.Data) int { d.DATAO = 4; return 4092 }, pdu.FESOutOfRange, 0},
			{"DATAO far", func(d *pdu.Data) int { d.DATAO = 0xFFFFFFFC; return 4 }, pdu.FESOutOfRange, 0},
			{"beyond", func(d *pdu.Data) int { d.Flags = 0; return 4100 }, 0, 0},
			{"no LAST_PDU", func(d *pdu.Data) int { d.Flags = 0; return 4096 }, pdu.FESInvalidHeaderField, 1},
			{"early LAST_PDU", func(*pdu.Data) int { return 4092 }, pdu.FESInvalidHeaderField, 1},
		} {
			t.Run(c.name, func(t *testing.T) {
				target := start(t, Config{Mode: mode})
				_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
				cid, r := h.request(4096)
				d := pdu.Data{Type: pdu.TypeH2CData, Flags: pdu.FlagLast, CCCID: cid, TTAG: r.TTAG}
				n := c.edit(&d)
				h.write(d.Append(nil, h.out, make([]byte, n)))
				fes := c.fes
				if fes == 0 { // MAXH2CDATA is 4096 in the strict mode
					if fes = pdu.FESOutOfRange; mode == ModeStrict {
						fes = pdu.FESLimitExceeded
					}
				}
				refuses(t, target, h, fes, c.fei, "protocol error in H2CData")
			})
		}
		t.Run("TTAG of an R2T that was answered", func(t *testing.T) {
			target := start(t, Config{Mode: mode})
			_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
			cid, r := h.request(4096)
			d := pdu.Data{Type: pdu.TypeH2CData, Flags: pdu.FlagLast, CCCID: cid, TTAG: r.TTAG}
			h.write(d.Append(nil, h.out, make([]byte, 4096)))
			require.True(t, h.wait(cid, 0, nil).cqe.Status.OK())
			h.write(d.Append(nil, h.out, make([]byte, 4096)))
			refuses(t, target, h, pdu.FESInvalidHeaderField, 10, "is not outstanding")
		})
	})
}

func TestDataDigestError(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		for _, how := range []string{"in-capsule", "R2T"} {
			t.Run(how, func(t *testing.T) {
				target := start(t, Config{Mode: mode})
				_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{DGST: pdu.Digests{Data: true}}, 0)
				var cid uint16
				if how == "R2T" {
					var r pdu.R2T
					cid, r = h.request(4096)
					d := pdu.Data{Type: pdu.TypeH2CData, Flags: pdu.FlagLast, CCCID: cid, TTAG: r.TTAG}
					b := d.Append(nil, h.out, pattern(4096, 0))
					b[len(b)-1] ^= 1
					h.write(b)
				} else {
					sqe := nvme.Write(1, 0, 7)
					cid = 77
					sqe.CID, sqe.SGL = cid, nvme.SGL{ID: nvme.SGLInCapsule, Length: 4096}
					var p pdu.CapsuleCmd
					sqe.Append(p.SQE[:0])
					b := p.Append(nil, h.out, pattern(4096, 0))
					b[len(b)-100] ^= 1
					h.write(b)
				}
				if mode == ModeNVMET {
					h.closed()
				} else {
					r := h.wait(cid, 0, nil)
					require.Equal(t, nvme.StatusTransientTransportError.Status(), r.cqe.Status)
					require.Equal(t, make([]byte, 4096), h.do(nvme.Read(1, 0, 7), 4096).data, "the data must not have been written")
				}
				require.EqualValues(t, 1, target.Stats().DigestErrors)
			})
		}
	})
}

// nvmet checks DDGST against the buffer of the whole command.
func TestNvmetWantsOneH2CDataWithDigest(t *testing.T) {
	target := start(t, Config{MAXH2CDATA: 4096})
	_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{DGST: pdu.Digests{Data: true}}, 0)
	cid, r := h.request(8192)
	d := pdu.Data{Type: pdu.TypeH2CData, CCCID: cid, TTAG: r.TTAG}
	h.write(d.Append(nil, h.out, make([]byte, 4096)))
	h.closed()
}

// In-capsule data over the limit: nvmet completes the command, and then takes the data for a PDU.
func TestNvmetLosesFraming(t *testing.T) {
	target := start(t, Config{})
	_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
	cid := h.send(nvme.Write(1, 0, 63), pattern(32<<10, 0xFF))
	r := h.wait(cid, 0, nil)
	require.Equal(t, nvme.StatusSGLOffsetInvalid.Status().WithDNR(), r.cqe.Status)
	h.closed()
}

func TestH2CTermReq(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		h, _ := admin(t, target.Addr(), target.NQN(), pdu.ICReq{})
		p := pdu.TermReq{Type: pdu.TypeH2CTermReq, FES: pdu.FESOutOfRange, FEI: 7, Header: []byte{5, 0, 24, 0}}
		h.write(p.Append(nil))
		h.closed()
		require.Equal(t, []HostTermReq{{QID: 0, TermReq: p}}, target.Stats().TermReqs)
		require.Empty(t, target.Violations())
	})
}

func TestOverrun(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		target.SetFaults(Faults{Rules: []Rule{{Queue: IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead}, Do: Action{Drop: true}}}})
		_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
		read := nvme.Read(1, 0, 0)
		read.SGL.Length = 512
		for range 30 {
			h.send(read, nil)
		}
		require.True(t, h.do(nvme.Flush(1), 0).cqe.Status.OK())
		h.send(read, nil)
		time.Sleep(20 * time.Millisecond)
		require.Empty(t, target.Violations(), "31 outstanding with SQSIZE 31")
		h.send(read, nil)
		if mode != ModeNVMET {
			h.term(pdu.FESLimitExceeded, 0)
			require.NotEmpty(t, target.Violations(), "32 outstanding with SQSIZE 31")
			return
		}
		require.True(t, h.do(nvme.Flush(1), 0).cqe.Status.OK())
		require.NotEmpty(t, target.Violations(), "32 outstanding with SQSIZE 31")
		for range 40 {
			h.send(read, nil)
		}
		h.closed()
	})
}

func TestCIDInUse(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		target.SetFaults(Faults{Rules: []Rule{{Queue: IOQueue, Count: 1, Do: Action{Drop: true}}}})
		_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
		h.cid = 6
		h.send(nvme.Flush(1), nil)
		// The Connect of the queue was the command that was dropped? No: rules match by the queue that
		// a connection is, and before Connect that is none.
		h.cid = 6
		r := h.do(nvme.Flush(1), 0)
		require.Equal(t, mode == ModeStrict, r.cqe.Status.Code() == nvme.StatusCommandIDConflict)
		require.Len(t, target.Violations(), 1)
		require.Contains(t, target.Violations()[0], "CID 0x7 is used")
	})
}

func TestFlags(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
		sqe := nvme.Flush(1)
		sqe.Flags = 0
		r := h.do(sqe, 0)
		if mode == ModeSPDK {
			require.True(t, r.cqe.Status.OK())
		} else {
			require.Equal(t, nvme.StatusInvalidField.Status().WithDNR(), r.cqe.Status)
		}
		require.Len(t, target.Violations(), 1)
	})
}

func TestReservedBytes(t *testing.T) {
	target := start(t, Config{})
	h := dialRaw(t, target.Addr())
	b := (&pdu.ICReq{}).Append(nil)
	b[100] = 1
	h.write(b)
	require.Equal(t, pdu.TypeICResp, h.read().Type)
	require.Len(t, target.Violations(), 1)
	h.in.Ready = true
	sqe := nvme.KeepAlive()
	sqe.MPTR = 5
	require.Equal(t, nvme.StatusCommandSequenceError, h.do(sqe, 0).cqe.Status.Code())
	v := target.Violations()
	require.Len(t, v, 3)
	require.Contains(t, v[1], "reserved bytes")
	require.Contains(t, v[2], "Keep Alive before Connect")
}

func TestTransferLimits(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		target := start(t, Config{Mode: mode})
		_, h := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
		n := target.profile.limit() + 512
		sqe := nvme.Read(1, 0, uint16(n/512-1))
		sqe.SGL.Length = uint32(n)
		cid := h.send(sqe, nil)
		switch mode {
		case ModeNVMET:
			require.Equal(t, nvme.Status(0x400F<<1), h.wait(cid, 0, nil).cqe.Status)
			require.Empty(t, target.Violations())
		case ModeSPDK:
			h.term(pdu.FESLimitExceeded, 0)
		default:
			require.Equal(t, nvme.StatusInvalidField.Status().WithDNR(), h.wait(cid, 0, nil).cqe.Status)
			require.Len(t, target.Violations(), 1)
		}
	})
}

func TestSQHD(t *testing.T) {
	eachMode(t, func(t *testing.T, mode Mode) {
		for _, cattr := range []fabrics.CATTR{0, fabrics.CATTRDisableSQFlowControl} {
			target := start(t, Config{Mode: mode})
			adm, cntlid := admin(t, target.Addr(), target.NQN(), pdu.ICReq{})
			adm.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(1, 1), false), 0)
			h := dial(t, target.Addr(), pdu.ICReq{})
			r := h.connect(fabrics.Connect{QID: 1, SQSIZE: 3, CATTR: cattr}, target.NQN(), cntlid)
			if cattr != 0 && mode != ModeSPDK {
				require.EqualValues(t, 0xFFFF, r.cqe.SQHD)
				continue
			}
			require.EqualValues(t, 1, r.cqe.SQHD)
			for _, want := range []uint16{2, 3, 0, 1} {
				require.Equal(t, want, h.do(nvme.Flush(1), 0).cqe.SQHD)
			}
		}
	})
}
