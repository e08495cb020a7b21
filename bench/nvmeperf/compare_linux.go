package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
)

// compareFlags are the flags of compare.
type compareFlags struct {
	quick      bool
	runs       int
	time       seconds
	warmup     seconds
	only       string
	drivers    []string
	spin       spin
	targetCPU  int
	cpu        int
	ownNetwork bool
	target     string
	targetCmd  string
	peer       string
	json       bool
	markdown   bool
}

func compareCommand(fs *pflag.FlagSet) runner {
	f := &compareFlags{time: seconds(150 * time.Millisecond), warmup: seconds(60 * time.Millisecond)}
	fs.BoolVar(&f.quick, "quick", false, "one run of 50 ms each: figures to see that it works, not to go by")
	fs.IntVar(&f.runs, "runs", 5, "`N` runs of each subject, in turns")
	fs.VarP(&f.time, "time", "t", "how long a run measures: seconds, or a duration like 150ms")
	fs.Var(&f.warmup, "warmup", "how long it runs before that")
	fs.StringVar(&f.only, "only", "", "only rows whose name matches this `REGEXP`, like '4 KiB.*QD1$'")
	fs.StringSliceVar(&f.drivers, "driver", []string{string(queue.DriverEpoll), string(queue.DriverURing)}, "`NAMES` of drivers: epoll, io_uring and net.Conn")
	fs.Var(&f.spin, "spin", "how long queues poll before they sleep, in rows that do not say")
	fs.IntVar(&f.targetCPU, "target-cpu", -1, "`CPU` of the target and of raw serve (default the first that this process may use)")
	fs.IntVar(&f.cpu, "cpu", -1, "`CPU` of the initiators (default the second)")
	fs.BoolVar(&f.ownNetwork, "own-network", true, "make a network namespace with plain congestion control where that is possible")
	fs.StringVar(&f.target, "target", "", "`NAME@HOST:PORT/NQN` of another target, in place of one of this program's own. Unless --target-cmd starts it, it is looked for in the machine's network")
	fs.StringVar(&f.targetCmd, "target-cmd", "", "shell `COMMAND` that starts that target, on its CPU and in the network of the comparison. It is stopped (SIGSTOP) while the raw wire is measured")
	fs.StringVar(&f.peer, "peer", "", "shell `COMMAND` to measure in turns with this library: spdk_nvme_perf with what flags it needs besides -q -o -w -t -c -r -L -H -I, or anything that takes those and prints its table")
	fs.BoolVar(&f.json, "json", false, "print one JSON object at the end")
	fs.BoolVar(&f.markdown, "markdown", false, "print a table for a page like bench/README.md")
	return f.run
}

func (f *compareFlags) run(ctx context.Context, con console) error {
	todo, err := f.check()
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return err
	}
	c := &comparer{flags: f, con: con, where: transportID{subnqn: nvmetest.DefaultNQN}, launcher: launcher{self: self}}
	// The network namespace is this thread's, and what is started from it. The thread ends with the goroutine.
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- c.compare(ctx, todo)
	}()
	return <-done
}

// check fills in what depends on the machine, and returns the rows.
func (f *compareFlags) check() ([]row, error) {
	if f.quick {
		f.runs, f.time, f.warmup = 1, seconds(50*time.Millisecond), seconds(10*time.Millisecond)
	}
	if f.json && f.markdown {
		return nil, usagef("--json or --markdown, not both")
	}
	if f.runs < 1 || f.time <= 0 {
		return nil, usagef("want at least 1 run, and --time longer than 0")
	}
	only, err := regexp.Compile(f.only)
	if err != nil {
		return nil, usagef("--only: %v", err)
	}
	var drivers []queue.Driver
	for _, name := range f.drivers {
		var d driver
		if err := d.Set(name); err != nil || d == driver(queue.DriverAuto) {
			return nil, usagef("--driver %s: want epoll, io_uring or net.Conn", name)
		}
		drivers = append(drivers, queue.Driver(d))
	}
	if f.targetCmd != "" && f.target == "" {
		return nil, usagef("--target-cmd needs --target, to know where it will listen")
	}
	cpus, err := topo.CPUs()
	if err != nil {
		return nil, err
	}
	if f.targetCPU < 0 {
		f.targetCPU = cpus[0]
	}
	if f.cpu < 0 {
		f.cpu = cpus[0]
		if i := slices.IndexFunc(cpus, func(cpu int) bool { return cpu != f.targetCPU }); i >= 0 {
			f.cpu = cpus[i]
		}
	}
	var todo []row
	for _, r := range rows(drivers, f.peer != "", f.spin, []string{"-c", strconv.Itoa(f.cpu)}) {
		if only.MatchString(r.name) {
			todo = append(todo, r)
		}
	}
	if todo == nil {
		return nil, usagef("--only %q matches no row", f.only)
	}
	return todo, nil
}

// comparer runs a comparison.
type comparer struct {
	launcher
	flags *compareFlags
	con   console
	where transportID // the target
	raw   *server
	own   *server // the target, if it was started here
}

func (c *comparer) compare(ctx context.Context, todo []row) (err error) {
	f := c.flags
	result := comparison{CPUs: [2]int{f.targetCPU, f.cpu}, Runs: f.runs, Seconds: time.Duration(f.time).Seconds()}
	result.Network = c.network()
	c.say("network: %s\n", result.Network)
	shares, err := busy()
	if err != nil {
		return err
	}
	result.Warning = disturbed(shares, f.targetCPU, f.cpu)
	if f.cpu == f.targetCPU {
		result.Warning = fmt.Sprintf("target and initiator share CPU %d and wait for each other: do not go by these figures", f.cpu)
	}
	if result.Warning != "" {
		c.say("%s\n", result.Warning)
	}
	if result.Target, err = c.startServers(ctx); err != nil {
		return errors.Join(err, c.stopServers())
	}
	defer func() { err = errors.Join(err, c.stopServers()) }()
	c.say("target: %s, on CPU %d; initiators on CPU %d; %d runs of %v each, in turns\n", result.Target, f.targetCPU, f.cpu, f.runs, time.Duration(f.time))

	if f.markdown {
		c.say("\n")
		if _, err := io.WriteString(c.con.out, markdownHead); err != nil {
			return err
		}
	}
	works := false
	for _, r := range todo {
		s, err := c.row(ctx, r)
		if err != nil {
			return err
		}
		for i := range s.Subjects {
			works = works || s.Subjects[i].Runs > 0
		}
		result.Rows = append(result.Rows, s)
		switch {
		case f.json:
			continue
		case f.markdown:
			err = s.markdown(c.con.out)
		default:
			err = s.print(c.con.out)
		}
		if err != nil {
			return err
		}
	}
	if f.json {
		b, err := json.MarshalIndent(result, "", "  ")
		if err == nil {
			_, err = fmt.Fprintf(c.con.out, "%s\n", b)
		}
		if err != nil {
			return err
		}
	}
	if !works {
		return errors.New("nothing could be measured")
	}
	return nil
}

// say tells a person what goes on.
func (c *comparer) say(format string, args ...any) {
	w := c.con.out
	if c.flags.json {
		w = c.con.err
	}
	fmt.Fprintf(w, format, args...)
}

// network makes the network that is measured on, and describes it.
func (c *comparer) network() string {
	switch {
	case !c.flags.ownNetwork:
		return plainNetwork() + " (as asked for)"
	case c.flags.target != "" && c.flags.targetCmd == "":
		return plainNetwork() + " (where the target is)"
	}
	name, err := ownNetwork()
	if err != nil {
		return fmt.Sprintf("%s (no network of its own: %v)", plainNetwork(), err)
	}
	return name
}

// startServers starts raw serve and the target, and describes the target.
func (c *comparer) startServers(ctx context.Context) (string, error) {
	f := c.flags
	var err error
	if c.raw, err = c.serve(ctx, f.targetCPU, "raw", "serve", "-a", "127.0.0.1:0"); err != nil {
		return "", err
	}
	name := "nvmetest"
	addr := ""
	if f.target == "" {
		if c.own, err = c.serve(ctx, f.targetCPU, "null-target"); err != nil {
			return "", err
		}
		addr = c.own.addr
	} else {
		if name, addr, c.where.subnqn, err = parseTarget(f.target); err != nil {
			return "", err
		}
	}
	if c.where.traddr, c.where.trsvcid, err = net.SplitHostPort(addr); err != nil {
		return "", usagef("--target: %v", err)
	}
	if f.targetCmd != "" {
		if c.own, err = c.shell(ctx, f.targetCPU, f.targetCmd); err != nil {
			return "", err
		}
	}
	if err := waitFor(ctx, addr); err != nil {
		return "", err
	}
	return fmt.Sprintf("%s at %s", name, addr), nil
}

// parseTarget reads NAME@HOST:PORT/NQN, of which name and NQN may be left out.
func parseTarget(s string) (name, addr, nqn string, err error) {
	name, addr, nqn = "target", s, nvmetest.DefaultNQN
	if n, rest, ok := strings.Cut(addr, "@"); ok {
		name, addr = n, rest
	}
	if name == "spdk" {
		nqn = "nqn.2016-06.io.spdk:cnode1"
	}
	if a, n, ok := strings.Cut(addr, "/"); ok {
		addr, nqn = a, n
	}
	if _, _, err := net.SplitHostPort(addr); err != nil || nqn == "" {
		return "", "", "", usagef("--target %q: want NAME@HOST:PORT/NQN", s)
	}
	return name, addr, nqn, nil
}

// targetPatience is how long a target may take until it listens.
const targetPatience = 30 * time.Second

func waitFor(ctx context.Context, addr string) error {
	ctx, cancel := context.WithTimeout(ctx, targetPatience)
	defer cancel()
	for {
		// In this goroutine, whose thread is in the right network: Dialer makes no other for one address.
		conn, err := net.DialTimeout("tcp", addr, time.Second)
		if err == nil {
			return conn.Close()
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("the target does not listen: %w", err)
		}
	}
}

func (c *comparer) stopServers() error {
	var errs []error
	for _, s := range []*server{c.own, c.raw} {
		if s != nil {
			errs = append(errs, s.close())
		}
	}
	return errors.Join(errs...)
}

// row measures the subjects of a row in turns.
func (c *comparer) row(ctx context.Context, r row) (rowSummary, error) {
	s := rowSummary{Name: r.name, Subjects: make([]subjectSummary, len(r.subjects))}
	for range c.flags.runs {
		for i := range r.subjects {
			subject, sum := &r.subjects[i], &s.Subjects[i]
			sum.Name = subject.name
			m, err := c.measure(ctx, subject)
			if ctx.Err() != nil {
				return s, context.Cause(ctx)
			}
			if err != nil {
				sum.Error = err.Error()
			}
			sum.runs = append(sum.runs, m)
		}
	}
	s.summarize()
	return s, nil
}

// measure is one run of one subject.
func (c *comparer) measure(ctx context.Context, s *subject) (*measure.Report, error) {
	f := c.flags
	times := []string{"--json", "-t", time.Duration(f.time).String(), "--warmup", time.Duration(f.warmup).String()}
	switch s.kind {
	case kindRaw:
		if c.own != nil && f.targetCmd != "" {
			if err := c.own.pause(); err != nil {
				return nil, err
			}
			defer c.own.resume()
		}
		return c.nvmeperf(ctx, slices.Concat(s.args, times, []string{"-a", c.raw.addr, "-c", strconv.Itoa(f.cpu)}))
	case kindOurs:
		return c.nvmeperf(ctx, slices.Concat(s.args, times, []string{"-r", c.where.String()}))
	}
	whole := strconv.Itoa(int((time.Duration(f.time) + time.Second - 1) / time.Second)) // SPDK's takes no less
	args := slices.Concat(s.args, []string{"-t", whole, "-c", fmt.Sprintf("%#x", uint64(1)<<f.cpu), "-r", c.where.String()})
	cmd := c.command(ctx, "/bin/sh", append([]string{"-c", "exec " + f.peer + ` "$@"`, "peer"}, args...)...)
	out, err := c.output(f.cpu, cmd)
	if err != nil {
		return nil, err
	}
	size, err := strconv.Atoi(s.args[slices.Index(s.args, "-o")+1])
	if err != nil {
		return nil, err
	}
	return parsePeer(string(out), size)
}

// nvmeperf runs this program, and returns its report.
func (c *comparer) nvmeperf(ctx context.Context, args []string) (*measure.Report, error) {
	out, err := c.output(c.flags.cpu, c.command(ctx, c.self, args...))
	if err != nil {
		return nil, err
	}
	m := &measure.Report{}
	if err := json.Unmarshal(out, m); err != nil {
		return nil, fmt.Errorf("its report: %w", err)
	}
	return m, nil
}
