package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/bench/internal/measure"
)

// outputFlags say how a report is printed.
type outputFlags struct {
	json    bool
	latency int
}

func (f *outputFlags) add(fs *pflag.FlagSet) {
	fs.CountVarP(&f.latency, "latency", "L", "print the percentiles of the latency; -LL the histogram too")
	fs.BoolVar(&f.json, "json", false, "print the report as one JSON object")
}

func (f *outputFlags) print(w io.Writer, res *measure.Result) error {
	r := &res.Report
	if r.Latency != nil && f.latency > 0 {
		r.Percentiles = res.Latencies.Percentiles()
	}
	if r.Latency != nil && f.latency > 1 {
		r.Histogram = res.Latencies.Buckets()
	}
	if f.json {
		b, err := json.MarshalIndent(r, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(w, "%s\n", b)
		}
		return err
	}
	_, err := io.WriteString(w, reportText(r))
	return err
}

// reportText is a report for people.
func reportText(r *measure.Report) string {
	var b strings.Builder
	t := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) {
		fmt.Fprintf(t, "%s\t"+format+"\n", append([]any{name}, args...)...)
	}

	where := r.Target.Address
	if r.Target.NQN != "" {
		where = fmt.Sprintf("%s, namespace %d of %s", where, r.Target.NSID, r.Target.NQN)
	}
	row("target", "%s", where)
	row("work", "%s", workText(r))
	if r.Driver != "" {
		row("driver", "%s; %s", r.Driver, strings.Join(r.Notes, "; "))
	}
	row("I/Os", "%d in %.2f s", r.Ops, r.Seconds)
	row("rate", "%.0f IOPS, %.1f MiB/s", r.IOPS, r.BytesPS/(1<<20))
	if l := r.Latency; l != nil {
		row("latency", "mean %.1f, p50 %.1f, p99 %.1f, p99.9 %.1f, min %.1f, max %.1f µs", l.Mean, l.P50, l.P99, l.P999, l.Min, l.Max)
	}
	if c := r.CPU; c != nil {
		threads := ""
		if c.QueueThreads != nil {
			threads = fmt.Sprintf(" (queue threads %.2f)", *c.QueueThreads)
		}
		row("CPU", "%.2f µs per I/O%s, %.3f s per GiB; %.2f CPUs busy", c.PerIO, threads, c.PerGiB, measure.Ratio(c.Seconds, r.Seconds))
		row("switches", "%d voluntary, %d involuntary", c.Voluntary, c.Involuntary)
	}
	calls := "system calls not counted"
	if r.Calls > 0 {
		calls = fmt.Sprintf("%.2f system calls", r.Calls)
	}
	row("per I/O", "%s, %.2f sleeps, %.4f allocations", calls, r.Sleeps, r.Allocs)
	if r.GCs > 0 {
		row("collector", "%d cycles, everything stopped for %.0f µs in all", r.GCs, r.GCPause)
	}
	t.Flush()
	if r.Percentiles != nil {
		b.WriteString("\nlatency in µs\n")
		for _, p := range r.Percentiles {
			fmt.Fprintf(&b, "  %9.5f%% : %10.3f\n", p.Percent, p.US)
		}
	}
	if r.Histogram != nil {
		b.WriteString("\n       range in µs           I/Os  cumulated\n")
		var sum int64
		for _, k := range r.Histogram {
			sum += k.Count
			fmt.Fprintf(&b, "  %9.1f - %9.1f %9d  %9.4f%%\n", k.From, k.To, k.Count, 100*measure.Ratio(float64(sum), float64(r.Ops)))
		}
	}
	return b.String()
}

func workText(r *measure.Report) string {
	w := &r.Work
	s := fmt.Sprintf("%s, %s, QD %d", w.Pattern, sizeText(int64(w.Size)), w.Depth)
	if w.ReadPercent > 0 && w.ReadPercent < 100 {
		s += fmt.Sprintf(", %d %% reads", w.ReadPercent)
	}
	if w.API != "" {
		s += fmt.Sprintf(", %d queues, %s", w.Queues, w.API)
		if w.Threads > 0 {
			s += fmt.Sprintf(" from %d goroutines", w.Threads)
		}
		s += ", " + digestsText(w.HDGST, w.DDGST)
	}
	if len(w.CPUs) > 0 {
		l := cpuList(w.CPUs)
		s += ", CPUs " + l.String()
	}
	return s + ", spin " + w.Spin
}
