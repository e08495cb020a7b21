package load

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"time"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/queue"
	"github.com/nvstage/nvstage/staging"
)

// Load is a set of connected queues and the buffers for them.
type Load struct {
	cfg    Config
	assocs []assoc
	pool   *staging.Pool
	out    []staging.Buffer // what the workers have
	win    measure.Window
}

type assoc struct {
	sub *nvmetcp.Subsystem
	ns  *nvmetcp.Namespace
	cpu int // -1 = not pinned
}

// linger is how long I/Os that are outstanding at the end may take before they are cancelled.
const linger = 2 * time.Second

// Open connects. Close the load when done.
func Open(ctx context.Context, cfg Config) (*Load, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	l := &Load{cfg: cfg}
	if err := l.open(ctx); err != nil {
		return nil, errors.Join(err, l.Close())
	}
	return l, nil
}

func (l *Load) open(ctx context.Context) error {
	cfg := &l.cfg
	for i := range cfg.queues() {
		o := cfg.Options
		o.NumIOQueues, o.QueueSize, o.MaxIO, o.CPUs = 1, cfg.depth()+1, max(cfg.Size, nvmetcp.DefaultMaxIO), nil
		a := assoc{cpu: -1}
		if n := len(cfg.CPUs); n > 0 {
			a.cpu = cfg.CPUs[i%n]
			o.CPUs = []int{a.cpu}
		}
		var err error
		if a.sub, err = cfg.Host.Connect(ctx, cfg.Target, &o); err != nil {
			return err
		}
		l.assocs = append(l.assocs, a)
		if a.ns, err = a.sub.Namespace(ctx, cfg.NSID); err != nil {
			return err
		}
		l.assocs[i] = a
		if err := l.fits(a.ns); err != nil {
			return err
		}
	}
	return l.allocate()
}

// fits is the error of a namespace that I/Os of the size cannot be done on.
func (l *Load) fits(ns *nvmetcp.Namespace) error {
	size := l.cfg.Size
	switch {
	case int64(size) > ns.Size():
		return fmt.Errorf("I/O size %d: namespace %d has only %d bytes", size, ns.NSID(), ns.Size())
	case size%ns.BlockSize() != 0:
		return fmt.Errorf("I/O size %d: namespace %d has blocks of %d bytes; use a multiple", size, ns.NSID(), ns.BlockSize())
	case l.cfg.API == Feed && size > ns.MaxIO():
		return fmt.Errorf("I/O size %d: the controller takes at most %d bytes in one command (MDTS); use a smaller size, or --api readat, which splits", size, ns.MaxIO())
	}
	return nil
}

// allocate makes the buffers of all queues and goroutines: off the heap, and no more than are in use.
func (l *Load) allocate() error {
	n := l.cfg.queues() * l.cfg.Depth
	switch l.cfg.API {
	case ReadAt:
		n = l.cfg.Threads
	case Batch:
		n = l.cfg.Threads * l.cfg.Depth
	}
	size := (l.cfg.Size + 4095) &^ 4095
	var err error
	l.pool, err = staging.NewPool(staging.PoolConfig{Bytes: int64(n) * int64(size), BufferSize: size})
	return err
}

// buffer returns one that no other worker has.
func (l *Load) buffer() []byte {
	b, ok := l.pool.TryGet()
	if !ok {
		panic("load: more workers than buffers") // allocate and workers disagree
	}
	l.out = append(l.out, b)
	return b.Bytes()[:l.cfg.Size]
}

// recycle takes the buffers back from workers that are done.
func (l *Load) recycle() {
	for _, b := range l.out {
		b.Release()
	}
	l.out = l.out[:0]
}

// reads returns reads into buffers of their own.
func (l *Load) reads() []*nvmetcp.Read {
	list := make([]*nvmetcp.Read, l.cfg.Depth)
	for i := range list {
		list[i] = &nvmetcp.Read{Buf: l.buffer()}
	}
	return list
}

// workers makes the workers of a run. Those of the one before are done.
func (l *Load) workers() []worker {
	l.recycle()
	n := len(l.assocs)
	if l.cfg.API != Feed {
		n = l.cfg.Threads
	}
	var all []worker
	for i := range n {
		a := l.assocs[i%len(l.assocs)]
		t := tally{win: &l.win}
		gen := newGenerator(l.cfg.Pattern, int64(l.cfg.Size), a.ns.Size(), i, n)
		switch l.cfg.API {
		case ReadAt:
			all = append(all, &caller{tally: t, ns: a.ns, gen: gen, buf: l.buffer()})
		case Batch:
			all = append(all, &batcher{tally: t, ns: a.ns, gen: gen, reads: l.reads()})
		default:
			all = append(all, &source{tally: t, ns: a.ns, gen: gen, free: l.reads(), pinned: a.cpu >= 0})
		}
	}
	return all
}

// Close disconnects, and frees the buffers.
func (l *Load) Close() error {
	var errs []error
	for _, a := range l.assocs {
		if a.sub.Err() == nil { // otherwise there is nobody to say goodbye to, and that has been said
			errs = append(errs, a.sub.Close())
		} else {
			a.sub.Close()
		}
	}
	if l.pool != nil {
		l.recycle()
		errs = append(errs, l.pool.Close())
	}
	return errors.Join(errs...)
}

// Run runs the load for its time, once. When ctx ends the result is of the time until then.
func (l *Load) Run(ctx context.Context) (*measure.Result, error) {
	workers := l.workers()
	for _, w := range workers {
		w.result().lat = measure.NewLatencies()
	}
	ioCtx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	if l.cfg.Garbage > 0 {
		littering, stop := context.WithCancel(ctx)
		var gone sync.WaitGroup
		gone.Go(func() { litter(littering, l.cfg.Garbage) })
		defer gone.Wait()
		defer stop()
	}
	failed := make(chan struct{})
	fail := sync.OnceFunc(func() { close(failed) })
	var wg sync.WaitGroup
	for _, w := range workers {
		wg.Go(func() {
			if w.run(ioCtx, -1) != nil {
				fail()
			}
		})
	}
	var before, after queue.Stats
	used := l.win.Run(ctx, l.cfg.Warmup, l.cfg.Time, failed, func(end bool) {
		if end {
			after = l.Stats()
		} else {
			before = l.Stats()
		}
	})
	giveUp := time.AfterFunc(linger, cancel)
	wg.Wait()
	giveUp.Stop()
	res := &measure.Result{Latencies: measure.NewLatencies(), Report: l.describe()}
	var (
		ops    int64
		thread time.Duration
		known  = true
	)
	for _, w := range workers {
		t := w.result()
		if t.err != nil {
			return nil, t.err
		}
		ops += t.ops
		res.Latencies.Merge(t.lat)
		s, ok := w.(*source)
		known = known && ok && s.ended
		thread += t.cpu
	}
	r := &res.Report
	r.Fill(used, ops)
	r.Latency = res.Latencies.Summary()
	if known && r.CPU != nil {
		v := measure.Ratio(thread.Seconds()*1e6, float64(ops))
		r.CPU.QueueThreads = &v
	}
	per := func(a, b uint64) float64 { return measure.Ratio(float64(b-a), float64(after.Commands-before.Commands)) }
	r.Calls = per(before.Syscalls, after.Syscalls)
	r.Turns = per(before.Turns, after.Turns)
	r.Sleeps = per(before.Sleeps, after.Sleeps)
	return res, nil
}

// Do does n I/Os, and returns when all have completed. It counts none, and keeps no latencies.
func (l *Load) Do(ctx context.Context, n int64) error {
	workers := l.workers()
	errs := make([]error, len(workers))
	var wg sync.WaitGroup
	for i, w := range workers {
		share := n / int64(len(workers))
		if int64(i) < n%int64(len(workers)) {
			share++
		}
		wg.Go(func() { errs[i] = w.run(ctx, share) })
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Stats is the sum of the I/O queues' counters since they connected.
func (l *Load) Stats() queue.Stats {
	var sum queue.Stats
	for _, a := range l.assocs {
		for _, q := range a.sub.Stats().Queues {
			sum.Commands += q.Commands
			sum.Syscalls += q.Syscalls
			sum.Turns += q.Turns
			sum.Sleeps += q.Sleeps
		}
	}
	return sum
}

func (l *Load) describe() measure.Report {
	cfg := &l.cfg
	r := measure.Report{
		Command: "perf", MaxProcs: runtime.GOMAXPROCS(0),
		Target: measure.Target{Address: cfg.Target.Addr, NQN: cfg.Target.NQN, NSID: cfg.NSID},
		Work: measure.Work{
			Pattern: cfg.Pattern.String(), ReadPercent: cfg.Pattern.Reads, Size: cfg.Size, Depth: cfg.Depth, Queues: cfg.queues(),
			CPUs: cfg.CPUs, API: string(cfg.API), Spin: cfg.Options.Spin.String(),
			HDGST: cfg.Options.HeaderDigest, DDGST: cfg.Options.DataDigest, Warmup: cfg.Warmup.Seconds(), Garbage: cfg.Garbage,
		},
	}
	switch {
	case cfg.Options.Spin == 0:
		r.Work.Spin = queue.DefaultSpin.String()
	case cfg.Options.Spin < 0:
		r.Work.Spin = "0s"
	}
	if cfg.API != Feed {
		r.Work.Threads = cfg.Threads
	}
	for _, q := range l.assocs[0].sub.Controller().Queues {
		r.Driver, r.Notes = string(q.Driver), q.Notes
	}
	return r
}
