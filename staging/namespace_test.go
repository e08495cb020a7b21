package staging

import (
	"bytes"
	"context"
	"errors"
	"io"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// connect serves the shards as namespaces 1, 2, … and connects to them.
func connect(t *testing.T, mode nvmetest.Mode, block int, shards ...[]byte) (*nvmetest.Target, []Source) {
	var list []nvmetest.Namespace
	for _, b := range shards {
		room := make([]byte, (len(b)/block+3)*block)
		copy(room, b)
		list = append(list, nvmetest.Namespace{BlockSize: block, Backend: nvmetest.MemoryOf(room)})
	}
	target, err := nvmetest.Start(nvmetest.Config{Mode: mode, Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: list}}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	host := nvmetcp.UniqueHost()
	sub, err := host.Connect(t.Context(), nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, &nvmetcp.Options{NumIOQueues: 3, QueueSize: 8, DataDigest: true})
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close() })
	var srcs []Source
	for i := range shards {
		ns, err := sub.Namespace(t.Context(), uint32(i+1))
		require.NoError(t, err)
		srcs = append(srcs, ns)
	}
	return target, srcs
}

// randomShard is a shard of tensors of these sizes.
func randomShard(t testing.TB, prefix string, sizes ...int64) []byte {
	var tensors []TensorInfo
	for i, n := range sizes {
		tensors = append(tensors, TensorInfo{Name: prefix + string(rune('a'+i)), DType: U8, Shape: []int64{n}})
	}
	h, err := NewHeader(tensors, nil)
	require.NoError(t, err)
	var b bytes.Buffer
	r := rand.NewChaCha8([32]byte{byte(len(prefix))})
	require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader { return io.LimitReader(r, x.Bytes()) }))
	return b.Bytes()
}

// Two shards on two namespaces of one subsystem, whose queues both feeds share.
func TestNamespaces(t *testing.T) {
	one, two := randomShard(t, "x", 5000, 0, 3<<20, 1, 70000), randomShard(t, "yy", 1<<20, 12345)
	for _, mode := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		for _, block := range []int{512, 4096} {
			target, srcs := connect(t, mode, block, one, two)
			model, err := OpenModel(t.Context(), srcs...)
			require.NoError(t, err)
			l := &Loader{Pool: newPool(t, 6, 256<<10)}
			plan := model.Plan()
			plan[1], plan[5] = plan[5], plan[1] // and not shard by shard
			n := 0
			for x, err := range l.Stream(t.Context(), plan, Host{}) {
				require.NoError(t, err)
				file := one
				if x.Shard == model.Shards[1] {
					file = two
				}
				require.True(t, bytes.Equal(file[x.Shard.DataOffset+x.Begin:x.Shard.DataOffset+x.End], x.Memory.Bytes()), x.Name)
				x.Release()
				n++
			}
			require.Equal(t, 7, n)
			n = 0
			for _, err := range l.Checksums(t.Context(), plan) {
				require.NoError(t, err)
				n++
			}
			require.Equal(t, 7, n)
			require.Empty(t, target.Violations())
		}
	}
}

// The target goes away, or the caller does, half-way: an error in time, and all buffers are back.
func TestNamespaceLost(t *testing.T) {
	shard := randomShard(t, "x", 1<<20, 8<<20, 1<<20)
	for name, end := range map[string]func(*nvmetest.Target, context.CancelCauseFunc){
		"connections lost": func(target *nvmetest.Target, _ context.CancelCauseFunc) { target.CloseConnections() },
		"cancelled":        func(_ *nvmetest.Target, cancel context.CancelCauseFunc) { cancel(errCause) },
	} {
		for _, pieces := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				ctx, cancel := context.WithCancelCause(t.Context())
				defer cancel(nil)
				target, srcs := connect(t, nvmetest.ModeNVMET, 512, shard)
				s, err := OpenShard(ctx, srcs[0])
				require.NoError(t, err)
				var reads atomic.Int64
				l := &Loader{Pool: newPool(t, 6, 64<<10), OnRead: func(*Read) {
					if reads.Add(1) == 40 {
						go end(target, cancel)
					}
				}}
				// What is in flight when it happens is slow, so that it is in flight.
				target.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
					if c.QID > 0 && reads.Load() > 35 {
						return nvmetest.Action{Delay: 20 * time.Millisecond}
					}
					return nvmetest.Action{}
				}})
				if pieces {
					for p, e := range l.Pieces(ctx, s.Plan()) {
						if err = e; e == nil {
							p.Release()
						}
					}
				} else {
					for x, e := range l.Stream(ctx, s.Plan(), Host{}) {
						if err = e; e == nil {
							x.Release()
						}
					}
				}
				require.Error(t, err)
				require.True(t, errors.Is(err, errCause) || errors.Is(err, nvmetcp.ErrPathLost), "%v", err)
				require.Zero(t, l.Pool.Out())
			})
		}
	}
}
