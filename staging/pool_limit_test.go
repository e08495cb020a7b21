package staging

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLimit(t *testing.T) {
	l := &Limit{Bytes: 100}
	require.NoError(t, l.Reserve(60))
	var err *LimitError
	require.ErrorAs(t, l.Reserve(41), &err)
	require.Equal(t, LimitError{Asked: 41, Free: 40, Limit: 100}, *err)
	require.NoError(t, l.Reserve(40))
	require.EqualValues(t, 100, l.Used())
	l.Release(100)
	require.Zero(t, l.Used())
	require.Error(t, l.Reserve(-1))
	require.Panics(t, func() { l.Release(1) })
	require.Panics(t, func() { l.Release(-1) })

	none := &Limit{}
	require.NoError(t, none.Reserve(1<<62))
	require.EqualValues(t, 1<<62, none.Used())
}

// Pools share the limit, and give back what they had of it; one that fails takes nothing.
func TestPoolLimit(t *testing.T) {
	l := &Limit{Bytes: 16 << 20}
	cfg := PoolConfig{Bytes: 8 << 20, Limit: l}
	a, err := NewPool(cfg)
	require.NoError(t, err)
	require.Equal(t, a.Info().MemoryBytes, l.Used())
	cfg.Bytes = 9 << 20
	_, err = NewPool(cfg)
	var le *LimitError
	require.ErrorAs(t, err, &le)
	require.ErrorContains(t, err, "9 MiB asked for, 8 MiB free of the memory limit of 16 MiB")
	require.EqualValues(t, 8<<20, l.Used())
	cfg.Bytes = 8 << 20
	b, err := NewPool(cfg)
	require.NoError(t, err)
	require.EqualValues(t, 16<<20, l.Used())

	cfg.Devices, cfg.Register = []Device{&pinner{failAt: 1}}, Require
	l.Bytes += cfg.Bytes
	_, err = NewPool(cfg)
	require.ErrorIs(t, err, errPin)
	require.EqualValues(t, 16<<20, l.Used(), "taken, and given back")

	require.NoError(t, a.Close())
	require.NoError(t, a.Close())
	require.EqualValues(t, 8<<20, l.Used())
	require.NoError(t, b.Close())
	require.Zero(t, l.Used())
}

func TestSizeText(t *testing.T) {
	for n, want := range map[int64]string{0: "0 bytes", 1000: "1000 bytes", 4096: "4 KiB", 3 << 20: "3 MiB", 1536 << 20: "1536 MiB", 1 << 40: "1024 GiB"} {
		require.Equal(t, want, sizeText(n))
	}
}
