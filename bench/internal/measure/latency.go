package measure

import (
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies is a histogram of times in nanoseconds with three digits. It belongs to one goroutine;
// adding to it allocates nothing.
type Latencies struct{ h *hdrhistogram.Histogram }

// longest is what longer times are counted as.
const longest = 100 * time.Second

// NewLatencies returns an empty histogram.
func NewLatencies() *Latencies { return &Latencies{hdrhistogram.New(1, int64(longest), 3)} }

// Add counts one time.
func (l *Latencies) Add(d time.Duration) { l.AddN(d, 1) }

// AddN counts one time n times.
func (l *Latencies) AddN(d time.Duration, n int64) {
	_ = l.h.RecordValues(int64(min(max(d, 1), longest)), n) // only a value out of range is an error
}

// Merge adds what another histogram counted.
func (l *Latencies) Merge(o *Latencies) { l.h.Merge(o.h) }

// Count is how many times were added.
func (l *Latencies) Count() int64 { return l.h.TotalCount() }

// Latency says how long single I/Os took, in microseconds.
type Latency struct {
	Mean float64 `json:"mean"`
	Min  float64 `json:"min"`
	P50  float64 `json:"p50"`
	P90  float64 `json:"p90"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p99_9"`
	Max  float64 `json:"max"`
}

// Summary returns the figures of the histogram, or nil when nothing was added.
func (l *Latencies) Summary() *Latency {
	if l.h.TotalCount() == 0 {
		return nil
	}
	at := func(q float64) float64 { return us(l.h.ValueAtQuantile(q)) }
	return &Latency{
		Mean: l.h.Mean() / 1e3, Min: us(l.h.Min()), P50: at(50), P90: at(90), P99: at(99), P999: at(99.9), Max: us(l.h.Max()),
	}
}

// Percentile is a time that so many percent of the I/Os did not exceed.
type Percentile struct {
	Percent float64 `json:"percent"`
	US      float64 `json:"us"`
}

// Percentiles are those that spdk_nvme_perf prints.
func (l *Latencies) Percentiles() []Percentile {
	var list []Percentile
	for _, q := range []float64{1, 10, 25, 50, 75, 90, 95, 98, 99, 99.5, 99.9, 99.99, 99.999, 99.9999, 99.99999} {
		list = append(list, Percentile{q, us(l.h.ValueAtQuantile(q))})
	}
	return list
}

// Bucket counts the I/Os that took from From to To microseconds.
type Bucket struct {
	From  float64 `json:"from_us"`
	To    float64 `json:"to_us"`
	Count int64   `json:"count"`
}

// Buckets are the parts of the histogram that are not empty, each about a tenth wide.
func (l *Latencies) Buckets() []Bucket {
	var list []Bucket
	for _, b := range l.h.Distribution() {
		if b.Count == 0 {
			continue
		}
		from, to := us(b.From), us(b.To+1)
		if n := len(list); n > 0 && to < list[n-1].From*1.1 {
			list[n-1].To = to
			list[n-1].Count += b.Count
			continue
		}
		list = append(list, Bucket{from, to, b.Count})
	}
	return list
}

func us(ns int64) float64 { return float64(ns) / 1e3 }
