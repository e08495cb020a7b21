package main

import (
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// schema is the version of the report's JSON. Fields may be added to it; what means something else gets a new number.
const schema = 1

// report is what the doctor found. Its JSON is what --json prints; README.md explains the fields. Sizes are in bytes,
// and numbers are -1 where they are not known, unless 0 can only mean that.
type report struct {
	Schema       int            `json:"schema"`
	Verdict      verdict        `json:"verdict"`
	Findings     []finding      `json:"findings"`
	CPU          cpuFacts       `json:"cpu"`
	Nodes        []nodeFacts    `json:"numa_nodes"`
	NICs         []nicFacts     `json:"nics"`
	Target       *targetFacts   `json:"target,omitempty"`
	GPUs         []gpuFacts     `json:"gpus"`
	GPULibraries []libraryFacts `json:"gpu_libraries"`
	Placement    placementFacts `json:"placement"`
	Sockets      socketFacts    `json:"sockets"`
	Memory       memoryFacts    `json:"memory"`
	Files        limitFacts     `json:"open_files"`
	Kernel       kernelFacts    `json:"kernel"`
	URing        uringFacts     `json:"io_uring"`
	Container    containerFacts `json:"container"`
	Identity     identityFacts  `json:"identity"`
}

// verdict sums the findings up.
type verdict string

const (
	verdictGood    verdict = "good"    // no ✗
	verdictAdvice  verdict = "advice"  // ✗, but the library works
	verdictBlocked verdict = "blocked" // something keeps the library from working
)

// mark is what a finding comes to.
type mark string

const (
	good    mark = "good"
	bad     mark = "bad"
	neutral mark = "neutral" // it does not matter, or is not known
)

// finding is one line of the report.
type finding struct {
	Topic  string `json:"topic"`
	ID     string `json:"id"`      // the same check has the same topic and ID on every machine
	About  string `json:"about"`   // interface, GPU or node that it is about, where there may be several
	Mark   mark   `json:"mark"`    // good, bad or neutral
	Blocks bool   `json:"blocks"`  // it keeps the library from working
	Text   string `json:"text"`    // what was found
	Mend   string `json:"to_mend"` // what to run or do about it, in one line
}

// topic collects the findings of one topic.
type topic struct {
	r     *report
	name  string
	about string
}

func (t topic) add(f finding) {
	f.Topic, f.About = t.name, t.about
	f.Text, f.Mend = lineText(f.Text), lineText(f.Mend)
	t.r.Findings = append(t.r.Findings, f)
}

func (t topic) good(id, format string, args ...any) {
	t.add(finding{ID: id, Mark: good, Text: fmt.Sprintf(format, args...)})
}

func (t topic) note(id, format string, args ...any) {
	t.add(finding{ID: id, Mark: neutral, Text: fmt.Sprintf(format, args...)})
}

func (t topic) bad(id, mend, format string, args ...any) {
	t.add(finding{ID: id, Mark: bad, Mend: mend, Text: fmt.Sprintf(format, args...)})
}

func (t topic) blocked(id, mend, format string, args ...any) {
	t.add(finding{ID: id, Mark: bad, Blocks: true, Mend: mend, Text: fmt.Sprintf(format, args...)})
}

// conclude draws the verdict.
func (r *report) conclude() {
	r.Schema, r.Verdict = schema, verdictGood
	for _, f := range r.Findings {
		switch {
		case f.Blocks:
			r.Verdict = verdictBlocked
			return
		case f.Mark == bad:
			r.Verdict = verdictAdvice
		}
	}
}

func (r *report) print(w io.Writer, asJSON bool) error {
	if !asJSON {
		return r.text(w)
	}
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(r)
}

var signs = map[mark]string{good: "✔", bad: "✗", neutral: "–"}

// text writes the findings for people, by topic.
func (r *report) text(w io.Writer) error {
	var b strings.Builder
	last := ""
	advice, blocks := 0, 0
	for _, f := range r.Findings {
		if f.Topic != last {
			fmt.Fprintf(&b, "%s\n", f.Topic)
			last = f.Topic
		}
		fmt.Fprintf(&b, "  %s %s\n", signs[f.Mark], f.Text)
		if f.Mend != "" {
			fmt.Fprintf(&b, "      → %s\n", f.Mend)
		}
		switch {
		case f.Blocks:
			blocks++
		case f.Mark == bad:
			advice++
		}
	}
	b.WriteString("\n")
	switch {
	case blocks > 0:
		fmt.Fprintf(&b, "✗ %s nvstage from working here", map[bool]string{true: "1 thing keeps", false: fmt.Sprintf("%d things keep", blocks)}[blocks == 1])
		if advice > 0 {
			fmt.Fprintf(&b, ", and %s could be better", count(advice, "thing"))
		}
		b.WriteString(".\n")
	case advice > 0:
		fmt.Fprintf(&b, "✔ nvstage works here; %s could be better.\n", count(advice, "thing"))
	default:
		b.WriteString("✔ nvstage works here.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}
