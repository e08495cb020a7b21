package main

import (
	"encoding/json"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
	"github.com/nvstage/nvstage/staging"
)

// report is what a load, a verify or a put has to say. Its JSON is what --json prints; README.md
// explains the fields. Times are in seconds unless the name says otherwise.
type report struct {
	Command    string         `json:"command"`
	Target     targetReport   `json:"target"`
	Shards     []shardReport  `json:"shards"`
	Plan       *planReport    `json:"plan,omitempty"`
	Device     *deviceReport  `json:"device,omitempty"`
	Tensors    int            `json:"tensors"`
	Bytes      int64          `json:"bytes"`
	Seconds    float64        `json:"seconds"`
	GiBPerSec  float64        `json:"gib_per_second"`
	CPU        cpuReport      `json:"cpu"`
	LatencyUS  latencyReport  `json:"latency_us"`
	Milestones *milestones    `json:"milestones,omitempty"`
	Queues     []queueReport  `json:"queues"`
	Pinning    pinningReport  `json:"pinning"`
	Notes      []string       `json:"notes"`
	Retries    uint64         `json:"retries"`
	Pool       poolReport     `json:"pool"`
	PeakBytes  int64          `json:"peak_bytes,omitempty"`
	Checksums  *checkedReport `json:"checksums,omitempty"`
}

type targetReport struct {
	Address  string `json:"address"`
	NQN      string `json:"nqn"`
	HostNQN  string `json:"host_nqn"`
	Model    string `json:"model"`
	Embedded bool   `json:"embedded"`
}

type shardReport struct {
	NSID    uint32     `json:"nsid"`
	Bytes   int64      `json:"bytes"`
	Tensors int        `json:"tensors"`
	File    string     `json:"file,omitempty"`
	LZ4     *lz4Report `json:"lz4,omitempty"`
}

type cpuReport struct {
	Seconds        float64 `json:"seconds"`
	SecondsPerGiB  float64 `json:"seconds_per_gib"`
	IncludesTarget bool    `json:"includes_target"`
	IncludesHash   string  `json:"includes_hash,omitempty"`
}

type latencyReport struct {
	IOs  int64   `json:"ios"`
	P50  float64 `json:"p50"`
	P95  float64 `json:"p95"`
	P99  float64 `json:"p99"`
	P999 float64 `json:"p999"`
	Max  float64 `json:"max"`
}

// milestones are the seconds from the start of the connection to something.
type milestones struct {
	Opened      float64 `json:"opened"` // connected, and the shards' headers read: where the load begins
	FirstTensor float64 `json:"first_tensor"`
	Tensor      string  `json:"first_tensor_name"`

	// The first numbered layer and all that a forward pass needs before it, in the order of the plan and in that of the files.
	FirstLayer            float64 `json:"first_layer,omitempty"`
	Layer                 string  `json:"first_layer_name,omitempty"`
	FirstLayerBytes       int64   `json:"first_layer_bytes,omitempty"`
	FirstLayerInFileOrder float64 `json:"first_layer_in_file_order,omitempty"`

	FirstToken float64 `json:"first_token"` // all that a forward pass needs, which is the same in any order
	Total      float64 `json:"total"`
}

type queueReport struct {
	QID          uint16   `json:"qid"`
	Driver       string   `json:"driver"`
	Depth        int      `json:"depth"`
	HeaderDigest bool     `json:"header_digest"`
	DataDigest   bool     `json:"data_digest"`
	Notes        []string `json:"notes"`
}

// pinningReport says where the queues' threads ran.
type pinningReport struct {
	CPUs      []int  `json:"cpus"`
	Interface string `json:"interface,omitempty"`
	Node      int    `json:"numa_node"`
	Reason    string `json:"reason"`
}

// checkedReport is how a comparison of checksums went.
type checkedReport struct {
	Algorithm  string   `json:"algorithm"`
	Against    string   `json:"against"`
	Compared   int      `json:"compared"`
	CopiedBack bool     `json:"copied_back"` // from the device
	Wrong      []string `json:"wrong"`
	Extra      []string `json:"extra,omitempty"`   // loaded, and there is nothing of that name to compare with
	Missing    []string `json:"missing,omitempty"` // to compare with, and nothing of that name was loaded
}

// differences lists all that is not as it should be.
func (c *checkedReport) differences() []string {
	all := slices.Clone(c.Wrong)
	for _, name := range c.Extra {
		all = append(all, name+": loaded, but there is nothing to compare it with")
	}
	for _, name := range c.Missing {
		all = append(all, name+": not loaded")
	}
	return all
}

// err is nil if all is as it should be.
func (c *checkedReport) err() error {
	all := c.differences()
	if len(all) == 0 {
		return nil
	}
	if c.Compared == 0 {
		return fmt.Errorf("nothing was compared: no tensor that was loaded has the name of one in %s; is that the same model? %s", c.Against, all[0])
	}
	return fmt.Errorf("%d of %d tensors are not as in %s: %s", len(all), c.Compared+len(c.Extra)+len(c.Missing), c.Against, all[0])
}

// fill takes over what the session and the pool know.
func (r *report) fill(s *session, pool *staging.Pool) {
	c := s.sub.Controller()
	r.Target = targetReport{
		Address: c.Addr, NQN: c.NQN, HostNQN: c.HostNQN, Model: c.Identify.MN, Embedded: s.embedded,
	}
	r.CPU.IncludesTarget = s.embedded
	r.Notes = []string{}
	for _, q := range c.Queues {
		r.Queues = append(r.Queues, queueReport{
			QID: q.QID, Driver: string(q.Driver), Depth: q.Depth,
			HeaderDigest: q.Digests.Header, DataDigest: q.Digests.Data, Notes: slices.Concat([]string{}, q.Notes),
		})
	}
	r.Pinning = pinningReport{CPUs: c.Pinning.CPUs, Interface: c.Pinning.Interface, Node: c.Pinning.Node, Reason: pinWords.Replace(c.Pinning.Reason)}
	if s.asked > len(c.Queues) {
		r.Notes = append(r.Notes, fmt.Sprintf("the controller granted %d of the %d I/O queues asked for", len(c.Queues), s.asked))
	}
	if c.KATO > 0 && c.Identify.KAS == 0 {
		r.Notes = append(r.Notes, "the controller has no keep alive: a silent loss shows only when a command times out")
	}
	r.Pool = newPoolReport(pool.Info())
	r.PeakBytes = peakMemory()
	r.Retries = s.sub.Stats().Retries
}

// rate takes over how long r.Bytes took, and what CPU time.
func (r *report) rate(wall, cpu time.Duration) {
	r.Seconds, r.CPU.Seconds = wall.Seconds(), cpu.Seconds()
	if r.Bytes > 0 && wall > 0 {
		r.GiBPerSec = gib(r.Bytes) / r.Seconds
		r.CPU.SecondsPerGiB = r.CPU.Seconds / gib(r.Bytes)
	}
}

// print writes the report to where it belongs.
func (r *report) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return printJSON(w, r)
	}
	return r.text(w)
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// text writes the report for people.
func (r *report) text(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	line := func(head, format string, args ...any) { fmt.Fprintf(t, head+"\t"+format+"\n", args...) }
	where := "at"
	if r.Target.Embedded {
		where = "embedded in this process at"
	}
	line("target", "%s %s %s (%s)", nameText(r.Target.NQN), where, r.Target.Address, nameText(strings.TrimSpace(r.Target.Model)))
	did := "loaded"
	if r.Command == "put" {
		did = "written"
	}
	line(did, "%s in %s: %s GiB/s; %d tensors, %s", bytesText(r.Bytes), secondsText(r.Seconds), digits3(r.GiBPerSec), r.Tensors, r.shards())
	line("cpu", "%s s per GiB (%s%s)", digits3(r.CPU.SecondsPerGiB), secondsText(r.CPU.Seconds), r.CPU.includes())
	l := r.LatencyUS
	line("latency", "p50 %s, p95 %s, p99 %s, p99.9 %s, of %d commands", microsText(l.P50), microsText(l.P95), microsText(l.P99), microsText(l.P999), l.IOs)
	if m := r.Milestones; m != nil {
		line("time to", "%s", m)
	}
	if r.Plan != nil {
		line("plan", "%s", r.Plan)
	}
	if r.Device != nil {
		line("device", "%s", r.Device)
	}
	for _, shard := range r.Shards {
		if shard.LZ4 != nil {
			line("lz4", "namespace %d: %s", shard.NSID, shard.LZ4.text)
		}
	}
	for _, e := range r.engine() {
		line("engine", "%s", e)
	}
	line("pinning", "%s", r.Pinning)
	line("pool", "%s", r.Pool)
	if r.PeakBytes > 0 {
		line("memory", "%s at the peak of the process, with the pool", bytesText(r.PeakBytes))
	}
	for _, n := range r.Notes {
		line("note", "%s", n)
	}
	switch r.Retries {
	case 0:
	case 1:
		line("note", "1 command was sent again")
	default:
		line("note", "%d commands were sent again", r.Retries)
	}
	if c := r.Checksums; c != nil {
		line("checksums", "%s of %d tensors %scompared with %s: %s", c.Algorithm, c.Compared, c.how(), c.Against, c.verdict())
		all := c.differences()
		for _, wrong := range all[:min(len(all), maxWrongShown)] {
			line("", "%s", wrong)
		}
		if n := len(all) - maxWrongShown; n > 0 {
			line("", "and %d more (--json has all)", n)
		}
	} else if r.Command != "put" {
		line("checksums", "not compared: nothing to compare with; shardload verify does it")
	}
	return t.Flush()
}

// maxWrongShown is how many wrong tensors the text report lists.
const maxWrongShown = 20

func (r *report) shards() string {
	s := make([]string, len(r.Shards))
	for i, shard := range r.Shards {
		s[i] = fmt.Sprint(shard.NSID)
	}
	if len(s) == 1 {
		return "namespace " + s[0]
	}
	return fmt.Sprintf("%d shards on namespaces %s", len(s), strings.Join(s, ","))
}

func (c *cpuReport) includes() string {
	var s []string
	if c.IncludesTarget {
		s = append(s, "the embedded target")
	}
	if c.IncludesHash != "" {
		s = append(s, c.IncludesHash+" of every byte")
	}
	if len(s) == 0 {
		return fmt.Sprintf(" on %d CPUs", runtime.NumCPU())
	}
	return fmt.Sprintf(" on %d CPUs, with that of %s", runtime.NumCPU(), strings.Join(s, " and "))
}

// engine describes the queues: a line for those that are alike.
func (r *report) engine() []string {
	var texts []string
	alike := map[string]int{}
	for _, q := range r.Queues {
		d := "none"
		switch {
		case q.HeaderDigest && q.DataDigest:
			d = "header and data"
		case q.HeaderDigest:
			d = "header"
		case q.DataDigest:
			d = "data"
		}
		s := fmt.Sprintf("%s, %s deep, digests: %s", q.Driver, count(q.Depth, "command"), d)
		for _, n := range q.Notes {
			s += "; " + n
		}
		if alike[s]++; alike[s] == 1 {
			texts = append(texts, s)
		}
	}
	for i, s := range texts {
		texts[i] = count(alike[s], "queue") + ": " + s
	}
	return texts
}

func (p pinningReport) String() string {
	pinned := slices.DeleteFunc(slices.Clone(p.CPUs), func(cpu int) bool { return cpu < 0 })
	switch len(pinned) {
	case 0:
		return "none: " + p.Reason
	case len(p.CPUs):
		return "CPUs " + cpusText(pinned) + ": " + p.Reason
	}
	return fmt.Sprintf("%d of %d queues, CPUs %s: %s", len(pinned), len(p.CPUs), cpusText(pinned), p.Reason)
}

func cpusText(cpus []int) string {
	s := make([]string, len(cpus))
	for i, cpu := range cpus {
		s[i] = strconv.Itoa(cpu)
	}
	return strings.Join(s, ",")
}

func (c *checkedReport) verdict() string {
	var s []string
	if n := len(c.Wrong); n > 0 {
		s = append(s, fmt.Sprintf("%d WRONG", n))
	}
	if n := len(c.Extra); n > 0 {
		s = append(s, fmt.Sprintf("%d loaded with nothing to compare with", n))
	}
	if n := len(c.Missing); n > 0 {
		s = append(s, fmt.Sprintf("%d NOT LOADED", n))
	}
	switch {
	case len(s) == 0:
		return "all right"
	case c.Compared == 0:
		s = append([]string{"NO TENSOR HAS THE SAME NAME"}, s...)
	}
	return strings.Join(s, ", ")
}

func (c *checkedReport) how() string {
	if c.CopiedBack {
		return "copied back from the device and "
	}
	return ""
}

func (m *milestones) String() string {
	layer := "no layers"
	if m.Layer != "" {
		layer = "first layer " + secondsText(m.FirstLayer) + " (" + nameText(m.Layer) + ")"
		if m.FirstLayerInFileOrder > m.FirstLayer {
			layer += ", in file order " + secondsText(m.FirstLayerInFileOrder)
		}
	}
	return fmt.Sprintf("connect and open %s, first tensor %s (%s), %s, first token (all) %s",
		secondsText(m.Opened), secondsText(m.FirstTensor), nameText(m.Tensor), layer, secondsText(m.FirstToken))
}

func secondsText(s float64) string { return durationText(time.Duration(s * float64(time.Second))) }

func microsText(us float64) string {
	return durationText(time.Duration(us * float64(time.Microsecond)))
}

// latencies collects how long commands took. It may be used by several threads: commands are large, so
// a lock costs less than a histogram for each thread would.
type latencies struct {
	mu sync.Mutex
	h  *hdrhistogram.Histogram // nanoseconds
}

// Latencies outside of these count as these.
const (
	minLatency = time.Microsecond
	maxLatency = time.Hour
)

func newLatencies() *latencies {
	return &latencies{h: hdrhistogram.New(int64(minLatency), int64(maxLatency), 3)}
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	_ = l.h.RecordValue(int64(min(max(d, minLatency), maxLatency))) // fails out of range only
	l.mu.Unlock()
}

func (l *latencies) report() latencyReport {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.h.TotalCount() == 0 {
		return latencyReport{}
	}
	us := func(percent float64) float64 { return float64(l.h.ValueAtPercentile(percent)) / 1e3 }
	return latencyReport{IOs: l.h.TotalCount(), P50: us(50), P95: us(95), P99: us(99), P999: us(99.9), Max: float64(l.h.Max()) / 1e3}
}
