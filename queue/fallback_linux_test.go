package queue_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// Where descriptors are short, the driver that needs none does it, and says why. A driver that was asked
// for is not replaced.
func TestFallback(t *testing.T) {
	for more := range uint64(3) { // descriptors that can be had
		for _, d := range []queue.Driver{queue.DriverAuto, queue.DriverEpoll} {
			fds := openFDs(t)
			host, ctrl := tcpPair(t)
			go func() {
				req := make([]byte, 128)
				ctrl.Read(req)
				resp := pdu.ICResp{MAXH2CDATA: 4096}
				ctrl.Write(resp.Append(nil))
				if n, _ := ctrl.Read(req); n == 72 {
					var r pdu.CapsuleResp
					copy(r.CQE[12:14], req[10:12])
					ctrl.Write(r.Append(nil, pdu.Layout{}))
				}
			}()
			q, err := func() (*queue.Queue, error) {
				next, err := unix.Dup(0)
				require.NoError(t, err)
				unix.Close(next)
				var old unix.Rlimit
				require.NoError(t, unix.Getrlimit(unix.RLIMIT_NOFILE, &old))
				require.NoError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: uint64(next) + more, Max: old.Max}))
				defer unix.Setrlimit(unix.RLIMIT_NOFILE, &old)
				return queue.New(t.Context(), host, queue.Config{Driver: d})
			}()
			if d == queue.DriverEpoll {
				require.ErrorIs(t, err, unix.EMFILE)
				ctrl.Close()
				require.LessOrEqual(t, openFDs(t), fds, "leaked descriptors")
				continue
			}
			require.NoError(t, err)
			require.Equal(t, queue.DriverConn, q.Info().Driver)
			require.Contains(t, strings.Join(q.Info().Notes, "\n"), unix.EMFILE.Error())
			cmd := queue.Command{SQE: nvme.Flush(1)}
			require.NoError(t, q.Do(t.Context(), &cmd))
			q.Close()
			ctrl.Close()
			require.LessOrEqual(t, openFDs(t), fds, "leaked descriptors")
		}
	}
}
