package main

import (
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
)

// flags are the command line. Those of the connection are named as in nvme connect and examples/shardload.
type flags struct {
	listen      string
	device      string
	gpu         int
	memory      byteSize
	memoryLimit byteSize
	drain       time.Duration
	size        byteSize
	indexFile   string
	index       *staging.Index

	transport  string
	traddr     string
	trsvcid    string
	nqn        string
	nsids      []uint
	hostnqn    string
	hostid     string
	id         nvmetcp.HostID // of hostid
	hostTraddr string
	hostIface  string
	ioQueues   int
	queueSize  int
	headDigest bool
	dataDigest bool
	keepAlive  uint16 // seconds
	timeout    time.Duration
}

// parse parses and checks the command line. Help goes to out.
func (f *flags) parse(args []string, out io.Writer) error {
	f.memory, f.size = 256<<20, 64<<20
	fs := pflag.NewFlagSet("serve", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.StringVar(&f.listen, "listen", "127.0.0.1:8080", "`ADDRESS` to serve HTTP on; nobody is asked who they are, so keep it from strangers")
	fs.StringVar(&f.device, "device", "host", "where models go: host, cuda or rocm")
	fs.IntVar(&f.gpu, "gpu", 0, "`N` of the GPU, as its driver counts")
	fs.Var(&f.memory, "memory", "pinned staging memory")
	fs.Var(&f.memoryLimit, "memory-limit", "most memory of the staging pool and all models together: a swap has two of them (default no limit)")
	fs.DurationVar(&f.drain, "drain", 10*time.Second, "how long requests may take to finish after a signal")
	fs.Var(&f.size, "size", "size of each made-up model of the embedded target")
	fs.StringVar(&f.indexFile, "index", "", "model.safetensors.index.json; its files in alphabetical order are on the namespaces of --nsid")
	fs.StringVarP(&f.transport, "transport", "t", "tcp", "transport: only tcp")
	fs.StringVarP(&f.traddr, "traddr", "a", "", "`ADDRESS` of the target: an IP address or a name (default: a target in this process)")
	fs.StringVarP(&f.trsvcid, "trsvcid", "s", nvmetcp.DefaultPort, "`PORT` of the target")
	fs.StringVarP(&f.nqn, "nqn", "n", "", "`NQN` of the subsystem")
	fs.UintSliceVar(&f.nsids, "nsid", nil, "namespaces that hold the model's shards, in order; without any all of them")
	fs.StringVarP(&f.hostnqn, "hostnqn", "q", "", "`NQN` of this host (default /etc/nvme/hostnqn, or one made once and kept)")
	fs.StringVarP(&f.hostid, "hostid", "I", "", "ID of this host, a `UUID` (default the one that goes with the NQN)")
	fs.StringVarP(&f.hostTraddr, "host-traddr", "w", "", "IP `ADDRESS` to connect from")
	fs.StringVarP(&f.hostIface, "host-iface", "f", "", "network `INTERFACE` to connect through")
	fs.IntVarP(&f.ioQueues, "nr-io-queues", "i", 0, "`N` I/O queues, each a connection and a thread (default the number of CPUs, at most 4)")
	fs.IntVarP(&f.queueSize, "queue-size", "Q", nvmetcp.DefaultQueueSize, "`N` entries of an I/O queue")
	fs.BoolVarP(&f.headDigest, "hdr-digest", "g", false, "protect PDU headers with CRC32C")
	fs.BoolVarP(&f.dataDigest, "data-digest", "G", false, "protect data with CRC32C")
	fs.Uint16VarP(&f.keepAlive, "keep-alive-tmo", "k", uint16(nvmetcp.DefaultKeepAlive/time.Second), "keep alive timeout in `SECONDS`, 0 for none")
	fs.DurationVar(&f.timeout, "timeout", 30*time.Second, "longest wait for the target: until a model is opened, then for each command")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, pflag.ErrHelp) {
			fmt.Fprintf(out, "Serves a model from an NVMe/TCP target over HTTP. Without --traddr: made-up models, from a target in this process.\n\nFlags:\n%s", fs.FlagUsages())
		}
		return err
	}
	if fs.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", fs.Arg(0))
	}
	return f.check(fs)
}

// check is the error of flags with values that nothing can be done with.
func (f *flags) check(fs *pflag.FlagSet) error {
	if f.transport != "tcp" {
		return fmt.Errorf("--transport %q: only tcp is supported", f.transport)
	}
	if f.timeout <= 0 || f.drain <= 0 {
		return errors.New("--timeout and --drain: want a duration like 30s")
	}
	if f.memoryLimit != 0 && f.memoryLimit < f.memory {
		return fmt.Errorf("--memory-limit %s: it includes --memory, which is %s", &f.memoryLimit, &f.memory)
	}
	if f.hostid != "" {
		id, err := nvmetcp.ParseHostID(f.hostid)
		if err != nil {
			return fmt.Errorf("--hostid: %w", err)
		}
		f.id = id
	}
	if f.indexFile != "" {
		text, err := os.ReadFile(f.indexFile)
		if err != nil {
			return err
		}
		if f.index, err = staging.ParseIndex(text); err != nil {
			return fmt.Errorf("--index %s: %w", f.indexFile, err)
		}
	}
	if f.traddr == "" {
		for _, name := range []string{"trsvcid", "nqn", "nsid", "index", "host-traddr", "host-iface"} {
			if fs.Changed(name) {
				return fmt.Errorf("--%s needs --traddr; without it the target is one in this process", name)
			}
		}
		return nil
	}
	if fs.Changed("size") {
		return errors.New("--size is for made-up models; the target at --traddr has its own")
	}
	return f.source().check()
}

// source is the model to load first.
func (f *flags) source() source {
	s := source{Address: net.JoinHostPort(strings.Trim(f.traddr, "[]"), f.trsvcid), NQN: f.nqn, index: f.index}
	for _, n := range f.nsids {
		s.Namespaces = append(s.Namespaces, uint32(min(uint64(n), math.MaxUint32)))
	}
	return s
}

// connector is how to connect.
func (f *flags) connector() connector {
	c := connector{
		host: nvmetcp.Host{NQN: f.hostnqn, ID: f.id}, hostTraddr: f.hostTraddr, hostIface: f.hostIface, limit: f.timeout,
		options: nvmetcp.Options{
			NumIOQueues: f.ioQueues, QueueSize: f.queueSize, HeaderDigest: f.headDigest, DataDigest: f.dataDigest,
			KeepAlive:   time.Duration(f.keepAlive) * time.Second,
			DialTimeout: f.timeout, ICTimeout: f.timeout, ConnectTimeout: f.timeout, CommandTimeout: f.timeout,
		},
	}
	if f.keepAlive == 0 {
		c.options.KeepAlive = -1
	}
	if f.traddr == "" && c.host == (nvmetcp.Host{}) {
		c.host = nvmetcp.UniqueHost() // no need to leave an identity on this machine
	}
	return c
}

// byteSize is a flag value like 64M or 1G.
type byteSize int64

func (b *byteSize) Type() string { return "SIZE" }

func (b *byteSize) String() string {
	for i, unit := range []string{"T", "G", "M", "K"} {
		if shift := 40 - 10*i; *b != 0 && *b%(1<<shift) == 0 {
			return strconv.FormatInt(int64(*b>>shift), 10) + unit
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

func (b *byteSize) Set(s string) error {
	number, shift := s, 0
	if n := len(s); n > 0 {
		if i := strings.IndexByte("KMGT", s[n-1]); i >= 0 {
			number, shift = s[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(number, 10, 64)
	if err != nil || n < 1 || n > math.MaxInt64>>shift {
		return errors.New("want a number of bytes like 64M or 1G")
	}
	*b = byteSize(n << shift)
	return nil
}
