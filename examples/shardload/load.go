package main

import (
	"context"
	"encoding/hex"
	"fmt"
	"hash"
	"hash/crc32"
	"strings"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

// loadFlags are the flags of a load, and of verify.
type loadFlags struct {
	connectFlags
	nsids  nsidList
	memory byteSize
	json   bool
}

func (l *loadFlags) add(fs *pflag.FlagSet) {
	l.memory = staging.DefaultPoolBytes
	l.connectFlags.add(fs, nvmetcp.DefaultPort)
	l.addIO(fs)
	fs.Var(&l.nsids, "nsid", "namespaces that hold the shards, like 1,2,4-6 (default all)")
	fs.Var(&l.memory, "memory", "pinned staging memory")
	fs.BoolVar(&l.json, "json", false, "print the report as a JSON object")
}

func loadCommand(fs *pflag.FlagSet) runner {
	var l loadFlags
	l.add(fs)
	var made modelFlags
	made.add(fs)
	return func(ctx context.Context, con console, _ []string) error {
		if l.traddr == "" {
			return l.loadEmbedded(ctx, con, made)
		}
		if fs.Changed("size") || fs.Changed("shards") || fs.Changed("format") {
			return usagef("--size, --shards and --format are for the made-up model; the target at --traddr has its own")
		}
		if err := l.needTarget(); err != nil {
			return err
		}
		host, err := l.host()
		if err != nil {
			return err
		}
		return l.load(ctx, con, &loading{command: "load", host: host, target: l.target()})
	}
}

// embeddedNQN is the NQN of the subsystem in this process.
const embeddedNQN = "nqn.2025-01.io.nvstage:shardload"

// loadEmbedded loads a made-up model from a target in this process.
func (l *loadFlags) loadEmbedded(ctx context.Context, con console, made modelFlags) error {
	if err := l.noTarget(); err != nil {
		return err
	}
	m, err := newModel(made)
	if err != nil {
		return err
	}
	if len(l.nsids) > 0 {
		return usagef("--nsid needs --traddr; without it all shards of a made-up model are loaded")
	}
	host, err := l.host()
	if err != nil {
		return err
	}
	if host == (nvmetcp.Host{}) {
		host = nvmetcp.UniqueHost() // no need to leave an identity on this machine
	}
	var spaces []nvmetest.Namespace
	for _, s := range m.shards {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: modelBlock, Backend: nvmetest.ReaderAt(s, s.padded())})
	}
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: embeddedNQN, Namespaces: spaces}}})
	if err != nil {
		return fmt.Errorf("the embedded target did not start: %w", err)
	}
	defer target.Close()
	return l.load(ctx, con, &loading{
		command: "load", host: host, target: nvmetcp.Target{Addr: target.Addr(), NQN: embeddedNQN}, embedded: true,
		hash: "CRC-32C", reference: func() reference { return reference{against: "the generator", sums: m.checksums()} },
	})
}

// loading is one load: from where, and what its tensors are compared with.
type loading struct {
	command   string
	host      nvmetcp.Host
	target    nvmetcp.Target
	embedded  bool
	hash      string           // name in hashes; empty: bytes are not looked at
	reference func() reference // called after the load; nil without hash
}

// hashes are the checksums that a load can compute.
var hashes = map[string]func() hash.Hash{
	"CRC-32C": func() hash.Hash { return crc32.New(castagnoli) },
	"SHA-256": newSHA256,
}

// load loads, and prints the report.
func (l *loadFlags) load(ctx context.Context, con console, how *loading) error {
	pool, err := newPool(l.memory)
	if err != nil {
		return err
	}
	defer pool.Close()
	begun := time.Now()
	setup, cancel := l.within(ctx)
	defer cancel()
	s, err := l.connect(setup, how.host, how.target)
	if err != nil {
		return err
	}
	defer s.close(ctx, con)
	s.embedded = how.embedded
	spaces, err := s.namespaces(setup, l.nsids)
	if err != nil {
		return err
	}
	m, err := s.openModel(setup, spaces)
	if err != nil {
		return err
	}
	cancel()
	r := &report{Command: how.command}
	for i, shard := range m.Shards {
		r.Shards = append(r.Shards, shardReport{NSID: spaces[i].NSID(), Bytes: shard.Size, Tensors: len(shard.Tensors)})
	}
	st := &stream{plan: m.Plan(), pool: pool, hash: hashes[how.hash], begun: begun}
	if err := st.load(ctx, con); err != nil {
		return err
	}
	st.report(r)
	r.CPU.IncludesHash = how.hash
	r.fill(s, pool)
	if how.reference != nil {
		r.Checksums = st.compare(how.hash, how.reference())
	}
	if err := r.print(con.out, l.json); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if c := r.Checksums; c != nil && len(c.Wrong) > 0 {
		return fmt.Errorf("%d of %d tensors are not as in %s: %s", len(c.Wrong), c.Compared, c.Against, c.Wrong[0])
	}
	return nil
}

// stream is the part of a load in which bytes move.
type stream struct {
	plan  staging.Plan
	pool  *staging.Pool
	hash  func() hash.Hash
	begun time.Time // of the connection

	latencies *latencies
	sums      map[string]string // in hex
	opened    time.Time
	loaded    time.Time
	cpu       time.Duration
	tensorAt  time.Time // the first tensor
	tensor    string
	layerAt   time.Time // the first complete layer
	layer     string
}

// load streams the tensors of the plan through the pool.
func (s *stream) load(ctx context.Context, con console) error {
	s.latencies, s.sums = newLatencies(), make(map[string]string, len(s.plan))
	loader := &staging.Loader{Pool: s.pool, OnRead: func(read *staging.Read) {
		if read.Err == nil {
			s.latencies.add(read.Latency)
		}
	}}
	done := func() int64 { return loader.Stats().Bytes }
	defer watch(con, "loading", "loaded", s.plan.Bytes(), done)()
	layers := layersOf(s.plan)
	var h hash.Hash
	if s.hash != nil {
		h = s.hash()
	}
	cpu := cpuTime()
	s.opened = time.Now()
	for p, err := range loader.Pieces(ctx, s.plan) {
		if err != nil {
			return &partial{verb: "loaded", done: done(), total: s.plan.Bytes(), err: err}
		}
		if h != nil {
			h.Write(p.Data)
		}
		p.Release()
		if !p.Last {
			continue
		}
		s.mark(p.Name, layers)
		if h != nil {
			s.sums[p.Name] = hex.EncodeToString(h.Sum(nil))
			h.Reset()
		}
	}
	s.loaded = time.Now()
	s.cpu = cpuTime() - cpu
	return nil
}

// mark notes that a tensor is whole.
func (s *stream) mark(name string, layers map[string]int) {
	if s.tensor == "" {
		s.tensor, s.tensorAt = name, time.Now()
	}
	layer := layerOf(name)
	if layer == "" || s.layer != "" {
		return
	}
	if layers[layer]--; layers[layer] == 0 {
		s.layer, s.layerAt = layer, time.Now()
	}
}

// report takes the measurements over.
func (s *stream) report(rep *report) {
	rep.Tensors, rep.Bytes = len(s.plan), s.plan.Bytes()
	rep.rate(s.loaded.Sub(s.opened), s.cpu)
	rep.LatencyUS = s.latencies.report()
	m := &milestones{
		Opened: s.opened.Sub(s.begun).Seconds(), Total: s.loaded.Sub(s.begun).Seconds(),
		Tensor: s.tensor, Layer: s.layer,
	}
	if s.tensor != "" {
		m.FirstTensor = s.tensorAt.Sub(s.begun).Seconds()
	}
	if s.layer != "" {
		m.FirstLayer = s.layerAt.Sub(s.begun).Seconds()
	}
	rep.Milestones = m
}

// layersOf counts the tensors of each layer.
func layersOf(plan staging.Plan) map[string]int {
	n := map[string]int{}
	for _, t := range plan {
		if layer := layerOf(t.Name); layer != "" {
			n[layer]++
		}
	}
	return n
}

// layerOf is the layer that a tensor belongs to, as "model.layers.7" of "model.layers.7.mlp.up_proj.weight",
// or "" for one that belongs to none: the name up to its first component that is a number.
func layerOf(name string) string {
	at := 0
	for part := range strings.SplitSeq(name, ".") {
		if at > 0 && part != "" && strings.Trim(part, "0123456789") == "" {
			return name[:at+len(part)]
		}
		at += len(part) + 1
	}
	return ""
}
