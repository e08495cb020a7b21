package measure

// Report is what a run measured. Its JSON is what --json prints. Ratios whose divisor is 0 are 0; what a
// system or a kind of run does not know is left out.
type Report struct {
	Command  string   `json:"command"` // perf, raw stream or raw pingpong
	Target   Target   `json:"target"`
	Work     Work     `json:"work"`
	Driver   string   `json:"driver,omitempty"`
	Notes    []string `json:"notes,omitempty"` // of the queues: why the driver is what it is, and what was fallen back from
	Seconds  float64  `json:"seconds"`
	Ops      int64    `json:"ios"`
	IOPS     float64  `json:"iops"`
	BytesPS  float64  `json:"bytes_per_second"`
	Latency  *Latency `json:"latency_us,omitempty"`
	CPU      *CPU     `json:"cpu,omitempty"`
	Calls    float64  `json:"syscalls_per_io,omitempty"` // that the queues made; the driver net.Conn cannot count them
	Turns    float64  `json:"turns_per_io,omitempty"`
	Sleeps   float64  `json:"sleeps_per_io,omitempty"`
	Allocs   float64  `json:"allocs_per_io"`
	GCs      uint32   `json:"gc_cycles"`
	GCPause  float64  `json:"gc_pause_us"` // of all cycles together
	MaxProcs int      `json:"gomaxprocs"`

	Percentiles []Percentile `json:"percentiles,omitempty"`
	Histogram   []Bucket     `json:"histogram,omitempty"`
}

// Result is a report and the histogram behind it.
type Result struct {
	Report    Report
	Latencies *Latencies
}

// Target is what was measured.
type Target struct {
	Address string `json:"address"`
	NQN     string `json:"nqn,omitempty"`
	NSID    uint32 `json:"nsid,omitempty"`
}

// Work is what was asked for.
type Work struct {
	Pattern     string  `json:"pattern"` // read, write, randread, randwrite, rw or randrw
	ReadPercent int     `json:"read_percent"`
	Size        int     `json:"io_size"` // bytes
	Depth       int     `json:"queue_depth"`
	Queues      int     `json:"queues,omitempty"`
	CPUs        []int   `json:"cpus,omitempty"`
	API         string  `json:"api,omitempty"` // feed, readat or batch
	Threads     int     `json:"threads,omitempty"`
	Spin        string  `json:"spin"`
	HDGST       bool    `json:"hdgst"`
	DDGST       bool    `json:"ddgst"`
	Warmup      float64 `json:"warmup_seconds"`
	Garbage     int     `json:"garbage_bytes_per_second,omitempty"`
}

// CPU is what the process used for it, everything in it included.
type CPU struct {
	Seconds      float64  `json:"seconds"`
	PerIO        float64  `json:"us_per_io"`
	PerGiB       float64  `json:"seconds_per_gib"`
	QueueThreads *float64 `json:"queue_threads_us_per_io,omitempty"` // of that, the queues' pinned threads
	Voluntary    int64    `json:"voluntary_switches"`
	Involuntary  int64    `json:"involuntary_switches"`
}

// Fill sets everything that follows from the number of I/Os and what was used.
func (r *Report) Fill(u Used, ops int64) {
	r.Seconds, r.Ops = u.Time.Seconds(), ops
	r.IOPS = Ratio(float64(ops), r.Seconds)
	r.BytesPS = r.IOPS * float64(r.Work.Size)
	r.Allocs = Ratio(float64(u.Allocs), float64(ops))
	r.GCs, r.GCPause = u.GCs, us(int64(u.GCPause))
	if u.HasCPU {
		s := u.CPU.Seconds()
		r.CPU = &CPU{
			Seconds: s, PerIO: Ratio(s*1e6, float64(ops)), PerGiB: Ratio(s*(1<<30), float64(ops)*float64(r.Work.Size)),
			Voluntary: u.Voluntary, Involuntary: u.Involuntary,
		}
	}
}

// Ratio is a/b, and 0 when b is 0.
func Ratio(a, b float64) float64 {
	if b == 0 {
		return 0
	}
	return a / b
}
