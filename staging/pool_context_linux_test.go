package staging

import (
	"context"
	"errors"
	"runtime"
	"runtime/debug"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

var errEnough = errors.New("enough")

// looks is a context that ends after it was looked at so many times.
type looks struct {
	context.Context
	left int
}

func (l *looks) Err() error {
	if l.left == 0 {
		return errEnough
	}
	l.left--
	return nil
}

// Wherever the making of a pool is interrupted, it leaves nothing behind, and it can be between any two pieces.
func TestPoolInterrupted(t *testing.T) {
	for name, c := range map[string]struct {
		cfg  PoolConfig
		want int // looks at least
	}{
		"touched and locked": {PoolConfig{Bytes: 3 * atOnce, HugePages: Never}, 3 + 3},
		"huge if there are":  {PoolConfig{Bytes: 2 * atOnce}, 2},
		"debug":              {PoolConfig{Bytes: 4 << 20, Debug: true, Lock: Never}, 4 + 4},
		"devices":            {PoolConfig{Bytes: 1 << 20, Lock: Never, HugePages: Never, Devices: []Device{&pinner{name: "a"}, &pinner{name: "b"}}}, 1 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			l := &Limit{}
			c.cfg.Limit = l
			runtime.GC()
			debug.FreeOSMemory()
			locked, resident := status(t, "VmLck"), status(t, "VmRSS")
			interrupted := 0
			for ; ; interrupted++ {
				p, err := NewPoolContext(&looks{context.Background(), interrupted}, c.cfg)
				if err == nil {
					require.NoError(t, p.Close())
					break
				}
				require.ErrorIs(t, err, errEnough)
				require.Nil(t, p)
				require.Zero(t, l.Used())
				require.Equal(t, locked, status(t, "VmLck"))
				require.Less(t, status(t, "VmRSS"), resident+atOnce/2)
				for _, dev := range c.cfg.Devices {
					require.Empty(t, dev.(*pinner).areas)
				}
			}
			require.GreaterOrEqual(t, interrupted, c.want)
		})
	}
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errEnough)
	for _, cfg := range []PoolConfig{{}, {Memory: make([]byte, 1<<20)}} {
		_, err := NewPoolContext(ctx, cfg)
		require.ErrorIs(t, err, errEnough)
	}
}

// Where address space is limited, the error says what to do.
func TestPoolAddressSpace(t *testing.T) {
	var before unix.Rlimit
	require.NoError(t, unix.Getrlimit(unix.RLIMIT_AS, &before))
	few := before
	few.Cur = min(before.Max, uint64(status(t, "VmSize"))+256<<20) // some is left for the Go runtime
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &few))
	defer func() { require.NoError(t, unix.Setrlimit(unix.RLIMIT_AS, &before)) }()
	l := &Limit{}
	_, err := NewPool(PoolConfig{Bytes: 512 << 20, HugePages: Never, Limit: l})
	require.ErrorIs(t, err, unix.ENOMEM)
	require.ErrorContains(t, err, "free memory, or raise a limit on address space (ulimit -v); or make the pool smaller (PoolConfig.Bytes)")
	require.Zero(t, l.Used())
}
