package measure

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestLatencies(t *testing.T) {
	l := NewLatencies()
	require.Nil(t, l.Summary())
	for i := range 1000 {
		l.Add(time.Duration(i+1) * time.Microsecond)
	}
	l.AddN(2*longest, 1) // counted as the longest
	s := l.Summary()
	require.InDelta(t, 500, s.P50, 2)
	require.InDelta(t, 990, s.P99, 3)
	require.InDelta(t, 1, s.Min, 0.01)
	require.InDelta(t, float64(longest.Microseconds()), s.Max, 1e5)

	var sum int64
	last := 0.0
	for _, b := range l.Buckets() {
		require.GreaterOrEqual(t, b.From, last)
		require.Greater(t, b.To, b.From)
		last = b.To
		sum += b.Count
	}
	require.Equal(t, l.Count(), sum)
	for i, p := range l.Percentiles()[1:] {
		require.GreaterOrEqual(t, p.US, l.Percentiles()[i].US)
	}

	other := NewLatencies()
	other.Merge(l)
	require.Equal(t, l.Count(), other.Count())
	require.Zero(t, testing.AllocsPerRun(100, func() { l.Add(3 * time.Microsecond) }))
}

func TestFill(t *testing.T) {
	r := Report{Work: Work{Size: 1 << 20}}
	r.Fill(Used{Time: 2 * time.Second, CPU: time.Second, Allocs: 512, HasCPU: true}, 1024)
	require.InDelta(t, 512, r.IOPS, 0)
	require.InDelta(t, 512<<20, r.BytesPS, 0)
	require.InDelta(t, 0.5, r.Allocs, 0)
	require.InDelta(t, 1.0, r.CPU.PerGiB, 1e-9)
	require.InDelta(t, 1e6/1024, r.CPU.PerIO, 1e-9)
	r = Report{}
	r.Fill(Used{}, 0)
	require.Zero(t, r.IOPS)
	require.Nil(t, r.CPU)
}
