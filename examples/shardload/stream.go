package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash"
	"slices"
	"time"

	"github.com/nvstage/nvstage/staging"
)

// stream is the part of a load in which bytes move.
type stream struct {
	plan  staging.Plan
	dev   staging.Device // nil: from staging, tensors are dropped
	pool  *staging.Pool
	hash  func() hash.Hash // nil: bytes are not looked at
	begun time.Time        // of the connection

	latencies *latencies
	sums      map[string]string // in hex
	tensors   []*staging.Tensor // on the device
	stats     staging.Stats
	opened    time.Time
	loaded    time.Time
	cpu       time.Duration
	first     string // tensor
}

// load streams the tensors of the plan through the pool, and to the device if there is one.
func (s *stream) load(ctx context.Context, con console) error {
	s.latencies, s.sums = newLatencies(), make(map[string]string, len(s.plan))
	loader := &staging.Loader{
		Pool: s.pool,
		OnRead: func(read *staging.Read) {
			if read.Err == nil {
				s.latencies.add(read.Latency)
			}
		},
		OnProgress: func(p staging.Progress) {
			if p.Tensors == 1 {
				s.first = p.Tensor
			}
		},
	}
	done := func() int64 { return loader.Stats().Bytes }
	defer watch(con, "loading", "loaded", s.plan.Bytes(), done)()
	cpu := cpuTime()
	s.opened = time.Now()
	pass := s.pieces
	if s.dev != nil {
		pass = s.keep
		defer tellOfCopies(ctx, con)()
	}
	if err := pass(ctx, loader); err != nil {
		return &partial{verb: "loaded", done: done(), total: s.plan.Bytes(), err: err}
	}
	s.loaded = time.Now()
	s.cpu = cpuTime() - cpu
	s.stats = loader.Stats()
	return nil
}

// copiesMayTake is how long copies in flight are awaited after a signal without a word about it.
const copiesMayTake = time.Second

// tellOfCopies says that copies in flight are awaited, if a signal has come and stop is not called soon after it.
func tellOfCopies(ctx context.Context, con console) (stop func()) {
	ended, gone := make(chan struct{}), make(chan struct{})
	off := context.AfterFunc(ctx, func() {
		defer close(gone)
		select {
		case <-ended:
		case <-time.After(copiesMayTake):
			fmt.Fprintln(con.err, "shardload: waiting for the copies to the device that are in flight; a second signal ends it at once")
		}
	})
	return func() {
		close(ended)
		if !off() {
			<-gone
		}
	}
}

// pieces drops what has come, after a look at it if it is to be compared.
func (s *stream) pieces(ctx context.Context, loader *staging.Loader) error {
	var h hash.Hash
	if s.hash != nil {
		h = s.hash()
	}
	for p, err := range loader.Pieces(ctx, s.plan) {
		if err != nil {
			return err
		}
		if h != nil {
			h.Write(p.Data)
		}
		p.Release()
		if p.Last && h != nil {
			s.sums[p.Name] = hex.EncodeToString(h.Sum(nil))
			h.Reset()
		}
	}
	return nil
}

// keep leaves all tensors on the device, as a server would.
func (s *stream) keep(ctx context.Context, loader *staging.Loader) error {
	for t, err := range loader.Stream(ctx, s.plan, s.dev) {
		if err != nil {
			return err
		}
		s.tensors = append(s.tensors, t)
	}
	return nil
}

// release frees what is on the device.
func (s *stream) release() {
	for _, t := range s.tensors {
		t.Release()
	}
	s.tensors = nil
}

// check compares what was loaded with what it should be. What is on a device is copied back for it.
func (s *stream) check(ctx context.Context, con console, m *staging.Model, how *loading) (*checkedReport, error) {
	if s.dev != nil {
		var err error
		if s.sums, err = copyBack(ctx, con, s.dev, s.pool, s.tensors, s.hash); err != nil {
			return nil, err
		}
	}
	ref := how.reference(s.plan)
	planned := make(map[string]bool, len(s.plan))
	for _, t := range s.plan {
		planned[t.Name] = true
	}
	for _, t := range m.Plan() {
		if !planned[t.Name] { // it was left out on purpose
			delete(ref.sums, t.Name)
		}
	}
	c := s.compare(how.hash, ref)
	c.CopiedBack = s.dev != nil
	return c, nil
}

// report takes the measurements over.
func (s *stream) report(rep *report) {
	rep.Tensors, rep.Bytes = len(s.plan), s.plan.Bytes()
	rep.rate(s.loaded.Sub(s.opened), s.cpu)
	rep.LatencyUS = s.latencies.report()
	rep.Plan.read(s.stats.ReadBytes, rep.Bytes)
	opened := s.opened.Sub(s.begun)
	after := func(d time.Duration) float64 {
		if d == 0 { // it never came
			return 0
		}
		return (opened + d).Seconds()
	}
	rep.Milestones = &milestones{
		Opened: opened.Seconds(), Total: s.loaded.Sub(s.begun).Seconds(),
		FirstTensor: after(s.stats.FirstTensor), Tensor: s.first,
		FirstLayer: after(s.stats.FirstLayer), FirstLayerBytes: s.stats.FirstLayerBytes, FirstLayerInFileOrder: after(s.stats.FirstLayerInFileOrder),
		FirstToken: after(s.stats.FirstToken),
	}
	layers := s.plan.ByLayer().Layers()
	if i := slices.IndexFunc(layers, func(l staging.Layer) bool { return l.Number >= 0 }); i >= 0 {
		rep.Milestones.Layer = layers[i].Name
	}
}
