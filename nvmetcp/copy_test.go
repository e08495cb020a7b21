package nvmetcp

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// F05: with CopyWrites a buffer may be changed while it is written, and what was in it at the call arrives.
func TestF05CopyWrites(t *testing.T) {
	for _, d := range drivers() {
		t.Run(string(d), func(t *testing.T) {
			want := content(64 << 10)
			tgt := start(t, disk(nvmetest.ModeNVMET, 512, make([]byte, 1<<20)))
			sub := dial(t, tgt, &Options{Driver: d, DataDigest: true, CopyWrites: true})
			ns, err := sub.Namespace(t.Context(), 1)
			require.NoError(t, err)
			arrived, changed := make(chan struct{}), make(chan struct{})
			tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
				if c.SQE.Opcode == nvme.OpWrite && c.QID > 0 { // before its data is asked for
					close(arrived)
					<-changed
				}
				return nvmetest.Action{}
			}})
			buf := append([]byte(nil), want...)
			done := make(chan error)
			go func() {
				_, err := ns.WriteAt(buf, 0)
				done <- err
			}()
			<-arrived
			clear(buf)
			close(changed)
			require.NoError(t, <-done)
			got := make([]byte, len(want))
			_, err = ns.ReadAt(got, 0)
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}
