package main

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/bench/internal/load"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/queue"
)

// perfFlags are the flags of a load, spdk_nvme_perf's where that has them.
type perfFlags struct {
	depth    int
	size     byteSize
	workload string
	mix      int
	time     seconds
	warmup   seconds
	cpus     cpuList
	perCPU   int
	api      string
	threads  int
	garbage  byteSize

	trid         string
	where        transportID
	nsid         uint32
	hdgst, ddgst bool
	driver       driver
	spin         spin
	timeout      seconds

	output outputFlags
}

func perfCommand(fs *pflag.FlagSet) runner {
	f := &perfFlags{size: 4096, time: seconds(10 * time.Second), warmup: seconds(time.Second / 10), timeout: seconds(10 * time.Second)}
	fs.IntVarP(&f.depth, "qdepth", "q", 32, "commands outstanding in each queue")
	fs.VarP(&f.size, "io-size", "o", "bytes of an I/O, like 4096, 128k or 1M")
	fs.StringVarP(&f.workload, "workload", "w", "randread", "`PATTERN`: read, write, randread, randwrite, rw or randrw")
	fs.IntVarP(&f.mix, "rwmixread", "M", -1, "`PERCENT` of reads in rw and randrw (default 50)")
	fs.Lookup("rwmixread").DefValue = "0" // which the help leaves out
	fs.VarP(&f.time, "time", "t", "how long to measure: seconds, or a duration like 500ms")
	fs.Var(&f.warmup, "warmup", "how long to run before that")
	fs.VarP(&f.cpus, "cpus", "c", "for the queues' threads, each with a queue of its own: a list like 1,2-3 or a mask like 0xe (default one queue, not pinned)")
	fs.IntVarP(&f.perCPU, "num-qpairs", "P", 1, "`N` queues on each CPU")
	fs.StringVarP(&f.trid, "transport", "r", "", "`TRID`, like 'trtype:TCP adrfam:IPv4 traddr:192.0.2.10 trsvcid:4420 subnqn:nqn...'")
	fs.StringVarP(&f.where.traddr, "traddr", "a", "", "`ADDRESS` of the target, in place of -r")
	fs.StringVarP(&f.where.trsvcid, "trsvcid", "s", "", "`PORT` of the target (default "+nvmetcp.DefaultPort+")")
	fs.StringVarP(&f.where.subnqn, "nqn", "n", "", "`NQN` of the subsystem")
	fs.StringVar(&f.where.hostnqn, "hostnqn", "", "`NQN` of this host (default /etc/nvme/hostnqn, or one made once and kept)")
	fs.Uint32Var(&f.nsid, "nsid", 1, "namespace `ID`")
	fs.BoolVar(&f.hdgst, "hdgst", false, "protect PDU headers with CRC32C")
	fs.BoolVar(&f.ddgst, "ddgst", false, "protect data with CRC32C")
	fs.Var(&f.driver, "driver", "how bytes move: auto, epoll, io_uring or net.Conn")
	fs.Var(&f.spin, "spin", "how long a queue polls its socket before it sleeps: like 50us, 0 for never, or always")
	fs.StringVar(&f.api, "api", "feed", "`WAY` in: feed (on the queues' own threads), readat (goroutines that call ReadAt and WriteAt) or batch (goroutines that call ReadBatch with -q reads)")
	fs.IntVar(&f.threads, "threads", 1, "`N` goroutines of readat and batch; readat has that many I/Os outstanding, whatever -q says")
	fs.Var(&f.garbage, "garbage", "bytes that a goroutine allocates beside the load each second, to see what the collector costs")
	fs.Var(&f.timeout, "timeout", "longest wait for the target: for a connection, and for each command")
	f.output.add(fs)
	return f.run
}

func (f *perfFlags) run(ctx context.Context, con console) error {
	cfg, err := f.config()
	if err != nil {
		return err
	}
	l, err := load.Open(ctx, cfg)
	if err != nil {
		return err
	}
	res, err := l.Run(ctx)
	if err == nil {
		err = f.output.print(con.out, res)
	}
	if closeErr := l.Close(); err == nil {
		err = closeErr
	}
	return err
}

// config is what the flags say.
func (f *perfFlags) config() (load.Config, error) {
	none := load.Config{}
	if f.trid != "" {
		if f.where.traddr != "" || f.where.trsvcid != "" || f.where.subnqn != "" {
			return none, usagef("-r says where the target is; leave out -a, -s and -n")
		}
		t, err := parseTransportID(f.trid)
		if err != nil {
			return none, usagef("-r: %v", err)
		}
		if t.hostnqn == "" {
			t.hostnqn = f.where.hostnqn
		}
		if t.ns != 0 {
			f.nsid = t.ns
		}
		f.where = t
	}
	target, err := f.where.target()
	if err != nil {
		return none, err
	}
	pattern, err := load.ParsePattern(f.workload, f.mix)
	if err != nil {
		return none, usagef("%v", err)
	}
	switch {
	case f.depth < 1 || f.depth > queue.MaxDepth:
		return none, usagef("-q %d: want 1 to %d", f.depth, queue.MaxDepth)
	case f.perCPU < 1 || f.perCPU > 1024:
		return none, usagef("-P %d: want 1 to 1024", f.perCPU)
	case f.threads < 1 || f.threads > 1<<16:
		return none, usagef("--threads %d: want 1 to %d", f.threads, 1<<16)
	case f.api != string(load.Feed) && f.api != string(load.ReadAt) && f.api != string(load.Batch):
		return none, usagef("--api %q: want feed, readat or batch", f.api)
	case f.api == string(load.Batch) && pattern.Reads < 100:
		return none, usagef("--api batch only reads; use -w read or randread")
	case f.time <= 0 || f.timeout <= 0:
		return none, usagef("--time and --timeout must be longer than 0")
	}
	limit := time.Duration(f.timeout)
	return load.Config{
		Host: nvmetcp.Host{NQN: f.where.hostnqn}, Target: target, NSID: f.nsid,
		Options: nvmetcp.Options{
			HeaderDigest: f.hdgst, DataDigest: f.ddgst, Driver: queue.Driver(f.driver), Spin: time.Duration(f.spin),
			DialTimeout: limit, ICTimeout: limit, ConnectTimeout: limit, CommandTimeout: limit,
		},
		CPUs: f.cpus, QueuesPerCPU: f.perCPU, Depth: f.depth, Size: int(f.size), Pattern: pattern,
		API: load.API(f.api), Threads: f.threads, Garbage: int(f.garbage), Warmup: time.Duration(f.warmup), Time: time.Duration(f.time),
	}, nil
}

// digestsText names the digests that are on.
func digestsText(hdgst, ddgst bool) string {
	var on []string
	if hdgst {
		on = append(on, "HDGST")
	}
	if ddgst {
		on = append(on, "DDGST")
	}
	if on == nil {
		return "no digests"
	}
	return fmt.Sprint(strings.Join(on, " and "))
}
