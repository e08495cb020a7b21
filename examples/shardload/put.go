package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

func putCommand(fs *pflag.FlagSet) runner {
	p := putFlags{memory: staging.DefaultPoolBytes}
	p.connectFlags.add(fs, nvmetcp.DefaultPort)
	p.addIO(fs)
	fs.Var(&p.nsids, "nsid", "namespace to write to")
	fs.BoolVarP(&p.yes, "yes", "y", false, "do not ask before what is on the namespace is overwritten")
	fs.Var(&p.memory, "memory", "memory for data on its way")
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
	nsids  nsidList
	memory byteSize
	yes    bool
	json   bool
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
	pool, err := newPool(p.memory)
	if err != nil {
		return err
	}
	defer pool.Close()
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
	w := &writing{ns: ns, file: file, size: size, pool: pool, latencies: newLatencies(), workers: writersPerQueue * len(info.Queues)}
	r := &report{Command: "put", Tensors: len(shard.Tensors), Bytes: size}
	r.Shards = []shardReport{{NSID: ns.NSID(), Bytes: size, Tensors: len(shard.Tensors), File: name}}
	begun, cpu := time.Now(), cpuTime()
	stop := watch(con, "writing", "written", size, w.done.Load)
	err = w.write(ctx)
	stop()
	if err != nil {
		return &partial{verb: "written", done: w.done.Load(), total: size, err: err, hint: w.left}
	}
	r.rate(time.Since(begun), cpuTime()-cpu)
	r.LatencyUS = w.latencies.report()
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

// writersPerQueue is how many writes are under way for each I/O queue.
const writersPerQueue = 4

// writing is the writing of one file to a namespace.
//
// The start of the shard goes last, and until then there is a block of zeros: what has been half
// written is nobody's shard.
type writing struct {
	ns        *nvmetcp.Namespace
	file      io.ReaderAt
	size      int64
	pool      *staging.Pool
	latencies *latencies
	workers   int

	left string // what a write that failed leaves behind
	done atomic.Int64
}

func (w *writing) write(ctx context.Context) error {
	if _, err := w.ns.WriteAtContext(ctx, make([]byte, w.ns.BlockSize()), 0); err != nil {
		if errors.Is(err, nvmetcp.ErrPathLost) {
			w.left = fmt.Sprintf("namespace %d may hold no shard now: put it again", w.ns.NSID())
		}
		return err
	}
	w.left = fmt.Sprintf("namespace %d holds no shard now: put it again", w.ns.NSID())
	if err := w.ns.Flush(ctx); err != nil {
		return err
	}
	if err := w.chunks(ctx, int64(w.pool.Info().BufferSize)); err != nil {
		return err
	}
	if err := w.ns.Flush(ctx); err != nil {
		return err
	}
	if err := w.chunk(ctx, 0); err != nil {
		return err
	}
	return w.ns.Flush(ctx)
}

// chunks writes all of the file from off on.
func (w *writing) chunks(ctx context.Context, off int64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var (
		next = atomic.Int64{}
		step = int64(w.pool.Info().BufferSize)
		wg   sync.WaitGroup
	)
	next.Store(off)
	for range w.workers {
		wg.Go(func() {
			for ctx.Err() == nil {
				at := next.Add(step) - step
				if at >= w.size {
					return
				}
				if err := w.chunk(ctx, at); err != nil {
					cancel(err) // the first one is the cause
					return
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// chunk writes one buffer of the file, filled up with zeros to whole blocks.
func (w *writing) chunk(ctx context.Context, off int64) error {
	buf, err := w.pool.Get(ctx)
	if err != nil {
		return err
	}
	defer buf.Release()
	n := min(int64(len(buf.Bytes())), w.size-off)
	block := int64(w.ns.BlockSize())
	b := buf.Bytes()[:(n+block-1)/block*block]
	if got, err := w.file.ReadAt(b[:n], off); int64(got) < n {
		if errors.Is(err, io.EOF) {
			err = errors.New("the file has become shorter")
		}
		return fmt.Errorf("reading the file at %d: %w", off, err)
	}
	clear(b[n:])
	begun := time.Now()
	if _, err := w.ns.WriteAtContext(ctx, b, off); err != nil {
		return err
	}
	w.latencies.add(time.Since(begun))
	w.done.Add(n)
	return nil
}
