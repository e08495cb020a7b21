package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/nvstage/nvstage/bench/internal/measure"
)

// comparison is what --json prints.
type comparison struct {
	Network string       `json:"network"` // where it was measured
	Target  string       `json:"target"`
	CPUs    [2]int       `json:"cpus"` // the target's and the initiator's
	Runs    int          `json:"runs"`
	Seconds float64      `json:"seconds_per_run"`
	Warning string       `json:"warning,omitempty"` // why the figures are not to be trusted
	Rows    []rowSummary `json:"rows"`
}

type rowSummary struct {
	Name     string           `json:"name"`
	Subjects []subjectSummary `json:"subjects"`
}

// subjectSummary sums up the runs of one subject in one row.
type subjectSummary struct {
	Name    string  `json:"name"`
	Runs    int     `json:"runs"` // that went well
	IOPS    spread  `json:"iops"`
	BytesPS float64 `json:"bytes_per_second"`          // median
	P50     *spread `json:"p50_us,omitempty"`          //
	P999    *spread `json:"p99_9_us,omitempty"`        //
	CPU     *spread `json:"cpu_us_per_io,omitempty"`   // of the initiator's process
	Calls   *spread `json:"syscalls_per_io,omitempty"` //
	Allocs  float64 `json:"allocs_per_io"`             // median
	Ratio   *spread `json:"iops_to_first,omitempty"`   // of the rates in the same turn, to the row's first subject
	ToPeer  *spread `json:"iops_to_peer,omitempty"`    // likewise, to the peer
	P50To   *spread `json:"p50_us_to_first,omitempty"` // of the p50 in the same turn
	Error   string  `json:"error,omitempty"`           // why there are no figures, or too few
	runs    []*measure.Report
}

// spread is a median with its range.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

func spreadOf(v []float64) *spread {
	if len(v) == 0 {
		return nil
	}
	v = slices.Sorted(slices.Values(v))
	n := len(v)
	return &spread{(v[(n-1)/2] + v[n/2]) / 2, v[0], v[n-1]}
}

// summarize fills in the figures of a row whose subjects have all their runs. A run that failed is nil.
func (r *rowSummary) summarize() {
	var peer *subjectSummary
	for i := range r.Subjects {
		if r.Subjects[i].Name == "peer" {
			peer = &r.Subjects[i]
		}
	}
	for i := range r.Subjects {
		s := &r.Subjects[i]
		iops := s.each(func(m *measure.Report) (float64, bool) { return m.IOPS, true })
		if len(iops) == 0 {
			continue
		}
		s.Runs, s.IOPS = len(iops), *spreadOf(iops)
		s.BytesPS = spreadOf(s.each(func(m *measure.Report) (float64, bool) { return m.BytesPS, true })).Median
		s.Allocs = spreadOf(s.each(func(m *measure.Report) (float64, bool) { return m.Allocs, true })).Median
		s.P50 = spreadOf(s.each(p50))
		s.P999 = spreadOf(s.each(func(m *measure.Report) (float64, bool) {
			if m.Latency == nil {
				return 0, false
			}
			return m.Latency.P999, m.Latency.P999 > 0
		}))
		s.CPU = spreadOf(s.each(func(m *measure.Report) (float64, bool) {
			if m.CPU == nil {
				return 0, false
			}
			return m.CPU.PerIO, true
		}))
		s.Calls = spreadOf(s.each(func(m *measure.Report) (float64, bool) { return m.Calls, m.Calls > 0 }))
		if i > 0 {
			s.Ratio = s.against(&r.Subjects[0], func(m *measure.Report) (float64, bool) { return m.IOPS, true })
			s.P50To = s.against(&r.Subjects[0], p50)
		}
		if peer != nil && s != peer {
			s.ToPeer = s.against(peer, func(m *measure.Report) (float64, bool) { return m.IOPS, true })
		}
	}
}

func p50(m *measure.Report) (float64, bool) {
	if m.Latency == nil {
		return 0, false
	}
	return m.Latency.P50, m.Latency.P50 > 0
}

// each is a figure of all runs that have it.
func (s *subjectSummary) each(figure func(*measure.Report) (float64, bool)) []float64 {
	var all []float64
	for _, m := range s.runs {
		if m != nil {
			if v, ok := figure(m); ok {
				all = append(all, v)
			}
		}
	}
	return all
}

// against is the ratio of a figure in the same turns, which were moments apart.
func (s *subjectSummary) against(o *subjectSummary, figure func(*measure.Report) (float64, bool)) *spread {
	var all []float64
	for i := range min(len(s.runs), len(o.runs)) {
		if s.runs[i] == nil || o.runs[i] == nil {
			continue
		}
		a, aok := figure(s.runs[i])
		b, bok := figure(o.runs[i])
		if aok && bok && b > 0 {
			all = append(all, a/b)
		}
	}
	return spreadOf(all)
}

// print writes the row for people.
func (r *rowSummary) print(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", r.Name)
	for i := range r.Subjects {
		s := &r.Subjects[i]
		fmt.Fprintf(&b, "  %-26s", s.Name)
		if s.Runs > 0 {
			fmt.Fprintf(&b, " %8.1f K/s (%.1f–%.1f)  %6.2f GiB/s", s.IOPS.Median/1e3, s.IOPS.Min/1e3, s.IOPS.Max/1e3, s.BytesPS/(1<<30))
			if s.P50 != nil {
				fmt.Fprintf(&b, "  p50 %.1f µs", s.P50.Median)
			}
			if s.P999 != nil {
				fmt.Fprintf(&b, "  p99.9 %.0f µs", s.P999.Median)
			}
			if s.CPU != nil {
				fmt.Fprintf(&b, "  %.2f µs CPU", s.CPU.Median)
			}
			if s.Calls != nil {
				fmt.Fprintf(&b, "  %.2f calls", s.Calls.Median)
			}
			if ratios := s.ratios(r.Subjects[0].Name); ratios != "" {
				fmt.Fprintf(&b, "  = %s", ratios)
			}
		}
		if s.Error != "" {
			fmt.Fprintf(&b, "  failed: %s", s.Error)
		}
		b.WriteByte('\n')
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// markdownHead begins the table whose lines markdown prints.
const markdownHead = "| work | | K IOPS, median (range) | GiB/s | p50 µs | p99.9 µs | CPU µs per I/O | calls per I/O | |\n" +
	"| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: | --- |\n"

// markdown writes the row as lines of a table.
func (r *rowSummary) markdown(w io.Writer) error {
	var b strings.Builder
	cell := func(v *spread, format string) string {
		if v == nil {
			return ""
		}
		return fmt.Sprintf(format, v.Median)
	}
	for i := range r.Subjects {
		s := &r.Subjects[i]
		name := r.Name
		if i > 0 {
			name = ""
		}
		if s.Runs == 0 {
			fmt.Fprintf(&b, "| %s | %s | failed | | | | | | |\n", name, s.Name)
			continue
		}
		fmt.Fprintf(&b, "| %s | %s | %.1f (%.1f–%.1f) | %.2f | %s | %s | %s | %s | %s |\n", name, s.Name,
			s.IOPS.Median/1e3, s.IOPS.Min/1e3, s.IOPS.Max/1e3, s.BytesPS/(1<<30),
			cell(s.P50, "%.1f"), cell(s.P999, "%.0f"), cell(s.CPU, "%.2f"), cell(s.Calls, "%.2f"), s.ratios(r.Subjects[0].Name))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// ratios are what a subject is held against, in words.
func (s *subjectSummary) ratios(first string) string {
	var list []string
	if s.Ratio != nil {
		list = append(list, fmt.Sprintf("%.2f × %s (%.2f–%.2f)", s.Ratio.Median, first, s.Ratio.Min, s.Ratio.Max))
	}
	if s.P50To != nil {
		list = append(list, fmt.Sprintf("p50 %.2f ×", s.P50To.Median))
	}
	if s.ToPeer != nil && first != "peer" {
		list = append(list, fmt.Sprintf("%.2f × peer (%.2f–%.2f)", s.ToPeer.Median, s.ToPeer.Min, s.ToPeer.Max))
	}
	return strings.Join(list, ", ")
}
