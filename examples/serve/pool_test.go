package main

import (
	"context"
	"log/slog"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging"
)

// slowPin is a device that takes its time to register memory.
type slowPin struct {
	staging.Host
	once        sync.Once
	begun, goOn chan struct{} // begun is closed by the first registration
}

func (d *slowPin) Register([]byte) (undo func() error, err error) {
	d.once.Do(func() { close(d.begun) })
	<-d.goOn
	return func() error { return nil }, nil
}

// While the staging memory is pinned the server lives, and is not ready.
func TestPoolInBackground(t *testing.T) {
	dev := &slowPin{begun: make(chan struct{}), goOn: make(chan struct{})}
	file := shard(t, 1<<20, 1)
	r := start(t, startTarget(t, file), dev, 0, nil)
	id := r.load(namespaces(1))
	<-dev.begun
	require.Equal(t, http.StatusOK, r.call("GET", "/healthz", "", nil))
	require.Equal(t, http.StatusServiceUnavailable, r.call("GET", "/readyz", "", nil))
	require.Zero(t, r.metrics()["nvstage_pool_buffers"])
	close(dev.goOn)
	require.Equal(t, done, r.ended(id).State)
	require.Equal(t, http.StatusOK, r.call("GET", "/readyz", "", nil))
	require.EqualValues(t, 16, r.metrics()["nvstage_pool_buffers"])
	r.serves(id, of(t, file))
}

// A pool whose load is cancelled is made by the next one; one that cannot be made ends the server.
func TestPoolTriesAgain(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errCancelled)
	stopped := false
	p := &pool{cfg: staging.PoolConfig{Bytes: 1 << 20}, log: slog.New(slog.DiscardHandler), stop: func() { stopped = true }}
	_, err := p.get(ctx)
	require.ErrorIs(t, err, errCancelled)
	require.NoError(t, p.failure())
	require.False(t, stopped)
	made, err := p.get(t.Context())
	require.NoError(t, err)
	require.Same(t, made, p.now())
	require.NoError(t, p.close())

	p = &pool{cfg: staging.PoolConfig{Bytes: 99 << 40}, log: slog.New(slog.DiscardHandler), stop: func() { stopped = true }}
	_, err = p.get(t.Context())
	require.ErrorContains(t, err, "--memory 99T: ")
	require.Equal(t, err, p.failure())
	require.True(t, stopped)
	require.NoError(t, p.close())
}
