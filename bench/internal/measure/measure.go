// Package measure has what the measuring programs share: a window of time, what the process used in it,
// and the report.
package measure

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"
)

// Window is the time that counts in a run: after the warm-up, and before the end. What is measured runs
// on other goroutines, which ask the window in every step.
type Window struct{ state atomic.Uint32 }

const (
	warming = iota
	open
	over
)

// Open reports whether what completes now counts.
func (w *Window) Open() bool { return w.state.Load() == open }

// Over reports whether the run is to end.
func (w *Window) Over() bool { return w.state.Load() == over }

// Used is what the whole process used while the window was open.
type Used struct {
	Time        time.Duration
	CPU         time.Duration // user and system
	Voluntary   int64         // context switches: the process waited
	Involuntary int64         // context switches: another one's turn
	Allocs      uint64        // objects allocated on the Go heap
	GCs         uint32        // cycles of the garbage collector
	GCPause     time.Duration // in which it stopped everything
	HasCPU      bool          // CPU and the switches are known on this system
}

// Run keeps the window shut for warmup and then open for d, less if ctx or abort end first. sample is
// called at both ends, for counters that are kept elsewhere. The window is over when Run returns.
func (w *Window) Run(ctx context.Context, warmup, d time.Duration, abort <-chan struct{}, sample func(end bool)) Used {
	pause(ctx, warmup, abort)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	u0 := processUsage()
	sample(false)
	t0 := time.Now()
	w.state.Store(open)
	pause(ctx, d, abort)
	w.state.Store(over)
	t1 := time.Now()
	sample(true)
	u1 := processUsage()
	runtime.ReadMemStats(&after)
	return Used{
		Time: t1.Sub(t0), CPU: u1.cpu - u0.cpu, Voluntary: u1.voluntary - u0.voluntary, Involuntary: u1.involuntary - u0.involuntary,
		Allocs: after.Mallocs - before.Mallocs, GCs: after.NumGC - before.NumGC,
		GCPause: time.Duration(after.PauseTotalNs - before.PauseTotalNs), HasCPU: u1.known,
	}
}

func pause(ctx context.Context, d time.Duration, abort <-chan struct{}) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
	case <-abort:
	case <-ctx.Done():
	}
}

// usage is what a process has used since it began.
type usage struct {
	cpu                    time.Duration
	voluntary, involuntary int64
	known                  bool
}

// ProcessCPU is the CPU time, user and system, that the process has used; 0 where the system does not tell.
func ProcessCPU() time.Duration { return processUsage().cpu }
