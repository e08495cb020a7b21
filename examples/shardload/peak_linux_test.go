//go:build !race

package main

import (
	"bytes"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/require"
)

// A load takes no memory beyond the pool that grows with the model. (The race detector takes much more.)
func TestPeakMemory(t *testing.T) {
	target := modelTarget(t, 1<<30, 0)
	for _, order := range []string{"layer", "file"} {
		const pool = 32 << 20
		cmd := program(t, at(target, "", "--memory", "32M", "--order", order, "--hugepages", "never", "--json")...)
		r := reportOf(t, cmd)
		require.InDelta(t, 1<<30, r.Bytes, 8<<20)
		require.Greater(t, r.PeakBytes, int64(pool), "the pool is in it")
		require.LessOrEqual(t, r.PeakBytes, int64(pool+64<<20))
		t.Logf("%s order: peak %s with a pool of %s", order, bytesText(r.PeakBytes), bytesText(pool))
	}
	// The model itself would be noticed.
	small := modelTarget(t, 128<<20, 0)
	r := reportOf(t, program(t, at(small, "", "--memory", "4M", "--device", "host", "--json")...))
	require.Greater(t, r.PeakBytes, r.Bytes)
}

func reportOf(t *testing.T, cmd *exec.Cmd) *report {
	t.Helper()
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	require.NoError(t, cmd.Run(), errs.String())
	return decodeReport(t, out.String())
}
