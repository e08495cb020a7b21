package queue_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/queue"
)

// threadsOn counts the threads of this process that may run on that CPU only: the main thread, which Go
// parks for good instead of ending it, and others.
func threadsOn(t *testing.T, cpu int) (main, others int) {
	tasks, err := filepath.Glob("/proc/self/task/*/status")
	require.NoError(t, err)
	for _, task := range tasks {
		b, _ := os.ReadFile(task) // one may be gone
		switch {
		case !strings.Contains(string(b), fmt.Sprintf("\nCpus_allowed_list:\t%d\n", cpu)):
		case strings.Contains(task, fmt.Sprintf("/%d/", os.Getpid())):
			main++
		default:
			others++
		}
	}
	return main, others
}

// A pinned queue has a thread of its own, which goes with it; no other thread is pinned, ever.
func TestPin(t *testing.T) {
	var set unix.CPUSet
	require.NoError(t, unix.SchedGetaffinity(0, &set))
	if set.Count() < 2 {
		t.Skip("there is only one CPU to run on, so a pinned thread is not told from another")
	}
	cpu := 0
	for !set.IsSet(cpu) {
		cpu++
	}
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		before, _ := threadsOn(t, cpu)
		q, _ := connect(t, d, opts{cfg: queue.Config{Pin: true, CPU: cpu}})
		main, others := threadsOn(t, cpu)
		if d == queue.DriverConn {
			require.Zero(t, others+main-before)
			require.Contains(t, strings.Join(q.Info().Notes, "\n"), "not pinned")
			return
		}
		require.Equal(t, 1, others+main-before)
		q.Close()
		require.Eventually(t, func() bool {
			_, others := threadsOn(t, cpu)
			return others == 0
		}, 5*time.Second, time.Millisecond)
	})
	for _, cpu := range []int{-1, -1000, 1 << 20} {
		q, _ := connect(t, queue.DriverEpoll, opts{cfg: queue.Config{Pin: true, CPU: cpu}})
		require.Contains(t, strings.Join(q.Info().Notes, "\n"), fmt.Sprintf("not pinned to CPU %d", cpu))
	}
}
