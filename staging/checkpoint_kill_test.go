package staging

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// killEnv makes the tests' binary save checkpoints until it is killed: the target's address, the namespace, and the first version.
const killEnv = "NVSTAGE_CHECKPOINT_KILL"

// killTensors are the tensors of a version.
func killTensors(version int) ([]SaveTensor, map[string]string) {
	r := rand.New(rand.NewPCG(uint64(version), 11))
	var list []SaveTensor
	for i, n := range []int{200_000, 0, 7, 330_000, 4096, 61_234} {
		list = append(list, randomTensor(r, fmt.Sprint("layer.", i), n))
	}
	return list, map[string]string{"version": strconv.Itoa(version)}
}

// killSaver saves to one of the namespaces of a target of TestCheckpointKill.
func killSaver(t *testing.T, addr string, nsid uint32) (save func(version int)) {
	host := nvmetcp.UniqueHost()
	sub, err := host.Connect(t.Context(), nvmetcp.Target{Addr: addr, NQN: nvmetest.DefaultNQN}, &nvmetcp.Options{NumIOQueues: 2, QueueSize: 8})
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close() })
	ns, err := sub.Namespace(t.Context(), nsid)
	require.NoError(t, err)
	s := &Saver{Pool: newPool(t, 8, 32<<10), Verify: nsid == 2}
	return func(version int) {
		tensors, meta := killTensors(version)
		_, err := s.Save(t.Context(), ns, tensors, meta)
		require.NoError(t, err)
	}
}

// TestCheckpointChild is the process that TestCheckpointKill kills. Otherwise it does nothing.
func TestCheckpointChild(t *testing.T) {
	var (
		addr    string
		nsid    uint32
		version int
	)
	if _, err := fmt.Sscan(os.Getenv(killEnv), &addr, &nsid, &version); err != nil {
		return
	}
	for save := killSaver(t, addr, nsid); ; version++ {
		save(version)
	}
}

// A process that saves one checkpoint after another is killed 100 times, at any of its commands. What opens then is right
// to the last byte. The first namespace is memory, the second a file.
func TestCheckpointKill(t *testing.T) {
	const size = 2 << 20
	kills := 100
	if testing.Short() {
		kills = 10
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "namespace"))
	require.NoError(t, err)
	defer f.Close()
	require.NoError(t, f.Truncate(size))
	file, err := nvmetest.File(f)
	require.NoError(t, err)
	backends := []nvmetest.Backend{nvmetest.Memory(size), file}
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{
		{NSID: 1, BlockSize: 512, Backend: backends[0]}, {NSID: 2, BlockSize: 4096, Backend: backends[1]},
	}}}})
	require.NoError(t, err)
	defer target.Close()

	// How many commands a save has, to know where to aim.
	var one [2]int
	for i := range one {
		t.Run("whole", func(t *testing.T) {
			save := killSaver(t, target.Addr(), uint32(i+1))
			var n atomic.Int64
			target.SetFaults(nvmetest.Faults{OnCommand: func(nvmetest.Command) nvmetest.Action {
				n.Add(1)
				return nvmetest.Action{}
			}})
			save(i)
			one[i] = int(n.Load())
		})
	}

	r := rand.New(rand.NewPCG(1, 11))
	good, none, last := 0, 0, [2]int{0, 1}
	for i := range kills {
		k, first := i%2, 1000*(i+1)
		// Anywhere in the first two saves, or close to the end of the first, where there is a shard.
		at := 1 + r.IntN(2*one[k])
		if r.IntN(3) == 0 {
			at = one[k] - 2 + r.IntN(5)
		}
		kill(t, target, fmt.Sprintf("%s %d %d", target.Addr(), k+1, first), int64(at), r.IntN(3) > 0)

		src := &ReaderSource{ReaderAt: backends[k], Bytes: size}
		s, err := OpenShard(t.Context(), src)
		if err != nil {
			require.ErrorIs(t, err, ErrNotShard)
			none++
			continue
		}
		good++
		version, err := strconv.Atoi(s.Metadata["version"])
		require.NoError(t, err)
		require.True(t, version >= first || version == last[k], "version %d was overwritten before", version)
		last[k] = version
		tensors, meta := killTensors(version)
		loadsAs(t, &ReaderSource{ReaderAt: backends[k], Bytes: size, Block: []int{512, 4096}[k]}, tensors, meta)
	}
	t.Logf("%d kills: %d left a whole shard, %d none; a save is %v commands", kills, good, none, one)
	require.Positive(t, none)
	require.True(t, good > 0 || testing.Short())
}

// kill starts a process that saves, and kills it at its at-th command, which the target holds back until then if hold is set.
func kill(t *testing.T, target *nvmetest.Target, what string, at int64, hold bool) {
	var n atomic.Int64
	reached, dead := make(chan struct{}), make(chan struct{})
	release := sync.OnceFunc(func() { close(dead) })
	defer release()
	target.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.QID == 0 {
			return nvmetest.Action{}
		}
		i := n.Add(1)
		if i == at {
			close(reached)
		}
		if i >= at && hold {
			<-dead
		}
		return nvmetest.Action{}
	}})
	self, err := os.Executable()
	require.NoError(t, err)
	child := exec.Command(self, "-test.run=^TestCheckpointChild$")
	child.Env = append(os.Environ(), killEnv+"="+what)
	var out bytes.Buffer
	child.Stdout, child.Stderr = &out, &out
	require.NoError(t, child.Start())
	exited := make(chan error, 1)
	go func() { exited <- child.Wait() }()
	select {
	case <-reached:
	case err := <-exited:
		t.Fatalf("the process ended by itself: %v\n%s", err, out.String())
	}
	require.NoError(t, child.Process.Kill())
	require.Error(t, <-exited)
	release()
	require.Eventually(t, func() bool { return target.Stats().Open == 0 }, 30*time.Second, time.Millisecond)
}
