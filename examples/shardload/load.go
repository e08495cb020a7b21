package main

import (
	"context"
	"fmt"
	"hash"
	"hash/crc32"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

// loadFlags are the flags of a load, and of verify.
type loadFlags struct {
	connectFlags
	poolFlags
	planFlags
	nsids  nsidList
	index  string
	device deviceFlag
	json   bool
}

func (l *loadFlags) add(fs *pflag.FlagSet) {
	l.connectFlags.add(fs, nvmetcp.DefaultPort)
	l.addIO(fs)
	fs.Var(&l.nsids, "nsid", "namespaces that hold the shards, like 1,2,4-6 (default all)")
	fs.StringVar(&l.index, "index", "", "model.safetensors.index.json: a `FILE` whose shards, in the order of their names, are on these namespaces")
	fs.Var(&l.device, "device", deviceUsage)
	l.planFlags.add(fs)
	l.poolFlags.add(fs)
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
	if l.index != "" {
		return usagef("--index needs --traddr; the made-up model has none")
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
		hash: "CRC-32C", reference: func(plan staging.Plan) reference { return reference{against: "the generator", sums: m.checksums(plan)} },
	})
}

// loading is one load: from where, and what its tensors are compared with.
type loading struct {
	command   string
	host      nvmetcp.Host
	target    nvmetcp.Target
	embedded  bool
	hash      string                       // name in hashes; empty: bytes are not looked at
	reference func(staging.Plan) reference // called after the load with what was loaded; nil without hash
}

// hashes are the checksums that a load can compute.
var hashes = map[string]func() hash.Hash{
	"CRC-32C": func() hash.Hash { return crc32.New(castagnoli) },
	"SHA-256": newSHA256,
}

// load loads, and prints the report.
func (l *loadFlags) load(ctx context.Context, con console, how *loading) error {
	dev, err := l.device.open()
	if err != nil {
		return err
	}
	defer closeDevice(con, dev)
	pool, limit, err := l.poolFlags.open(ctx, dev)
	if err != nil {
		return err
	}
	defer closePool(con, pool)
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
	m, err := s.openModel(setup, spaces, l.index)
	if err != nil {
		return err
	}
	cancel()
	r := &report{Command: how.command}
	st := &stream{dev: dev, pool: pool, hash: hashes[how.hash], begun: begun}
	if st.plan, r.Plan, err = l.plan(m); err != nil {
		return err
	}
	if l.device.kind == deviceHost {
		if err := limit.Reserve(st.plan.Bytes()); err != nil {
			return fmt.Errorf("the tensors' memory: %w", err)
		}
	}
	defer st.release()
	if err := st.load(ctx, con); err != nil {
		return err
	}
	st.report(r)
	if dev == nil {
		r.CPU.IncludesHash = how.hash
	}
	for i, shard := range m.Shards {
		r.Shards = append(r.Shards, shardReport{NSID: spaces[i].NSID(), Bytes: shard.Size, Tensors: len(shard.Tensors), LZ4: newLZ4Report(shard)})
	}
	r.Device = l.device.report(dev)
	r.fill(s, pool)
	if how.reference != nil {
		if r.Checksums, err = st.check(ctx, con, m, how); err != nil {
			return err
		}
	}
	if err := r.print(con.out, l.json); err != nil {
		return fmt.Errorf("writing the report: %w", err)
	}
	if r.Checksums != nil {
		return r.Checksums.err()
	}
	return nil
}
