package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/staging"
)

// source says where a model is: on namespaces of a subsystem.
type source struct {
	Address    string   `json:"address"` // host:port
	NQN        string   `json:"nqn"`
	Namespaces []uint32 `json:"namespaces,omitempty"` // in the order of the shards; none: all that are there

	index *staging.Index // nil: the namespaces' shards are the model
}

func (s source) String() string {
	if len(s.Namespaces) == 0 {
		return fmt.Sprintf("all namespaces of %s at %s", s.NQN, s.Address)
	}
	return fmt.Sprintf("namespaces %v of %s at %s", s.Namespaces, s.NQN, s.Address)
}

// maxNamespaces is how many shards a model may have.
const maxNamespaces = 4096

// check is the error of a source that cannot be.
func (s source) check() error {
	if err := fabrics.ValidateNQN(s.NQN); err != nil {
		return fmt.Errorf("NQN of the subsystem: %w", err)
	}
	if len(s.Namespaces) > maxNamespaces {
		return fmt.Errorf("%d namespaces: at most %d can be loaded together", len(s.Namespaces), maxNamespaces)
	}
	for i, nsid := range s.Namespaces {
		if nsid == 0 || nsid == 1<<32-1 {
			return fmt.Errorf("namespace %d: want 1 to %d", nsid, uint32(1<<32-2))
		}
		if slices.Contains(s.Namespaces[:i], nsid) {
			return fmt.Errorf("namespace %d is there twice", nsid)
		}
	}
	if s.index != nil && len(s.index.Files()) != len(s.Namespaces) {
		return fmt.Errorf("the index has %d files, and there are %d namespaces: name one for each file, in alphabetical order of the files", len(s.index.Files()), len(s.Namespaces))
	}
	return nil
}

// connector is how to connect to sources.
type connector struct {
	host                  nvmetcp.Host
	hostTraddr, hostIface string
	options               nvmetcp.Options
	limit                 time.Duration // for all that comes before the first tensor
}

func (c *connector) connect(ctx context.Context, s source) (*nvmetcp.Subsystem, error) {
	return c.host.Connect(ctx, nvmetcp.Target{Addr: s.Address, NQN: s.NQN, HostTraddr: c.hostTraddr, HostIface: c.hostIface}, &c.options)
}

// lingering is how long a load that was cancelled waits for a target that does not answer.
const lingering = 2 * time.Second

// disconnect ends an association in an orderly way, but waits no longer for that than the target may take for anything.
func (c *connector) disconnect(ctx context.Context, sub *nvmetcp.Subsystem, log *slog.Logger) {
	limit := c.limit
	if ctx.Err() != nil {
		limit = min(limit, lingering)
	}
	lost := sub.Err() != nil // then that has been said
	closed := make(chan error, 1)
	go func() { closed <- sub.Close() }()
	select {
	case err := <-closed:
		if err != nil && !lost {
			log.Warn("disconnecting", "err", err)
		}
	case <-time.After(limit):
		log.Warn("disconnecting: the target did not confirm", "in", limit)
	}
}

// openModel opens the model of a source: safetensors, several with an index, GGUF in one or more parts, each also in LZ4 frames.
func openModel(ctx context.Context, sub *nvmetcp.Subsystem, s source) (*staging.Model, error) {
	nsids := s.Namespaces
	if len(nsids) == 0 {
		var err error
		if nsids, err = sub.Namespaces(ctx); err != nil {
			return nil, err
		}
		if len(nsids) == 0 || len(nsids) > maxNamespaces {
			return nil, fmt.Errorf("%s at %s has %d namespaces for this host: say which ones have the model", s.NQN, s.Address, len(nsids))
		}
	}
	var spaces []staging.Source
	for _, nsid := range nsids {
		ns, err := sub.Namespace(ctx, nsid)
		if err != nil {
			return nil, err
		}
		spaces = append(spaces, ns)
	}
	m, err := open(ctx, spaces, s.index)
	if op := (*nvmetcp.OpError)(nil); err != nil && !errors.As(err, &op) { // which says where
		hint := "name the namespaces of one model, in the order of its shards"
		if errors.Is(err, staging.ErrNotShard) || errors.Is(err, staging.ErrHeader) || errors.Is(err, staging.ErrTruncated) {
			hint = "examples/shardload puts a model there, and verifies it"
		}
		return nil, fmt.Errorf("namespaces %v of %s at %s: %w; %s", nsids, s.NQN, s.Address, err, hint)
	}
	return m, err
}

func open(ctx context.Context, spaces []staging.Source, x *staging.Index) (*staging.Model, error) {
	if x == nil {
		return staging.OpenModel(ctx, spaces...)
	}
	return staging.OpenIndexed(ctx, x, func(file string) (staging.Source, error) {
		i, _ := slices.BinarySearch(x.Files(), file)
		return spaces[i], nil
	})
}
