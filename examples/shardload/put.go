package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

func putCommand(fs *pflag.FlagSet) runner {
	var p putFlags
	p.connectFlags.add(fs, nvmetcp.DefaultPort)
	p.addIO(fs)
	fs.Var(&p.nsids, "nsid", "namespace to write to")
	fs.BoolVarP(&p.yes, "yes", "y", false, "do not ask before what is on the namespace is overwritten")
	p.poolFlags.add(fs)
	fs.BoolVar(&p.json, "json", false, "print the report as a JSON object")
	return func(ctx context.Context, con console, args []string) error {
		if len(args) != 1 {
			return usagef("put writes one file, not %d", len(args))
		}
		if err := p.needTarget(); err != nil {
			return err
		}
		if len(p.nsids) != 1 {
			return usagef("which namespace? Give one with --nsid")
		}
		if !p.yes && !isTerminal(con.in) {
			return usagef("put overwrites namespace %d, and there is no terminal to ask on: confirm with --yes", p.nsids[0])
		}
		return p.put(ctx, con, args[0])
	}
}

type putFlags struct {
	connectFlags
	poolFlags
	nsids nsidList
	yes   bool
	json  bool
}

// put writes the shard in a file to a namespace.
func (p *putFlags) put(ctx context.Context, con console, name string) error {
	host, err := p.host()
	if err != nil {
		return err
	}
	file, shard, err := openShardFile(ctx, name)
	if err != nil {
		return err
	}
	defer file.Close()
	stat, err := file.Stat()
	if err != nil {
		return err
	}
	size := stat.Size()
	pool, _, err := p.poolFlags.open(ctx, nil)
	if err != nil {
		return err
	}
	defer closePool(con, pool)
	setup, cancel := p.within(ctx)
	defer cancel()
	s, err := p.connect(setup, host, p.target())
	if err != nil {
		return err
	}
	defer s.close(ctx, con)
	spaces, err := s.namespaces(setup, p.nsids)
	if err != nil {
		return err
	}
	ns, info := spaces[0], s.sub.Controller()
	if size > ns.Size() {
		return fmt.Errorf("%s has %d bytes, more than namespace %d of subsystem %q at %s, which has %d; use a larger one",
			name, size, ns.NSID(), info.NQN, info.Addr, ns.Size())
	}
	if !p.yes {
		question := fmt.Sprintf("Write %s (%s, %d tensors) over namespace %d of %s at %s (%s, %s)?", nameText(name), bytesText(size),
			len(shard.Tensors), ns.NSID(), nameText(info.NQN), info.Addr, bytesText(ns.Size()), contents(setup, ns))
		cancel()
		if err := ask(ctx, con, question); err != nil {
			return err
		}
	}
	latencies := newLatencies()
	saver := &staging.Saver{Pool: pool, OnIO: func(write *staging.Read) {
		if write.Err == nil {
			latencies.add(write.Latency)
		}
	}}
	written := func() int64 { return saver.Stats().Written }
	r := &report{Command: "put", Tensors: len(shard.Tensors), Bytes: size}
	r.Shards = []shardReport{{NSID: ns.NSID(), Bytes: size, Tensors: len(shard.Tensors), File: name}}
	begun, cpu := time.Now(), cpuTime()
	stop := watch(con, "writing", "written", size, written)
	err = saver.Copy(ctx, ns, file, size)
	stop()
	if err != nil {
		e := &partial{verb: "written", done: written(), total: size, err: err}
		var save *staging.SaveError
		if errors.As(err, &save) {
			e.err, e.hint = save.Err, leftText(save.Left, ns)
		}
		return e
	}
	r.rate(time.Since(begun), cpuTime()-cpu)
	r.LatencyUS = latencies.report()
	r.fill(s, pool)
	if err := r.print(con.out, p.json); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	return nil
}

// contents says what is on a namespace, for somebody who is about to overwrite it.
func contents(ctx context.Context, ns *nvmetcp.Namespace) string {
	shard, err := staging.OpenShard(ctx, ns)
	if err == nil {
		return fmt.Sprintf("holds a shard of %s, %d tensors", bytesText(shard.Size), len(shard.Tensors))
	}
	first := make([]byte, min(ns.Size(), 64<<10))
	if _, err := ns.ReadAtContext(ctx, first, 0); err != nil {
		return "unreadable"
	}
	for _, b := range first {
		if b != 0 {
			return "holds other data"
		}
	}
	return "empty at its start"
}

// ask asks a person on the terminal. An answer other than yes is an error.
func ask(ctx context.Context, con console, question string) error {
	fmt.Fprintf(con.err, "%s [y/N] ", question)
	answer := make(chan string, 1)
	go func() {
		line, _ := bufio.NewReader(con.in).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		if a == "y" || a == "yes" {
			return nil
		}
		return errors.New("nothing was written: not confirmed")
	case <-ctx.Done():
		fmt.Fprintln(con.err)
		return context.Cause(ctx)
	}
}

// leftText says what a write that failed has left on a namespace.
func leftText(left staging.Left, ns *nvmetcp.Namespace) string {
	switch left {
	case staging.LeftNoShard:
		return fmt.Sprintf("namespace %d holds no shard now: put it again", ns.NSID())
	case staging.LeftUncertain:
		return fmt.Sprintf("namespace %d may hold no shard now", ns.NSID())
	default:
		return ""
	}
}
