package e2e

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/nvmetvm"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
)

func TestMain(m *testing.M) { os.Exit(nvmetvm.Main(m)) }

// namespace is one that a case may use; its content is anything.
type namespace struct {
	nsid      uint32
	blockSize int
	size      int64
}

// target is a target as the cases see it. All targets have the same subsystems and namespaces.
type target struct {
	name   string
	addr   [2]string // the ports
	multi  string    // NQN of a subsystem that anybody may use
	closed string    // NQN of one that only nvmetvm.HostNQNAllowed may use
	spaces []namespace
	// sha256 is what the target itself finds on a namespace.
	sha256 func(t *testing.T, nsid uint32, n int64) string
	// cut ends all connections to multi at once and takes the subsystem away; mend brings it back.
	cut, mend func(t *testing.T)
	real      bool
}

const nsSize = 64 << 20

// forTargets runs a case against every target.
func forTargets(t *testing.T, f func(t *testing.T, tg *target)) {
	t.Run("nvmet", func(t *testing.T) { f(t, realTarget(t)) })
	for _, m := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		t.Run("nvmetest-"+m.String(), func(t *testing.T) { f(t, inProcess(t, m)) })
	}
}

// forDrivers runs a case against every target with every driver.
func forDrivers(t *testing.T, f func(t *testing.T, tg *target, d queue.Driver)) {
	forTargets(t, func(t *testing.T, tg *target) {
		for _, d := range drivers(t) {
			t.Run(string(d), func(t *testing.T) { f(t, tg, d) })
		}
	})
}

func realTarget(t *testing.T) *target {
	vm := nvmetvm.Start(t)
	dev := map[uint32]string{1: nvmetvm.DevMulti1, 2: nvmetvm.DevMulti2}
	run := func(t *testing.T, script string) {
		_, err := vm.Run(t.Context(), script)
		require.NoError(t, err)
	}
	return &target{
		name: "Linux nvmet", real: true,
		addr:  [2]string{vm.Addr(1), vm.Addr(2)},
		multi: nvmetvm.NQNMulti, closed: nvmetvm.NQNClosed,
		spaces: []namespace{{1, 512, nsSize}, {2, 4096, nsSize}},
		sha256: func(t *testing.T, nsid uint32, n int64) string {
			s, err := vm.SHA256(t.Context(), dev[nsid], 0, n)
			require.NoError(t, err)
			return s
		},
		cut:  func(t *testing.T) { run(t, "unlink 1 "+nvmetvm.NQNMulti) },
		mend: func(t *testing.T) { require.NoError(t, vm.Reset(context.Background())) }, // t's own has ended
	}
}

func inProcess(t *testing.T, m nvmetest.Mode) *target {
	const multi, closed = "nqn.2025-01.io.example:multi", "nqn.2025-01.io.example:closed"
	mem := map[uint32][]byte{1: make([]byte, nsSize), 2: make([]byte, nsSize)}
	tg, err := nvmetest.Start(nvmetest.Config{
		Mode: m,
		Subsystems: []nvmetest.Subsystem{
			{NQN: multi, Namespaces: []nvmetest.Namespace{
				{NSID: 1, BlockSize: 512, Backend: nvmetest.MemoryOf(mem[1])},
				{NSID: 2, BlockSize: 4096, Backend: nvmetest.MemoryOf(mem[2])},
			}},
			{NQN: closed, AllowedHosts: []string{nvmetvm.HostNQNAllowed}, Namespaces: []nvmetest.Namespace{
				{NSID: 1, Backend: nvmetest.Memory(1 << 20)},
			}},
		},
		Referrals: []nvmetest.Referral{{Addr: "127.0.9.9:8009"}},
	})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tg.Close())
		require.Empty(t, tg.Violations(), "rules that the host broke")
	})
	second, err := tg.Listen("127.0.0.1:0")
	require.NoError(t, err)
	return &target{
		name:  "nvmetest " + m.String(),
		addr:  [2]string{tg.Addr(), second},
		multi: multi, closed: closed,
		spaces: []namespace{{1, 512, nsSize}, {2, 4096, nsSize}},
		sha256: func(_ *testing.T, nsid uint32, n int64) string {
			s := sha256.Sum256(mem[nsid][:n])
			return hex.EncodeToString(s[:])
		},
		cut:  func(*testing.T) { tg.CloseConnections() },
		mend: func(*testing.T) {},
	}
}

// host is the one that closed lets in.
func host(t *testing.T) nvmetcp.Host {
	id, err := nvmetcp.ParseHostID("11111111-1111-1111-1111-111111111111")
	require.NoError(t, err)
	return nvmetcp.Host{NQN: nvmetvm.HostNQNAllowed, ID: id}
}

// connect makes an association with multi that ends with the test.
func (tg *target) connect(t *testing.T, opts nvmetcp.Options) *nvmetcp.Subsystem {
	t.Helper()
	sub, err := host(t).Connect(deadline(t), nvmetcp.Target{Addr: tg.addr[0], NQN: tg.multi}, &opts)
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close() })
	return sub
}

// deadline is a context that bounds a case: a hang is a failure.
func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func split(t *testing.T, addr string) (host, port string) {
	h, p, err := net.SplitHostPort(addr)
	require.NoError(t, err)
	return h, p
}
