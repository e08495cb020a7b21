package main

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/queue"
)

func compareJSON(t *testing.T, args ...string) comparison {
	t.Helper()
	status, out, stderr := call(t.Context(), append([]string{"compare", "--quick", "--json"}, args...)...)
	require.Equal(t, exitOK, status, stderr)
	var c comparison
	require.NoError(t, json.Unmarshal([]byte(out), &c))
	return c
}

// TestCompare runs a row of each kind, with all its children.
func TestCompare(t *testing.T) {
	c := compareJSON(t, "--only", "^(sleeping, |hand-off, )?4 KiB randread QD1$")
	require.NotEmpty(t, c.Network)
	require.Contains(t, c.Target, "nvmetest")
	require.Len(t, c.Rows, 3)
	for _, r := range c.Rows {
		require.GreaterOrEqual(t, len(r.Subjects), 2)
		for i, s := range r.Subjects {
			if strings.HasPrefix(s.Name, string(queue.DriverURing)) && s.Error != "" { // not every kernel lets us
				continue
			}
			require.Empty(t, s.Error, "%s: %s", r.Name, s.Name)
			require.Equal(t, 1, s.Runs)
			require.NotNil(t, s.CPU)
			if i > 0 && r.Subjects[0].IOPS.Median > 0 {
				require.NotNil(t, s.Ratio)
			}
		}
	}
}

func TestCompareText(t *testing.T) {
	status, out, stderr := call(t.Context(), "compare", "--quick", "--own-network=false", "--driver", "epoll", "--only", "^128 KiB randread QD8$")
	require.Equal(t, exitOK, status, stderr)
	for _, want := range []string{"congestion control", "128 KiB randread QD8\n", "raw stream", "epoll", "× raw stream"} {
		require.Contains(t, out, want)
	}
}

// TestComparePeer has a shell script for a peer, and for the command that starts a target this program.
func TestComparePeer(t *testing.T) {
	dir := t.TempDir()
	script := filepath.Join(dir, "peer")
	require.NoError(t, os.WriteFile(script, []byte(`#!/bin/sh
echo "$@" >`+dir+`/args
echo "Total                                :   48000.50     187.50      20.71      17.00    1234.20"
echo " 50.00000% :    18.816us"
`), 0o755))
	tgt := start(t)
	c := compareJSON(t, "--only", "^128 KiB randread QD8 HDGST DDGST$", "--driver", "epoll", "--peer", script+" --no-huge", "--target", "mine@"+tgt.Addr())
	require.Contains(t, c.Target, "mine at "+tgt.Addr())
	require.Contains(t, c.Network, "where the target is")
	s := c.Rows[0].Subjects
	require.Len(t, s, 4)
	require.Equal(t, "peer", s[3].Name)
	require.InDelta(t, 48000.5, s[3].IOPS.Median, 0.01)
	require.InDelta(t, 18.816, s[3].P50.Median, 0.0001)
	require.NotNil(t, s[2].ToPeer)
	require.InDelta(t, s[2].IOPS.Median/48000.5, s[2].ToPeer.Median, 1e-6)
	args, err := os.ReadFile(filepath.Join(dir, "args"))
	require.NoError(t, err)
	require.Contains(t, string(args), "--no-huge -w randread -o 131072 -q 8 -L -H -I -t 1 -c 0x")
	require.Contains(t, string(args), "-r trtype:TCP adrfam:IPv4 traddr:127.0.0.1 trsvcid:"+strings.Split(tgt.Addr(), ":")[1]+" subnqn:"+tgt.NQN())
}

// TestCompareTargetCmd is a target that the comparison starts, stops while others are measured, and ends.
func TestCompareTargetCmd(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	addr := filepath.Join(t.TempDir(), "addr")
	// Its port is not known beforehand, so the address that is looked for is that of another target.
	tgt := start(t)
	c := compareJSON(t, "--only", "^4 KiB randread QD1$", "--driver", "epoll", "--own-network=false",
		"--target", "mine@"+tgt.Addr(), "--target-cmd", self+" null-target >"+addr)
	require.Empty(t, c.Rows[0].Subjects[1].Error)
	require.FileExists(t, addr)
}

func TestCompareInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	stop := time.AfterFunc(500*time.Millisecond, func() { cancel(errInterrupted) })
	defer stop.Stop()
	began := time.Now()
	status, _, stderr := call(ctx, "compare", "--runs", "1000", "--only", "^4 KiB randread QD1$")
	require.Equal(t, exitInterrupted, status, stderr)
	require.Less(t, time.Since(began), 20*time.Second)
}

// TestCompareFailures are comparisons that cannot be made: an error, and no child left.
func TestCompareFailures(t *testing.T) {
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--only", "nothing"}, exitUsage, "matches no row"},
		{[]string{"--only", "("}, exitUsage, "--only"},
		{[]string{"--driver", "auto"}, exitUsage, "--driver"},
		{[]string{"--json", "--markdown"}, exitUsage, "not both"},
		{[]string{"--runs", "0"}, exitUsage, "run"},
		{[]string{"--target-cmd", "true"}, exitUsage, "--target"},
		{[]string{"--target", "x@nowhere"}, exitUsage, "HOST:PORT"},
	} {
		status, _, stderr := call(t.Context(), append([]string{"compare"}, c.args...)...)
		require.Equal(t, c.code, status, stderr)
		require.Contains(t, stderr, c.want)
	}
	// A target that says no: the raw wire is measured all the same, and the row tells why the other was not.
	tgt := start(t)
	status, out, stderr := call(t.Context(), "compare", "--quick", "--driver", "epoll", "--only", "^4 KiB randread QD1$",
		"--target", "mine@"+tgt.Addr()+"/nqn.2025-01.io.nvstage:other")
	require.Equal(t, exitOK, status, stderr)
	require.Contains(t, out, "failed: ")
	require.Contains(t, out, "nqn.2025-01.io.nvstage:other")
}
