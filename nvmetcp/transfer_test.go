package nvmetcp

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// TestF09F10F11Writes has targets that want writes in many R2Ts, H2CData of at most 4096 bytes, and data
// at odd places. They note every rule that the host breaks.
func TestF09F10F11Writes(t *testing.T) {
	for _, d := range drivers() {
		for cpda, r2t := range map[int]int{2: 4100, 6: 12000, 12: 512, 31: 4096} {
			for _, o := range []Options{{}, {HeaderDigest: true}, {HeaderDigest: true, DataDigest: true}} {
				t.Run(fmt.Sprintf("%s CPDA %d digests %t %t", d, cpda, o.HeaderDigest, o.DataDigest), func(t *testing.T) {
					c := disk(nvmetest.ModeStrict, 512, make([]byte, 1<<20))
					c.MAXH2CDATA, c.CPDA, c.R2TBytes, c.InCapsule = 4096, cpda, r2t, 1024
					o.Driver, o.NumIOQueues = d, 2
					ns := open(t, start(t, c), &o)
					b := content(300 << 10)
					for _, n := range []int{512, 1024, 4096, 4608, len(b)} {
						_, err := ns.WriteAt(b[:n], 4096)
						require.NoError(t, err)
						got := make([]byte, n)
						_, err = ns.ReadAt(got, 4096)
						require.NoError(t, err)
						require.True(t, bytes.Equal(b[:n], got), "%d bytes", n)
					}
				})
			}
		}
	}
}

// TestF38TermReqIsTold wants the controller's complaint in the error of whoever was waiting.
func TestF38TermReqIsTold(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			tgt := start(t, disk(nvmetest.ModeSPDK, 512, content(1<<20)))
			sub := dial(t, tgt, &Options{Driver: d, NumIOQueues: 2})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			term := &pdu.TermReq{Type: pdu.TypeC2HTermReq, FES: pdu.FESInvalidHeaderField, FEI: 0x01020304}
			tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Do: nvmetest.Action{Term: term}}}})
			_, err = ns.ReadAtContext(within(t, 10*time.Second), make([]byte, 512), 0)
			<-sub.Done()
			for _, err := range []error{err, sub.Err()} {
				require.ErrorIs(t, err, ErrTerminated)
				require.ErrorIs(t, err, ErrPathLost)
				require.NotErrorIs(t, err, ErrProtocol)
				var te *queue.TermError
				require.ErrorAs(t, err, &te)
				require.Equal(t, term.FES, te.FES)
				require.Equal(t, term.FEI, te.FEI)
				require.ErrorContains(t, err, "Invalid PDU Header Field")
			}
			require.Empty(t, tgt.Stats().TermReqs, "it is never answered with another")
		})
	}
}

// TestF06F07F08F35Breaches has a target that breaks the protocol in the answer to one command. The host
// ends the association and says why, and nothing is written beside a buffer.
func TestF06F07F08F35Breaches(t *testing.T) {
	reads := []nvmetest.Breach{
		nvmetest.BreachDuplicateResp, nvmetest.BreachUnknownCID, nvmetest.BreachSecondICResp,
		nvmetest.BreachSuccessWithoutLast, nvmetest.BreachSuccessThenResp, nvmetest.BreachDataOutOfOrder,
		nvmetest.BreachDataOverlap, nvmetest.BreachDataOutOfRange, nvmetest.BreachDataOffset,
		nvmetest.BreachDataUnknownCCCID, nvmetest.BreachShortRead, nvmetest.BreachNoData,
		nvmetest.BreachEarlyResp, nvmetest.BreachR2TForRead,
	}
	writes := []nvmetest.Breach{
		nvmetest.BreachDuplicateResp, nvmetest.BreachUnknownCID, nvmetest.BreachDataForWrite,
		nvmetest.BreachR2TZero, nvmetest.BreachR2TOffset, nvmetest.BreachR2TBeyond, nvmetest.BreachR2TUnknown,
		nvmetest.BreachR2TTooMany, nvmetest.BreachR2TTwice, nvmetest.BreachSuccessNoR2T, nvmetest.BreachSuccessInsteadOfData,
	}
	const n = 64 << 10
	data := content(n)
	for _, d := range drivers() {
		for _, op := range []nvme.Opcode{nvme.OpRead, nvme.OpWrite} {
			list := reads
			if op == nvme.OpWrite {
				list = writes
			}
			for _, breach := range list {
				t.Run(fmt.Sprintf("%s %s %d", d, op.NVMName(), breach), func(t *testing.T) {
					tgt := start(t, disk(nvmetest.ModeSPDK, 512, data))
					sub := dial(t, tgt, &Options{Driver: d, NumIOQueues: 1})
					ns, err := sub.Namespace(t.Context(), 1)
					require.NoError(t, err)
					tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
						Opcodes: []nvme.Opcode{op}, Queue: nvmetest.IOQueue, Do: nvmetest.Action{Breach: breach},
					}}})
					ctx, g := within(t, 10*time.Second), newGuarded(n)
					if op == nvme.OpRead {
						_, err = ns.ReadAtContext(ctx, g.b, 0)
					} else {
						_, err = ns.WriteAtContext(ctx, g.b, 0)
					}
					g.check(t)
					if err == nil { // the answer came before what was wrong
						require.True(t, op == nvme.OpWrite || bytes.Equal(data, g.b))
					} else {
						require.ErrorIs(t, err, ErrProtocol)
						require.ErrorIs(t, err, ErrPathLost)
					}
					<-sub.Done()
					require.ErrorIs(t, sub.Err(), ErrProtocol)
					require.Eventually(t, func() bool { return len(tgt.Stats().TermReqs) == 1 }, 5*time.Second, time.Millisecond, "the target is told")
				})
			}
		}
	}
}
