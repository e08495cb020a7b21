package nvmetcp

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

func TestMain(m *testing.M) {
	before := openFiles()
	goleak.VerifyTestMain(m, goleak.Cleanup(func(code int) {
		if after := openFiles(); code == 0 && after > before+2 { // the poller's own, made with the first connection
			fmt.Fprintf(os.Stderr, "%d file descriptors were open before the tests, %d are after them\n", before, after)
			code = 1
		}
		os.Exit(code)
	}))
}

// openFiles counts the process's file descriptors, where the system tells.
func openFiles() int {
	list, _ := os.ReadDir("/proc/self/fd")
	return len(list)
}

var modes = []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict}

// each runs f with every mode and driver.
func each(t *testing.T, f func(t *testing.T, mode nvmetest.Mode, d queue.Driver)) {
	for _, mode := range modes {
		for _, d := range drivers() {
			t.Run(mode.String()+"/"+string(d), func(t *testing.T) { f(t, mode, d) })
		}
	}
}

var testHost = UniqueHost()

// start runs a target, and fails the test if the host broke a rule that the target knows.
func start(t *testing.T, c nvmetest.Config) *nvmetest.Target {
	t.Helper()
	if os.Getenv("NVSTAGE_TEST_LOG") != "" {
		c.Logger = slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
	}
	tgt, err := nvmetest.Start(c)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tgt.Close())
		require.Empty(t, tgt.Violations())
	})
	return tgt
}

func at(tgt *nvmetest.Target) Target { return Target{Addr: tgt.Addr(), NQN: tgt.NQN()} }

// dial connects to a target until the end of the test.
func dial(t *testing.T, tgt *nvmetest.Target, o *Options) *Subsystem {
	t.Helper()
	sub, err := testHost.Connect(t.Context(), at(tgt), o)
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close() })
	return sub
}

// content is a namespace's first content: every 8 bytes differ.
func content(n int) []byte {
	b := make([]byte, n)
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for i := 0; i+8 <= n; i += 8 {
		v := r.Uint64()
		for j := range 8 {
			b[i+j] = byte(v >> (8 * j))
		}
	}
	return b
}

// disk is a config with one namespace of that content.
func disk(mode nvmetest.Mode, block int, b []byte) nvmetest.Config {
	return nvmetest.Config{Mode: mode, Subsystems: []nvmetest.Subsystem{{
		NQN:        nvmetest.DefaultNQN,
		Namespaces: []nvmetest.Namespace{{BlockSize: block, Backend: nvmetest.MemoryOf(b)}},
	}}}
}

// open connects and returns namespace 1.
func open(t *testing.T, tgt *nvmetest.Target, o *Options) *Namespace {
	t.Helper()
	ns, err := dial(t, tgt, o).Namespace(t.Context(), 1)
	require.NoError(t, err)
	return ns
}

// guarded is a buffer between bytes that must not change.
type guarded struct {
	all []byte
	b   []byte
}

const guard = 64

func newGuarded(n int) *guarded {
	g := &guarded{all: bytes.Repeat([]byte{0xA5}, n+2*guard)}
	g.b = g.all[guard : guard+n : guard+n]
	return g
}

func (g *guarded) check(t *testing.T) {
	t.Helper()
	want := bytes.Repeat([]byte{0xA5}, guard)
	require.True(t, bytes.Equal(want, g.all[:guard]) && bytes.Equal(want, g.all[guard+len(g.b):]), "bytes outside the buffer were written")
}

// rules makes a target answer commands with statuses, and counts them.
func onReads(status func(c nvmetest.Command, nth int) nvme.Status) nvmetest.Faults {
	var n atomicCounter
	return nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.QID == 0 || c.SQE.Opcode != nvme.OpRead {
			return nvmetest.Action{}
		}
		return nvmetest.Action{Status: status(c, n.next())}
	}}
}

// within returns a context that ends the test's patience.
// hold has a target keep the answers to reads back, from the nth read on (the first is 1), until release
// is called. held is told of each.
func hold(t *testing.T, tgt *nvmetest.Target, nth int, held func()) (release func()) {
	t.Helper()
	var n atomicCounter
	open := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(open) })
	// Whoever waits for what is held fails, but not for ever.
	late := time.AfterFunc(20*time.Second, func() {
		t.Error("nothing went on while reads were held back")
		letGo()
	})
	tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.QID > 0 && c.SQE.Opcode == nvme.OpRead && n.next() >= nth {
			held()
			<-open
		}
		return nvmetest.Action{}
	}})
	release = func() {
		late.Stop()
		letGo()
	}
	t.Cleanup(release)
	return release
}

// flush runs a command on each I/O queue, whose answer comes after what hold has kept back there.
func flush(t *testing.T, ns *Namespace) {
	t.Helper()
	for _, q := range ns.sub.ctrl.io {
		require.NoError(t, q.Do(within(t, 10*time.Second), &queue.Command{SQE: nvme.Flush(ns.NSID())}))
	}
}

func within(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}
