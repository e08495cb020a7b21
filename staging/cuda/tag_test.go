//go:build cuda && linux && cgo

package cuda

import (
	"testing"

	"github.com/nvstage/nvstage/internal/gputest"
	"github.com/nvstage/nvstage/staging"
	"github.com/stretchr/testify/require"
)

// The package opens its own driver's devices. How they work is tested where they are made.
func TestOpen(t *testing.T) {
	s := gputest.New(t, gputest.CUDA)
	t.Setenv("NVSTAGE_CUDA_LIBRARY", s.Path)
	devices, err := Devices("")
	require.NoError(t, err)
	require.Len(t, devices, 2)
	dev, err := Open(Config{Ordinal: 1})
	require.NoError(t, err)
	require.Equal(t, devices[1], dev.Info().DeviceInfo)
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 1 << 20, Devices: []staging.Device{dev}})
	require.NoError(t, err)
	require.EqualValues(t, 1, s.Count("registrations"))
	require.NoError(t, pool.Close())
	require.NoError(t, dev.Close())
}
