package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
)

// Why a load is not begun, or does not end well.
var (
	errBusy      = errors.New("another load is running")
	errReplaced  = errors.New("replaced by another load")
	errCancelled = errors.New("cancelled on request")
	errStopping  = errors.New("the server is shutting down")
)

// loads loads models, one at a time, and holds the one that serves.
type loads struct {
	conn    connector
	pool    *pool
	limit   *staging.Limit
	dev     staging.Device
	metrics *metrics
	log     *slog.Logger

	goroutines sync.WaitGroup // of loads
	models     sync.WaitGroup // in memory

	mu       sync.Mutex
	stopping bool
	serving  *model // nil: none
	running  *load  // nil: none
	now      status
	changed  chan struct{} // closed when now changes
}

// load is one load that runs.
type load struct {
	source source
	cancel context.CancelCauseFunc
	done   chan struct{} // closed when it has ended
}

// state is that of the latest load.
type state string

const (
	idle       state = "idle"       // there was none
	connecting state = "connecting" // the first load makes the staging pool before
	loading    state = "loading"
	done       state = "done"
	failed     state = "failed"
	cancelled  state = "cancelled"
)

// status is how far the latest load is.
type status struct {
	Load           int     `json:"load"` // number, from 1
	State          state   `json:"state"`
	Source         *source `json:"source,omitempty"`
	Bytes          int64   `json:"bytes"` // read so far
	TotalBytes     int64   `json:"total_bytes"`
	Tensors        int64   `json:"tensors"` // whole, on the device
	TotalTensors   int     `json:"total_tensors"`
	Layer          string  `json:"layer,omitempty"` // completed last
	BytesPerSecond float64 `json:"bytes_per_second"`
	ETASeconds     float64 `json:"eta_seconds"`
	Seconds        float64 `json:"seconds"` // since the start of the load
	Error          string  `json:"error,omitempty"`
	Serving        int     `json:"serving"` // number of the load whose model answers requests, 0: none
}

func newLoads(conn connector, p *pool, limit *staging.Limit, dev staging.Device, m *metrics, log *slog.Logger) *loads {
	l := &loads{conn: conn, pool: p, limit: limit, dev: dev, metrics: m, log: log, now: status{State: idle}, changed: make(chan struct{})}
	m.watch(l)
	return l
}

// start begins to load a model in the background. While a load runs the error is errBusy, unless this one is to replace it.
func (l *loads) start(ctx context.Context, s source, replace bool) (status, error) {
	for {
		st, running, err := l.tryStart(s)
		if running == nil || !replace {
			return st, err
		}
		running.cancel(errReplaced)
		select {
		case <-running.done:
		case <-ctx.Done():
			return st, context.Cause(ctx)
		}
	}
}

// tryStart is start that does not wait: with errBusy it returns the load that runs.
func (l *loads) tryStart(s source) (status, *load, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.stopping {
		return l.now, nil, errStopping
	}
	if l.running != nil {
		return l.now, l.running, fmt.Errorf("%w: %v", errBusy, l.running.source)
	}
	ctx, cancel := context.WithCancelCause(context.Background())
	l.running = &load{source: s, cancel: cancel, done: make(chan struct{})}
	l.set(status{Load: l.now.Load + 1, State: connecting, Source: &s})
	ld, id := l.running, l.now.Load
	l.goroutines.Go(func() { l.run(ctx, ld, id) })
	return l.now, nil, nil
}

// run is the goroutine of a load.
func (l *loads) run(ctx context.Context, ld *load, id int) {
	defer ld.cancel(nil)
	begun := time.Now()
	l.log.Info("loading", "load", id, "from", ld.source)
	pool, err := l.pool.get(ctx)
	if err != nil {
		l.finish(ctx, ld, begun, nil, err)
		return
	}
	setup, cancel := context.WithTimeoutCause(ctx, l.conn.limit, fmt.Errorf("%w: the model was not opened in %v, which is --timeout", nvmetcp.ErrTimeout, l.conn.limit))
	defer cancel()
	sub, err := l.conn.connect(setup, ld.source)
	if err != nil {
		l.finish(ctx, ld, begun, nil, err)
		return
	}
	l.metrics.connections.attach(sub)
	m, err := l.read(ctx, setup, pool, ld, id, sub, begun)
	l.finish(ctx, ld, begun, m, err)
	// Requests have the new model by now, and need not wait for this.
	l.conn.disconnect(ctx, sub, l.log)
	l.metrics.connections.detach(sub)
}

// read opens the model and streams it into the device, in the order in which a forward pass needs the tensors.
func (l *loads) read(ctx, setup context.Context, pool *staging.Pool, ld *load, id int, sub *nvmetcp.Subsystem, begun time.Time) (*model, error) {
	opened, err := openModel(setup, sub, ld.source)
	if err != nil {
		return nil, err
	}
	plan := opened.Plan().ByLayer()
	m := &model{id: id, source: ld.source, bytes: plan.Bytes(), dev: l.dev, byName: make(map[string]*staging.Tensor, len(plan))}
	for _, s := range opened.Shards {
		m.format, m.lz4 = s.Format, m.lz4 || s.LZ4 != nil
	}
	if err := l.limit.Reserve(m.bytes); err != nil {
		return nil, fmt.Errorf("a model of %d bytes, which the one that serves needs its own memory besides: %w; raise --memory-limit", m.bytes, err)
	}
	l.models.Add(1)
	l.metrics.models.Inc()
	m.onFree = func() {
		l.limit.Release(m.bytes)
		l.metrics.models.Dec()
		l.log.Info("model freed", "load", id)
		l.models.Done()
	}
	m.users.Store(1)

	loader := &staging.Loader{Pool: pool, OnRead: l.metrics.read}
	stop := l.report(loader, plan, begun)
	defer stop()
	for t, err := range loader.Stream(ctx, plan, l.dev) {
		if err != nil {
			m.release()
			return nil, err
		}
		m.add(t)
	}
	m.loaded, m.took = time.Now(), loader.Stats()
	return m, nil
}

// reportEvery is how often progress is reported.
const reportEvery = 50 * time.Millisecond

// report keeps the status up to date until stop is called.
func (l *loads) report(loader *staging.Loader, plan staging.Plan, begun time.Time) (stop func()) {
	total, opened := plan.Bytes(), time.Now()
	update := func() {
		s := loader.Stats()
		l.mu.Lock()
		defer l.mu.Unlock()
		st := l.now
		st.State, st.TotalBytes, st.TotalTensors = loading, total, len(plan)
		st.Bytes, st.Tensors, st.Layer = min(s.ReadBytes, total), s.Tensors, s.Layer // without the padding of reads to whole blocks
		st.Seconds = time.Since(begun).Seconds()
		st.BytesPerSecond = float64(st.Bytes) / max(time.Since(opened), 1).Seconds()
		if st.Bytes > 0 {
			st.ETASeconds = float64(total-st.Bytes) / st.BytesPerSecond
		}
		l.set(st)
	}
	update()
	ticker := time.NewTicker(reportEvery)
	quit, gone := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(gone)
		for {
			select {
			case <-ticker.C:
				update()
			case <-quit:
				update()
				return
			}
		}
	}()
	return func() {
		ticker.Stop()
		close(quit)
		<-gone
	}
}

// finish ends a load. The model, if there is one, takes the place of the one that serves; otherwise that goes on serving.
func (l *loads) finish(ctx context.Context, ld *load, begun time.Time, m *model, err error) {
	l.mu.Lock()
	old := l.serving
	st := l.now
	st.State, st.ETASeconds, st.Seconds = done, 0, time.Since(begun).Seconds()
	switch {
	case err == nil:
		l.serving = m
		st.Bytes = st.TotalBytes
	case ctx.Err() != nil:
		st.State, st.Error = cancelled, context.Cause(ctx).Error()
	default:
		st.State, st.Error = failed, err.Error()
	}
	l.running = nil
	l.set(st)
	close(ld.done)
	l.mu.Unlock()

	l.metrics.finished(st, m)
	if err != nil {
		l.log.Warn("load "+string(st.State), "load", st.Load, "err", err)
		return
	}
	l.log.Info("model serves", "load", st.Load, "tensors", st.Tensors, "bytes", st.TotalBytes, "seconds", st.Seconds)
	if old != nil {
		old.release()
	}
}

// set changes the status and tells everybody. The caller holds mu.
func (l *loads) set(st status) {
	if l.serving != nil {
		st.Serving = l.serving.id
	}
	l.now = st
	close(l.changed)
	l.changed = make(chan struct{})
}

// status is the present one; changed is closed when there is another.
func (l *loads) status() (now status, changed <-chan struct{}) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.now, l.changed
}

// use returns the model that serves, nil if there is none. It stays in memory until the caller calls its release.
func (l *loads) use() *model {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.serving != nil {
		l.serving.users.Add(1)
	}
	return l.serving
}

// cancel cancels the load that runs, and returns whether there was one.
func (l *loads) cancel(cause error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.running == nil {
		return false
	}
	l.running.cancel(cause)
	return true
}

// stop cancels the load that runs, and begins no others.
func (l *loads) stop() {
	l.mu.Lock()
	l.stopping = true
	l.mu.Unlock()
	l.cancel(errStopping)
}

// close waits until no load runs, and frees the model once no request uses it any more.
func (l *loads) close() {
	l.stop()
	l.goroutines.Wait()
	l.mu.Lock()
	m := l.serving
	l.serving = nil
	l.mu.Unlock()
	if m != nil {
		m.release()
	}
	l.models.Wait()
}
