package main

import (
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// TestReportIsDocumented compares the fields that reports have with those that README.md explains.
func TestReportIsDocumented(t *testing.T) {
	text, err := os.ReadFile("README.md")
	require.NoError(t, err)
	var documented []string
	for _, m := range regexp.MustCompile("(?m)^\\| `([^`]+)` \\|").FindAllSubmatch(text, -1) {
		documented = append(documented, string(m[1]))
	}
	slices.Sort(documented)

	file := generated(t, "1M")[0]
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{Backend: nvmetest.Memory(1 << 20)})
	var found []string
	for _, args := range [][]string{
		{"--size", "1M", "--json", "--memory", "1M", "--device", "host", "--rank", "0/2", "--layers", "0-1"},
		{"--size", "1M", "--json", "--memory", "1M"},
		at(target, "put", "-y", "--json", "--nsid", "1", file),
		at(target, "verify", "--json", "--file", file),
	} {
		var v any
		require.NoError(t, json.Unmarshal([]byte(succeeds(t, args...).out), &v))
		found = fields(found, "", v)
	}
	optional := &report{
		Device: &deviceReport{GPU: &gpuReport{}}, Shards: []shardReport{{LZ4: &lz4Report{}}}, PeakBytes: 1, Queues: []queueReport{{}}, Pinning: pinningReport{Interface: "eth0"},
		Pool:      poolReport{HugePagesNote: "n", LockNote: "n", NodeNote: "n", RegisterNote: "n", GuardNote: "n"},
		Checksums: &checkedReport{Extra: []string{"t"}, Missing: []string{"t"}},
	} // depends on the machine and the flags
	text, err = json.Marshal(optional)
	require.NoError(t, err)
	var v any
	require.NoError(t, json.Unmarshal(text, &v))
	found = fields(found, "", v)
	slices.Sort(found)
	require.Equal(t, documented, slices.Compact(found))
}

// fields appends the paths of all fields in v.
func fields(to []string, path string, v any) []string {
	switch v := v.(type) {
	case map[string]any:
		for name, field := range v {
			p := name
			if path != "" {
				p = path + "." + name
			}
			to = fields(to, p, field)
		}
		return to
	case []any:
		if len(v) == 0 {
			return append(to, path)
		}
		if _, ok := v[0].(map[string]any); ok {
			path += "[]"
		}
		for _, e := range v {
			to = fields(to, path, e)
		}
		return to
	}
	return append(to, path)
}

func TestReportAddsUp(t *testing.T) {
	r := decodeReport(t, succeeds(t, "--size", "16M", "--json", "-i", "3", "-Q", "32", "-g").out)
	require.Equal(t, "load", r.Command)
	require.Equal(t, embeddedNQN, r.Target.NQN)
	require.True(t, r.Target.Embedded)
	require.True(t, r.CPU.IncludesTarget)
	require.Equal(t, "CRC-32C", r.CPU.IncludesHash)
	require.Positive(t, r.CPU.Seconds)
	require.InDelta(t, gib(r.Bytes)/r.Seconds, r.GiBPerSec, 1e-6)
	require.InDelta(t, r.CPU.Seconds/gib(r.Bytes), r.CPU.SecondsPerGiB, 1e-6)
	require.InDelta(t, 16<<20, r.Bytes, 1<<14)
	require.Len(t, r.Queues, 3)
	for i, q := range r.Queues {
		require.Equal(t, uint16(i+1), q.QID)
		require.Equal(t, 31, q.Depth)
		require.True(t, q.HeaderDigest)
		require.False(t, q.DataDigest)
		require.NotEmpty(t, q.Driver)
	}
	l := r.LatencyUS
	require.GreaterOrEqual(t, l.IOs, int64(16))
	require.Positive(t, l.P50)
	require.True(t, l.P50 <= l.P95 && l.P95 <= l.P99 && l.P99 <= l.P999 && l.P999 <= l.Max, "%+v", l)
	m := r.Milestones
	require.Equal(t, "model.embed_tokens.weight", m.Tensor)
	require.Equal(t, "model.layers.0", m.Layer)
	require.True(t, 0 < m.Opened && m.Opened < m.FirstTensor && m.FirstTensor < m.FirstLayer && m.FirstLayer < m.FirstToken && m.FirstToken <= m.Total, "%+v", m)
	require.InDelta(t, m.Total-m.Opened, r.Seconds, 1e-6)
	tensors := 0
	for i, s := range r.Shards {
		require.Equal(t, uint32(i+1), s.NSID)
		tensors += s.Tensors
	}
	require.Equal(t, r.Tensors, tensors)
	require.Equal(t, &checkedReport{Algorithm: "CRC-32C", Against: "the generator", Compared: tensors, Wrong: []string{}}, r.Checksums)
	require.EqualValues(t, 64<<20, r.Pool.Bytes)
}

// What is not as asked for is not silent.
func TestFallbacksAreReported(t *testing.T) {
	target, err := nvmetest.Start(nvmetest.Config{
		MaxIOQueues: 2, Subsystems: []nvmetest.Subsystem{{NQN: testNQN, Namespaces: []nvmetest.Namespace{{Backend: nvmetest.Memory(1 << 20)}}}},
	})
	require.NoError(t, err)
	defer target.Close()
	succeeds(t, at(target, "put", "-y", "--nsid", "1", generated(t, "1M")[0])...)
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue: nvmetest.IOQueue, Nth: 1, Count: 1, Do: nvmetest.Action{CorruptDataDigest: true},
	}}})
	o := succeeds(t, at(target, "", "-i", "5", "-G")...)
	require.Contains(t, o.out, "the controller granted 2 of the 5 I/O queues asked for\n")
	require.Contains(t, o.out, "1 command was sent again\n")
	require.Contains(t, o.out, "digests: data")
	require.Contains(t, o.out, "checksums  not compared")
}

func TestPinningIsReported(t *testing.T) {
	for want, p := range map[string]pinningReport{
		"none: not asked for":        {CPUs: []int{-1, -1}, Reason: "not asked for"},
		"CPUs 2,0: listed":           {CPUs: []int{2, 0}, Reason: "listed"},
		"1 of 2 queues, CPUs 3: few": {CPUs: []int{-1, 3}, Reason: "few"},
	} {
		require.Equal(t, want, p.String())
	}
	o := succeeds(t, "--size", "1M", "-i", "1", "--pin", "local", "--memory", "1M")
	require.Contains(t, o.out, "pinning ")
	require.NotContains(t, o.out, "not asked for")
	allowed, err := topo.CPUs()
	if err != nil {
		t.Skip("the process's CPUs are not known on this system")
	}
	o = succeeds(t, "--size", "1M", "-i", "1", "--pin", strconv.Itoa(allowed[0]), "--memory", "1M")
	require.Regexp(t, `pinning +(CPUs|none).*listed with --pin`, o.out)
	require.NotContains(t, o.out, "Options.")
	o = shardload(t, "--size", "1M", "--pin", "8191")
	require.Equal(t, exitUsage, o.status)
	require.Contains(t, o.line(t), "--pin 8191: this process may not use CPU 8191, only "+topo.FormatList(allowed))
}

func TestLatencies(t *testing.T) {
	l := newLatencies()
	for i := 1; i <= 1000; i++ {
		l.add(time.Duration(i) * time.Millisecond)
	}
	r := l.report()
	require.EqualValues(t, 1000, r.IOs)
	for want, got := range map[float64]float64{500e3: r.P50, 950e3: r.P95, 990e3: r.P99, 999e3: r.P999, 1000e3: r.Max} {
		require.InEpsilon(t, want, got, 2e-3)
	}
	l.add(0)
	l.add(100 * time.Hour) // counts as the longest that there is
	require.EqualValues(t, 1002, l.report().IOs)
	require.InEpsilon(t, float64(maxLatency/time.Microsecond), l.report().Max, 2e-3)
	require.Zero(t, testing.AllocsPerRun(1000, func() { l.add(time.Millisecond) }))
	require.Zero(t, newLatencies().report())
}
