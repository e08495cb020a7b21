package main

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryLimit(t *testing.T) {
	small := []string{"--size", "4M", "--json"}
	for want, args := range map[int64][]string{
		64 << 20: {"--memory-limit", "1G"},
		5 << 20:  {"--memory-limit", "5M"}, // the default is smaller then
		3 << 20:  {"--memory", "3M", "--memory-limit", "5M"},
		8 << 20:  {"--memory", "8M", "--memory-limit", "13M", "--device", "host"},
	} {
		require.Equal(t, want, decodeReport(t, succeeds(t, append(small, args...)...).out).Pool.Bytes)
	}
	o := shardload(t, "--size", "4M", "--memory", "2M", "--memory-limit", "4M", "--device", "host")
	require.Equal(t, exitFailed, o.status)
	require.Regexp(t, `^shardload: the tensors' memory: .* asked for, 2 MiB free of the memory limit of 4 MiB: `, o.line(t))
	require.Empty(t, o.out)
}

func TestPoolFlags(t *testing.T) {
	load := func(args ...string) poolReport {
		return decodeReport(t, succeeds(t, append([]string{"--size", "1M", "--memory", "2M", "--json"}, args...)...).out).Pool
	}
	p := load("--hugepages", "never", "--pool-debug")
	require.False(t, p.HugePages)
	require.NotEmpty(t, p.HugePagesNote)
	require.True(t, p.Debug)
	require.False(t, load().Debug)
	require.Contains(t, succeeds(t, "--size", "1M", "--memory", "2M", "--pool-debug").out, ", guarded")

	o := shardload(t, "--size", "1M", "--memory", "2M", "--json", "--hugepages", "require")
	if o.status == exitOK {
		require.True(t, decodeReport(t, o.out).Pool.HugePages)
	} else {
		require.Equal(t, exitFailed, o.status)
		require.Contains(t, o.line(t), "pages")
		require.Empty(t, o.out)
	}
	o = shardload(t, "--size", "1M", "--memory", "2M", "--json", "--numa-node", "0")
	if o.status == exitOK {
		require.Zero(t, decodeReport(t, o.out).Pool.Node)
	} else {
		require.Contains(t, o.line(t), "NUMA node")
	}
	o = shardload(t, "--size", "1M", "--numa-node", "4096")
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "NUMA node")
}

// Ctrl-C does not wait until all of a large pool is pinned.
func TestPoolInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	_, _, err := (&poolFlags{}).open(ctx, nil)
	require.ErrorIs(t, err, errInterrupted)
}
