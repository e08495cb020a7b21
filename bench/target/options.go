package main

import (
	"fmt"
	"log/slog"
	"math"
	"math/bits"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
)

// options are the flags.
type options struct {
	listen    string
	nqn       string
	size      int64 // bytes
	blockSize int   // bytes
	backend   string
	mode      string
	digests   string
	queueSize int
	inCapsule int
	cpu       int // -1 = not pinned
	spin      time.Duration
	json      bool
	profile   string

	usage string
}

var modes = map[string]nvmetest.Mode{"nvmet": nvmetest.ModeNVMET, "spdk": nvmetest.ModeSPDK, "strict": nvmetest.ModeStrict}

// refusals are the digests that each value of --digests does not grant.
var refusals = map[string]pdu.Digests{
	"any": {}, "header": {Data: true}, "data": {Header: true}, "none": {Header: true, Data: true},
}

// parse reads the flags. usage is set also when it fails.
func parse(args []string) (*options, error) {
	o := &options{}
	var size, blockSize string
	fs := pflag.NewFlagSet("target", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.Usage = func() {}
	fs.StringVar(&o.listen, "listen", "127.0.0.1:4420", "address to listen on, `host:port`; port 0 takes a free one")
	fs.StringVar(&o.nqn, "nqn", nvmetest.DefaultNQN, "NQN of the subsystem")
	fs.StringVar(&size, "size", "", "`bytes` of the namespace (default 64G, memory 1G); a file has its own")
	fs.StringVar(&blockSize, "block-size", "512", "`bytes` of a block, a power of two from 512")
	fs.StringVar(&o.backend, "backend", "null", "what stores the blocks: null (reads return a pattern, writes vanish), memory, or file:PATH")
	fs.StringVar(&o.mode, "mode", "nvmet", "target that is imitated: nvmet, spdk or strict")
	fs.StringVar(&o.digests, "digests", "any", "digests that are granted to a host that asks: any, header, data or none")
	fs.IntVar(&o.queueSize, "queue-size", 0, "entries of a queue; 0 is the mode's")
	fs.IntVar(&o.inCapsule, "in-capsule", 0, "`bytes` of data that a capsule may carry; 0 is the mode's, less than 0 none")
	fs.IntVar(&o.cpu, "cpu", -1, "pin the process to this `CPU`, Linux only; less than 0 does not")
	fs.DurationVar(&o.spin, "spin", 50*time.Microsecond, "poll a socket so long before sleeping, while there are no more I/O queues than CPUs to serve them, Linux only")
	fs.BoolVar(&o.json, "json", false, "print address, NQN and the rest as one JSON object")
	fs.StringVar(&o.profile, "cpuprofile", "", "write a CPU profile to this `file`")
	o.usage = "Serve NVMe/TCP for measurements, until SIGINT or SIGTERM.\n\nUsage: target [flags]\n\nFlags:\n" + fs.FlagUsages()
	if err := fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	if size == "" {
		if size = "64G"; o.backend == "memory" {
			size = "1G"
		}
	}
	var err error
	if o.size, err = parseSize(size); err != nil {
		return o, fmt.Errorf("--size %q: %w", size, err)
	}
	bs, err := parseSize(blockSize)
	if err != nil || bs < 512 || bs > 1<<20 || bits.OnesCount64(uint64(bs)) != 1 {
		return o, fmt.Errorf("--block-size %q: want a power of two from 512 to 1M", blockSize)
	}
	o.blockSize = int(bs)
	if _, ok := modes[o.mode]; !ok {
		return o, fmt.Errorf("--mode %q: want nvmet, spdk or strict", o.mode)
	}
	if _, ok := refusals[o.digests]; !ok {
		return o, fmt.Errorf("--digests %q: want any, header, data or none", o.digests)
	}
	if path, ok := strings.CutPrefix(o.backend, "file:"); o.backend != "null" && o.backend != "memory" && (!ok || path == "") {
		return o, fmt.Errorf("--backend %q: want null, memory or file:PATH", o.backend)
	}
	return o, nil
}

// parseSize reads a number of bytes with a suffix K, M, G or T, powers of 1024.
func parseSize(s string) (int64, error) {
	shift := 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("KMGT", s[n-1]&^0x20); i >= 0 {
			s, shift = s[:n-1], 10*(i+1)
		}
	}
	v, err := strconv.ParseInt(s, 10, 64)
	if err != nil || v <= 0 || v > math.MaxInt64>>shift {
		return 0, fmt.Errorf("want a number of bytes greater than 0, as 4096, 128K or 64G")
	}
	return v << shift, nil
}

// open opens the backend.
func (o *options) open() (b nvmetest.Backend, closeIt func() error, err error) {
	nothing := func() error { return nil }
	switch o.backend {
	case "null":
		return nvmetest.Null(o.size), nothing, nil
	case "memory":
		return nvmetest.Memory(o.size), nothing, nil
	}
	path := strings.TrimPrefix(o.backend, "file:")
	f, err := os.OpenFile(path, os.O_RDWR, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("backend: %w", err)
	}
	if b, err = nvmetest.File(f); err != nil {
		f.Close()
		return nil, nil, err
	}
	return b, f.Close, nil
}

func (o *options) config(b nvmetest.Backend, log *slog.Logger) nvmetest.Config {
	return nvmetest.Config{
		Mode: modes[o.mode], Addr: o.listen, RefuseDigests: refusals[o.digests],
		MaxQueueEntries: o.queueSize, InCapsule: o.inCapsule, Spin: o.spin, Logger: log,
		Subsystems: []nvmetest.Subsystem{{
			NQN: o.nqn, Namespaces: []nvmetest.Namespace{{BlockSize: o.blockSize, Backend: b}},
		}},
	}
}
