package main

import (
	"context"
	"fmt"
	"net"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/bench/internal/raw"
)

// rawFlags are the flags of raw stream and raw pingpong.
type rawFlags struct {
	kind     raw.Kind
	addr     string
	size     byteSize
	depth    int
	workload string
	time     seconds
	warmup   seconds
	cpus     cpuList
	blocking bool
	output   outputFlags
}

// defaultRawAddr is where raw serve listens.
const defaultRawAddr = "127.0.0.1:4419"

func rawStreamCommand(fs *pflag.FlagSet) runner {
	f := &rawFlags{kind: raw.Stream}
	fs.IntVarP(&f.depth, "qdepth", "q", 8, "buffers that calls take turns with, as many as a queue would have")
	return f.add(fs)
}

func rawPingPongCommand(fs *pflag.FlagSet) runner {
	f := &rawFlags{kind: raw.PingPong, depth: 1}
	return f.add(fs)
}

func (f *rawFlags) add(fs *pflag.FlagSet) runner {
	f.size, f.time, f.warmup = 4096, seconds(10*time.Second), seconds(time.Second/10)
	fs.StringVarP(&f.addr, "addr", "a", defaultRawAddr, "`HOST:PORT` of raw serve")
	fs.VarP(&f.size, "io-size", "o", "bytes of data in one I/O")
	fs.StringVarP(&f.workload, "workload", "w", "read", "`DIRECTION`: read or write")
	fs.VarP(&f.time, "time", "t", "how long to measure: seconds, or a duration like 500ms")
	fs.Var(&f.warmup, "warmup", "how long to run before that")
	fs.VarP(&f.cpus, "cpus", "c", "CPU for the thread (default not pinned)")
	fs.BoolVar(&f.blocking, "blocking", false, "sleep in the kernel in place of polling; the other side then polls 50 µs and sleeps, as a target does")
	f.output.add(fs)
	return f.run
}

func (f *rawFlags) run(ctx context.Context, con console) error {
	if f.workload != "read" && f.workload != "write" {
		return usagef("-w %q: want read or write", f.workload)
	}
	if len(f.cpus) > 1 {
		return usagef("-c %s: there is only one thread", f.cpus.String())
	}
	if f.size > raw.MaxSize || f.depth < 1 || f.depth > 4096 || f.time <= 0 {
		return usagef("want at most %s an I/O, -q from 1 to 4096, and -t longer than 0", sizeText(raw.MaxSize))
	}
	cfg := raw.Config{
		Addr: f.addr, Kind: f.kind, Write: f.workload == "write", Size: int(f.size), Depth: f.depth, Blocking: f.blocking,
		CPU: -1, Warmup: time.Duration(f.warmup), Time: time.Duration(f.time),
	}
	if len(f.cpus) == 1 {
		cfg.CPU = f.cpus[0]
	}
	res, err := raw.Run(ctx, cfg)
	if err != nil {
		return err
	}
	return f.output.print(con.out, res)
}

func rawServeCommand(fs *pflag.FlagSet) runner {
	addr := fs.StringP("addr", "a", defaultRawAddr, "`HOST:PORT` to listen on; port 0 takes a free one")
	return func(ctx context.Context, con console) error {
		ln, err := net.Listen("tcp", *addr)
		if err != nil {
			return err
		}
		fmt.Fprintln(con.out, ln.Addr())
		return raw.Serve(ctx, ln, func(err error) { fmt.Fprintf(con.err, "nvmeperf: %v\n", err) })
	}
}
