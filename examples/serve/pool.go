package main

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/nvstage/nvstage/staging"
)

// pool is the staging memory. To pin it may take seconds, so it is made by the first load, while the server answers already.
type pool struct {
	cfg  staging.PoolConfig
	log  *slog.Logger
	stop context.CancelFunc // ends the server, which is of no use without its pool

	mu   sync.Mutex
	made *staging.Pool // nil: not yet
	err  error         // why it cannot be made
}

// get makes the pool, if that is not done. One load runs at a time, and so does get; when ctx ends, the next load tries again.
func (p *pool) get(ctx context.Context) (*staging.Pool, error) {
	if made := p.now(); made != nil {
		return made, nil
	}
	made, err := staging.NewPoolContext(ctx, p.cfg)
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case err == nil:
		p.made = made
		p.log.Info("staging pool", "info", made.Info().String())
	case ctx.Err() == nil:
		p.err = fmt.Errorf("--memory %s: %w", (*byteSize)(&p.cfg.Bytes), err)
		p.stop()
		return nil, p.err
	}
	return made, err
}

// now is the pool, nil before it is made.
func (p *pool) now() *staging.Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.made
}

// failure is why the pool could not be made, nil if it was or nobody needed it.
func (p *pool) failure() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.err
}

func (p *pool) close() error {
	if made := p.now(); made != nil {
		return made.Close()
	}
	return nil
}
