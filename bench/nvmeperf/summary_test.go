package main

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/bench/internal/measure"
)

func TestSpread(t *testing.T) {
	require.Nil(t, spreadOf(nil))
	require.Equal(t, &spread{2, 1, 9}, spreadOf([]float64{9, 1, 2}))
	require.Equal(t, &spread{3, 1, 9}, spreadOf([]float64{9, 1, 2, 4}))
}

// TestRatiosArePaired: what drifts from turn to turn is not in the ratio.
func TestRatiosArePaired(t *testing.T) {
	at := func(iops ...float64) []*measure.Report {
		var all []*measure.Report
		for _, v := range iops {
			if v == 0 {
				all = append(all, nil)
				continue
			}
			all = append(all, &measure.Report{IOPS: v, Latency: &measure.Latency{P50: 1e6 / v}})
		}
		return all
	}
	r := rowSummary{Name: "row", Subjects: []subjectSummary{
		{Name: "raw", runs: at(100, 200, 400)},
		{Name: "ours", runs: at(50, 100, 200)},
		{Name: "broken", runs: at(0, 100, 0), Error: "why"},
		{Name: "peer", runs: at(25, 50, 100)},
		{Name: "dead", runs: at(0, 0, 0), Error: "because"},
	}}
	r.summarize()
	require.Equal(t, spread{100, 50, 200}, r.Subjects[1].IOPS)
	require.Equal(t, &spread{0.5, 0.5, 0.5}, r.Subjects[1].Ratio)
	require.Equal(t, &spread{2, 2, 2}, r.Subjects[1].P50To)
	require.Equal(t, &spread{2, 2, 2}, r.Subjects[1].ToPeer)
	require.Equal(t, 1, r.Subjects[2].Runs)
	require.Equal(t, &spread{0.5, 0.5, 0.5}, r.Subjects[2].Ratio)
	require.Nil(t, r.Subjects[3].ToPeer)
	require.Nil(t, r.Subjects[4].Ratio)
	var b strings.Builder
	require.NoError(t, r.print(&b))
	require.Contains(t, b.String(), "= 0.50 × raw")
	var md strings.Builder
	require.NoError(t, r.markdown(&md))
	cells := strings.Count(markdownHead[:strings.IndexByte(markdownHead, '\n')], "|")
	for line := range strings.Lines(md.String()) {
		require.Equal(t, cells, strings.Count(line, "|"), line)
	}
	require.Contains(t, md.String(), "|  | dead | failed |")
	require.Contains(t, b.String(), "failed: because")
	require.Contains(t, b.String(), "2.00 × peer")
}

func TestParsePeer(t *testing.T) {
	const table = `Initializing NVMe Controllers
========================================================
                                                                                                               Latency(us)
Device Information                                                       :       IOPS      MiB/s    Average        min        max
TCP (addr:127.0.0.1 subnqn:nqn.2016-06.io.spdk:cnode1) NSID 1 from core  1:  489500.10    1912.11      65.31      20.10    2210.00
========================================================
`
	r, err := parsePeer(table, 4096)
	require.NoError(t, err)
	require.InDelta(t, 489500.1, r.IOPS, 0.01)
	require.Nil(t, r.Latency)
	r, err = parsePeer(table+"Total  :  500000.00    1953.12      65.31      20.10    2210.00\n\n  1.00000% :    30.000us\n 50.00000% :    61.696us\n 99.90000% :   150.001us\n", 4096)
	require.NoError(t, err)
	require.InDelta(t, 5e5, r.IOPS, 0.01)
	require.InDelta(t, 61.696, r.Latency.P50, 1e-6)
	require.InDelta(t, 150.001, r.Latency.P999, 1e-6)
	_, err = parsePeer("ERROR: no hugepages\n", 4096)
	require.Error(t, err)
}
