package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

// poolFlags say what staging memory to take.
type poolFlags struct {
	memory    byteSize // 0: the default
	limit     byteSize // 0: none
	hugePages policy
	node      node
	debug     bool
}

func (f *poolFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.memory, "memory", "pinned staging memory (default "+bytesText(staging.DefaultPoolBytes)+", or less where --memory-limit wants it)")
	fs.Var(&f.limit, "memory-limit", "most memory of staging and, with --device host, tensors together (default no limit)")
	fs.Var(&f.hugePages, "hugepages", "reserved huge pages for staging: auto, never or require")
	fs.Var(&f.node, "numa-node", "NUMA `NODE` that staging must be on (default that of the GPU, if it can be; else any)")
	fs.BoolVar(&f.debug, "pool-debug", false, "guard staging: an unwritable page behind each buffer, a pattern in each free one; slow")
}

// open makes the staging memory, registered with the device if there is one. The limit is what else takes memory asks.
func (f *poolFlags) open(ctx context.Context, dev staging.Device) (*staging.Pool, *staging.Limit, error) {
	size, limit := int64(f.memory), int64(f.limit)
	if size == 0 {
		size = staging.DefaultPoolBytes
		if limit > 0 {
			size = min(size, limit/staging.DefaultBufferSize*staging.DefaultBufferSize)
		}
		if size == 0 {
			return nil, nil, usagef("--memory-limit %s: want %s or more", &f.limit, bytesText(staging.DefaultBufferSize))
		}
	}
	if size < staging.DefaultBufferSize {
		return nil, nil, usagef("--memory %s: want %s or more", &f.memory, bytesText(staging.DefaultBufferSize))
	}
	if limit > 0 && size > limit {
		return nil, nil, usagef("--memory %s is more than --memory-limit %s", &f.memory, &f.limit)
	}
	cfg := staging.PoolConfig{Bytes: size, HugePages: staging.Policy(f.hugePages), Debug: f.debug, Limit: &staging.Limit{Bytes: limit}}
	if g, ok := dev.(*gpu); ok {
		at := g.Info().Node
		cfg.Node = &at
	}
	if dev != nil {
		cfg.Devices = []staging.Device{dev}
	}
	if f.node.set {
		cfg.Node, cfg.Bind = &f.node.node, staging.Require
	}
	pool, err := staging.NewPoolContext(ctx, cfg)
	return pool, cfg.Limit, err
}

// closePool closes a pool. In debug mode it may have something to say.
func closePool(con console, pool *staging.Pool) {
	if err := pool.Close(); err != nil {
		fmt.Fprintf(con.err, "shardload: %s\n", explain(err))
	}
}

type poolReport struct {
	Bytes         int64    `json:"bytes"`
	BufferBytes   int      `json:"buffer_bytes"`
	HugePages     bool     `json:"hugepages"`
	HugePagesNote string   `json:"hugepages_note,omitempty"`
	LockedBytes   int64    `json:"locked_bytes"`
	LockNote      string   `json:"lock_note,omitempty"`
	Node          int      `json:"numa_node"`
	NodeNote      string   `json:"numa_note,omitempty"`
	Registered    []string `json:"registered"`
	RegisterNote  string   `json:"register_note,omitempty"`
	Debug         bool     `json:"debug"`
	GuardNote     string   `json:"guard_note,omitempty"`
}

func newPoolReport(p staging.PoolInfo) poolReport {
	return poolReport{
		Bytes: p.Bytes, BufferBytes: p.BufferSize, HugePages: p.HugePages, HugePagesNote: p.HugePagesNote,
		LockedBytes: p.LockedBytes, LockNote: p.LockNote, Node: p.Node, NodeNote: p.NodeNote,
		Registered: append([]string{}, p.Registered...), RegisterNote: p.RegisterNote, Debug: p.Debug, GuardNote: p.GuardNote,
	}
}

func (p poolReport) String() string {
	s := fmt.Sprintf("%s in buffers of %s", bytesText(p.Bytes), bytesText(int64(p.BufferBytes)))
	if p.HugePages {
		s += ", in huge pages"
	} else {
		s += ", no huge pages (" + p.HugePagesNote + ")"
	}
	if p.LockedBytes == p.Bytes {
		s += ", locked"
	} else {
		s += fmt.Sprintf(", %s locked (%s)", bytesText(p.LockedBytes), p.LockNote)
	}
	if p.Node >= 0 {
		s += fmt.Sprintf(", on NUMA node %d", p.Node)
	}
	if p.NodeNote != "" {
		s += " (" + p.NodeNote + ")"
	}
	if len(p.Registered) > 0 {
		s += ", registered with " + strings.Join(p.Registered, " and ")
	}
	if p.RegisterNote != "" {
		s += ", not registered with " + p.RegisterNote
	}
	if p.Debug {
		s += ", guarded"
		if p.GuardNote != "" {
			s += " without guard pages (" + p.GuardNote + ")"
		}
	}
	return s
}

// policy is the flag --hugepages.
type policy staging.Policy

var policies = map[string]staging.Policy{"auto": staging.Auto, "never": staging.Never, "require": staging.Require}

func (p *policy) Type() string { return "POLICY" }

func (p *policy) String() string {
	for name, known := range policies {
		if staging.Policy(*p) == known {
			return name
		}
	}
	return ""
}

func (p *policy) Set(s string) error {
	known, ok := policies[s]
	if !ok {
		return errors.New("want auto, never or require")
	}
	*p = policy(known)
	return nil
}

// node is the flag --numa-node.
type node struct {
	node int
	set  bool
}

func (n *node) Type() string { return "NODE" }

func (n *node) String() string {
	if !n.set {
		return ""
	}
	return strconv.Itoa(n.node)
}

func (n *node) Set(s string) error {
	v, err := strconv.ParseUint(s, 10, 16)
	if err != nil {
		return errors.New("want the number of a node")
	}
	*n = node{int(v), true}
	return nil
}
