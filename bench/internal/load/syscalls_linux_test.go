package load

import (
	"context"
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// TestSystemCalls holds the system calls of an I/O, which cost more than anything else in it, against what
// batches need. A receive policy that takes large payloads in small slices, or a send for each command,
// fails here. The queue sleeps at once when there is nothing, so that how often it looked in vain, which
// depends on what else the machine does, hardly counts; the best of some runs does.
func TestSystemCalls(t *testing.T) {
	if raceEnabled {
		t.Skip("the race detector makes the target so slow that there is little to receive at once")
	}
	for _, c := range []struct {
		name  string
		size  int
		depth int
		reads int
		most  float64
	}{
		{"4 KiB reads", 4 << 10, 128, 100, 0.35},
		{"128 KiB reads", 128 << 10, 8, 100, 2},
		{"1 MiB reads", 1 << 20, 8, 100, 12},
		{"4 KiB writes", 4 << 10, 128, 0, 0.35},
		{"128 KiB writes", 128 << 10, 8, 0, 2.5},
		{"1 MiB writes", 1 << 20, 8, 0, 6},
	} {
		for _, d := range []queue.Driver{queue.DriverEpoll, queue.DriverURing} {
			t.Run(c.name+"/"+string(d), func(t *testing.T) {
				tgt, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
					NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: nvmetest.Null(1 << 30)}},
				}}})
				require.NoError(t, err)
				defer tgt.Close()
				fewest := math.Inf(1)
				for range 8 {
					r := callsOf(t, Config{
						Host: nvmetcp.UniqueHost(), Target: nvmetcp.Target{Addr: tgt.Addr(), NQN: tgt.NQN()}, NSID: 1,
						Options: nvmetcp.Options{Driver: d, Spin: -1}, QueuesPerCPU: 1, Depth: c.depth, Size: c.size,
						Pattern: Pattern{Random: true, Reads: c.reads}, API: Feed, Warmup: 50 * time.Millisecond, Time: 200 * time.Millisecond,
					})
					t.Logf("%.2f system calls and %.2f sleeps per I/O, %d I/Os", r.Calls, r.Sleeps, r.Ops)
					require.Positive(t, r.Calls)
					if fewest = min(fewest, r.Calls); fewest <= c.most {
						return
					}
				}
				require.LessOrEqual(t, fewest, c.most)
			})
		}
	}
}

func callsOf(t *testing.T, cfg Config) *measure.Report {
	t.Helper()
	l, err := Open(t.Context(), cfg)
	if err != nil && cfg.Options.Driver == queue.DriverURing {
		t.Skipf("io_uring cannot be had here: %v", err)
	}
	require.NoError(t, err)
	defer l.Close()
	res, err := l.Run(context.Background())
	require.NoError(t, err)
	return &res.Report
}
