package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
)

// session is the connection that a command works over.
type session struct {
	sub      *nvmetcp.Subsystem
	embedded bool
	asked    int           // I/O queues, 0 for the default
	limit    time.Duration // --timeout
}

// connect connects to a target.
func (c *connectFlags) connect(ctx context.Context, host nvmetcp.Host, target nvmetcp.Target) (*session, error) {
	sub, err := host.Connect(ctx, target, c.options())
	if err != nil {
		return nil, err
	}
	return &session{sub: sub, asked: c.ioQueues, limit: time.Duration(c.timeout)}, nil
}

// within bounds what is done before the first byte of a shard moves.
func (c *connectFlags) within(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := time.Duration(c.timeout)
	return context.WithTimeoutCause(ctx, limit, fmt.Errorf("%w: it took more than %v, which is --timeout", nvmetcp.ErrTimeout, limit))
}

// lingerAfterSignal is how long a person who pressed Ctrl-C has to wait for a target that does not answer.
const lingerAfterSignal = 2 * time.Second

// close disconnects in an orderly way, but waits no longer for that than the target may take for anything.
func (s *session) close(ctx context.Context, con console) {
	limit := s.limit
	if ctx.Err() != nil {
		limit = min(limit, lingerAfterSignal)
	}
	lost := s.sub.Err() != nil // then that has been said
	closed := make(chan error, 1)
	go func() { closed <- s.sub.Close() }()
	select {
	case err := <-closed:
		if err != nil && !lost {
			fmt.Fprintf(con.err, "shardload: disconnecting: %s\n", explain(err))
		}
	case <-time.After(limit):
		fmt.Fprintf(con.err, "shardload: disconnecting: the target did not confirm in %v\n", limit)
	}
}

// namespaces opens the namespaces of a list, or all that are active.
func (s *session) namespaces(ctx context.Context, list nsidList) ([]*nvmetcp.Namespace, error) {
	info := s.sub.Controller()
	if len(list) == 0 {
		var err error
		if list, err = s.sub.Namespaces(ctx); err != nil {
			return nil, err
		}
		if len(list) == 0 {
			return nil, fmt.Errorf("subsystem %q at %s has no active namespace for this host", info.NQN, info.Addr)
		}
		if len(list) > maxNSIDs {
			return nil, fmt.Errorf("subsystem %q at %s has %d namespaces; say which with --nsid", info.NQN, info.Addr, len(list))
		}
	}
	var all []*nvmetcp.Namespace
	for _, nsid := range list {
		ns, err := s.sub.Namespace(ctx, nsid)
		if errors.Is(err, nvmetcp.ErrNoNamespace) {
			return nil, s.absent(ctx, nsid)
		}
		if err != nil {
			return nil, err
		}
		all = append(all, ns)
	}
	return all, nil
}

// absent says that a namespace is not there, and which ones are.
func (s *session) absent(ctx context.Context, nsid uint32) error {
	info := s.sub.Controller()
	active := "none is"
	if list, err := s.sub.Namespaces(ctx); err == nil && len(list) > 0 {
		const shown = 16
		active = "active: " + (*nsidListOf(list[:min(len(list), shown)])).String()
		if len(list) > shown {
			active += ",…"
		}
	}
	return fmt.Errorf("namespace %d of subsystem %q at %s: %w; %s", nsid, info.NQN, info.Addr, nvmetcp.ErrNoNamespace, active)
}

func nsidListOf(list []uint32) *nsidList { return (*nsidList)(&list) }

// openModel opens the shards on namespaces: those of an index, if a file has one.
func (s *session) openModel(ctx context.Context, spaces []*nvmetcp.Namespace, index string) (*staging.Model, error) {
	info := s.sub.Controller()
	if index != "" {
		x, err := readIndex(index)
		if err != nil {
			return nil, fmt.Errorf("index %s: %w", index, err)
		}
		m, err := openIndexed(ctx, spaces, x)
		if err != nil {
			return nil, fmt.Errorf("%s of subsystem %q at %s, index %s: %w", namespaceList(spaces), info.NQN, info.Addr, index, err)
		}
		return m, nil
	}
	var shards []*staging.Shard
	seen := map[string]uint32{}
	for _, ns := range spaces {
		shard, err := staging.OpenShard(ctx, ns)
		if op := (*nvmetcp.OpError)(nil); errors.As(err, &op) { // which names the namespace
			return nil, err
		}
		if err != nil {
			return nil, fmt.Errorf("namespace %d of subsystem %q at %s: %w%s", ns.NSID(), info.NQN, info.Addr, err, shardHint(err))
		}
		for i := range shard.Tensors {
			name := shard.Tensors[i].Name
			if first, ok := seen[name]; ok {
				return nil, fmt.Errorf("tensor %s is on namespace %d and on namespace %d of subsystem %q at %s: these are not shards of one model; choose with --nsid",
					nameText(name), first, ns.NSID(), info.NQN, info.Addr)
			}
			seen[name] = ns.NSID()
		}
		shards = append(shards, shard)
	}
	m, err := staging.NewModel(shards...)
	if err != nil {
		return nil, fmt.Errorf("%s of subsystem %q at %s: %w; choose others with --nsid, in the order of the parts", namespaceList(spaces), info.NQN, info.Addr, err)
	}
	return m, nil
}

// openIndexed opens the shards of an index, which lie on the namespaces in the order of their names.
func openIndexed(ctx context.Context, spaces []*nvmetcp.Namespace, x *staging.Index) (*staging.Model, error) {
	files := x.Files()
	if len(files) != len(spaces) {
		return nil, fmt.Errorf("%s, and %s: choose with --nsid, in the order of the shards' names", count(len(files), "shard"), count(len(spaces), "namespace"))
	}
	return staging.OpenIndexed(ctx, x, func(file string) (staging.Source, error) { return spaces[slices.Index(files, file)], nil })
}

func readIndex(name string) (*staging.Index, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	text, err := io.ReadAll(io.LimitReader(f, staging.MaxHeader+1)) // one more, for ParseIndex to refuse
	if err != nil {
		return nil, err
	}
	x, err := staging.ParseIndex(text)
	if err == nil && len(x.WeightMap) == 0 {
		return nil, errors.New("its weight_map is empty: it names no tensor and no shard")
	}
	return x, err
}

func namespaceList(spaces []*nvmetcp.Namespace) string {
	var list nsidList
	for _, ns := range spaces {
		list = append(list, ns.NSID())
	}
	if len(list) == 1 {
		return "namespace " + list.String()
	}
	return "namespaces " + list.String()
}

// shardHint says what may help against an error of OpenShard.
func shardHint(err error) string {
	switch {
	case errors.Is(err, staging.ErrNotShard):
		return "; only safetensors and GGUF can be loaded: write one with shardload put, or choose others with --nsid"
	case errors.Is(err, staging.ErrTruncated):
		return "; the shard was cut off: use a larger namespace"
	case errors.Is(err, staging.ErrHeader):
		return "; write the shard again with shardload put"
	}
	return ""
}
