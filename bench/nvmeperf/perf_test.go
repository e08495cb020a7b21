package main

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// TestLoad runs every API a moment, and holds what is reported against what the target has seen.
func TestLoad(t *testing.T) {
	for _, c := range []struct {
		name string
		args []string
		read bool
	}{
		{"feed", []string{"-q", "16"}, true},
		{"feed on two queues", []string{"-q", "4", "-P", "2", "-w", "read", "-o", "64k"}, true},
		{"feed of writes", []string{"-q", "8", "-w", "randwrite"}, false},
		{"feed with digests", []string{"-q", "8", "--hdgst", "--ddgst"}, true},
		{"never spinning", []string{"-q", "1", "--spin", "0"}, true},
		{"readat", []string{"--api", "readat"}, true},
		{"readat from many", []string{"--api", "readat", "--threads", "20"}, true},
		{"writeat", []string{"--api", "readat", "-w", "write"}, false},
		{"batch", []string{"--api", "batch", "-q", "16", "--threads", "2"}, true},
		{"net.Conn", []string{"--driver", "net.Conn"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			tgt := start(t)
			r := report(t, append(append(at(tgt), "-t", "200ms", "--warmup", "10ms", "-L"), c.args...)...)
			require.Equal(t, "perf", r.Command)
			require.Positive(t, r.Ops)
			require.InDelta(t, float64(r.Ops)/r.Seconds, r.IOPS, 1)
			require.InDelta(t, r.IOPS*float64(r.Work.Size), r.BytesPS, 1e4)
			require.NotNil(t, r.Latency)
			require.LessOrEqual(t, r.Latency.Min, r.Latency.P50)
			require.LessOrEqual(t, r.Latency.P50, r.Latency.Max)
			require.NotEmpty(t, r.Percentiles)
			require.Empty(t, r.Histogram)
			if r.Driver != string(queue.DriverConn) { // which cannot count them
				require.Positive(t, r.Calls)
			}
			require.NotEmpty(t, r.Driver)
			s := tgt.Stats()
			reads, writes := s.IO[nvme.OpRead], s.IO[nvme.OpWrite]
			if c.read {
				require.GreaterOrEqual(t, reads, uint64(r.Ops))
				require.Zero(t, writes)
			} else {
				require.GreaterOrEqual(t, writes, uint64(r.Ops))
				require.Zero(t, reads)
			}
		})
	}
}

func TestMix(t *testing.T) {
	tgt := start(t)
	r := report(t, append(at(tgt), "-t", "200ms", "-w", "randrw", "-M", "80")...)
	require.Equal(t, 80, r.Work.ReadPercent)
	s := tgt.Stats()
	all := float64(s.IO[nvme.OpRead] + s.IO[nvme.OpWrite])
	if all > 1000 {
		require.InDelta(t, 0.8, float64(s.IO[nvme.OpRead])/all, 0.08)
	}
}

// TestGarbage has the collector run beside a load, which itself allocates nothing.
func TestGarbage(t *testing.T) {
	tgt := start(t)
	r := report(t, append(at(tgt), "-t", "2s", "--garbage", "512M")...)
	require.Positive(t, r.GCs)
	require.Equal(t, 512<<20, r.Work.Garbage)
	require.Positive(t, r.Ops)
}

func TestText(t *testing.T) {
	tgt := start(t)
	status, out, stderr := call(t.Context(), append(at(tgt), "-t", "100ms", "-LL")...)
	require.Equal(t, exitOK, status, stderr)
	for _, want := range []string{"IOPS", "MiB/s", "p99.9", "99.99000%", "range in µs", "system calls"} {
		require.Contains(t, out, want)
	}
}

// loaded waits until a load has begun, or the test has ended.
func loaded(t *testing.T, tgt *nvmetest.Target) {
	for t.Context().Err() == nil && tgt.Stats().IO[nvme.OpRead] == 0 {
		time.Sleep(time.Millisecond)
	}
}

// TestFailure is a target that goes away: an error, and soon.
func TestFailure(t *testing.T) {
	for _, api := range []string{"feed", "readat", "batch"} {
		tgt := start(t)
		go func() {
			loaded(t, tgt)
			time.Sleep(100 * time.Millisecond)
			tgt.CloseConnections()
		}()
		status, out, stderr := call(t.Context(), append(at(tgt), "-t", "1h", "--api", api)...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, tgt.Addr())
		require.Empty(t, out)
	}
}

// TestCutShort is Ctrl-C: what was measured until then is reported all the same.
func TestCutShort(t *testing.T) {
	for _, api := range []string{"feed", "readat", "batch"} {
		tgt := start(t)
		ctx, cancel := context.WithCancelCause(t.Context())
		go func() {
			loaded(t, tgt)
			time.Sleep(300 * time.Millisecond)
			cancel(errInterrupted)
		}()
		status, out, _ := call(ctx, append(at(tgt), "-t", "1h", "--api", api)...)
		require.Equal(t, exitInterrupted, status)
		require.Contains(t, out, "IOPS")
	}
}

func TestSizesThatDoNotFit(t *testing.T) {
	tgt := start(t)
	for _, size := range []string{"1000", "1G"} {
		status, _, stderr := call(t.Context(), append(at(tgt), "-t", "100ms", "-o", size)...)
		require.Equal(t, exitFailed, status)
		require.Contains(t, stderr, "I/O size")
	}
}
