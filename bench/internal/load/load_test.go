package load

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// TestDo wants exactly as many I/Os as were asked for, by each way in, and every offset inside.
func TestDo(t *testing.T) {
	for _, c := range []struct {
		name    string
		api     API
		reads   int
		queues  int
		threads int
		n       int64
	}{
		{"feed", Feed, 100, 1, 1, 1000},
		{"feed of fewer than are queued", Feed, 100, 1, 1, 3},
		{"feed on three queues", Feed, 100, 3, 1, 1001},
		{"writes", Feed, 0, 1, 1, 500},
		{"ReadAt", ReadAt, 100, 2, 5, 123},
		{"WriteAt", ReadAt, 0, 1, 2, 99},
		{"ReadBatch", Batch, 100, 1, 3, 100},
		{"nothing", Feed, 100, 1, 1, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			tgt, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
				NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 4096, Backend: nvmetest.Memory(100 * 4096)}},
			}}})
			require.NoError(t, err)
			defer tgt.Close()
			l, err := Open(t.Context(), Config{
				Host: nvmetcp.UniqueHost(), Target: nvmetcp.Target{Addr: tgt.Addr(), NQN: tgt.NQN()}, NSID: 1,
				QueuesPerCPU: c.queues, Depth: 16, Size: 3 * 4096, Pattern: Pattern{Random: true, Reads: c.reads}, API: c.api, Threads: c.threads,
			})
			require.NoError(t, err)
			for range 2 { // a load may be used again
				require.NoError(t, l.Do(t.Context(), c.n))
			}
			require.NoError(t, l.Close())
			s := tgt.Stats()
			op := nvme.OpRead
			if c.reads == 0 {
				op = nvme.OpWrite
			}
			require.Equal(t, uint64(2*c.n), s.IO[op])
			require.Empty(t, s.Errors)
			require.Empty(t, tgt.Violations())
		})
	}
}

func TestConfigRefused(t *testing.T) {
	good := Config{QueuesPerCPU: 1, Depth: 1, Size: 4096, Pattern: Pattern{Reads: 100}, API: Feed, Threads: 1}
	require.NoError(t, good.check())
	for _, change := range []func(*Config){
		func(c *Config) { c.Size = 0 },
		func(c *Config) { c.Depth = 0 },
		func(c *Config) { c.QueuesPerCPU = 0 },
		func(c *Config) { c.API = "" },
		func(c *Config) { c.API, c.Threads = ReadAt, 0 },
		func(c *Config) { c.API, c.Pattern.Reads = Batch, 50 },
	} {
		bad := good
		change(&bad)
		_, err := Open(t.Context(), bad)
		require.Error(t, err)
	}
}
