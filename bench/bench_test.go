package bench

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/bench/internal/load"
	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
	"github.com/nvstage/nvstage/staging"
)

// targetEnv makes the tests' binary be the target.
const targetEnv = "NVSTAGE_BENCH_TARGET"

// The target's namespaces.
const (
	nullNSID  = 1
	shardNSID = 2
)

func TestMain(m *testing.M) {
	if os.Getenv(targetEnv) == "" {
		os.Exit(m.Run())
	}
	if err := serve(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// serve is the target's process: it prints an address, and serves until in ends.
func serve(in io.Reader, out io.Writer) error {
	shard, err := makeShard()
	if err != nil {
		return err
	}
	tgt, err := nvmetest.Start(nvmetest.Config{Spin: 50 * time.Microsecond, Subsystems: []nvmetest.Subsystem{{
		NQN: nvmetest.DefaultNQN,
		Namespaces: []nvmetest.Namespace{
			{NSID: nullNSID, BlockSize: 512, Backend: nvmetest.Null(64 << 30)},
			{NSID: shardNSID, BlockSize: 512, Backend: nvmetest.MemoryOf(shard)},
		},
	}}})
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out, tgt.Addr()); err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return errors.Join(err, tgt.Close())
}

// A shard of a few large tensors and many small ones.
const (
	largeTensors, largeTensor = 8, 8 << 20 // bytes
	smallTensors, smallTensor = 64, 16 << 10
	shardBytes                = largeTensors*largeTensor + smallTensors*smallTensor
)

func makeShard() ([]byte, error) {
	var tensors []staging.TensorInfo
	for i := range largeTensors {
		tensors = append(tensors, staging.TensorInfo{Name: fmt.Sprintf("large.%d", i), DType: staging.U8, Shape: []int64{largeTensor}})
	}
	for i := range smallTensors {
		tensors = append(tensors, staging.TensorInfo{Name: fmt.Sprintf("small.%d", i), DType: staging.U8, Shape: []int64{smallTensor}})
	}
	h, err := staging.NewHeader(tensors, nil)
	if err != nil {
		return nil, err
	}
	b, err := h.Append(nil)
	if err != nil {
		return nil, err
	}
	b = append(b, make([]byte, shardBytes)...)
	return append(b, make([]byte, (512-len(b)%512)%512)...), nil
}

// start runs the target until the end of the benchmark, on a CPU of its own where there are two.
func start(b testing.TB) nvmetcp.Target {
	b.Helper()
	self, err := os.Executable()
	require.NoError(b, err)
	c := exec.Command(self)
	c.Env = append(os.Environ(), targetEnv+"=1")
	c.Stderr = os.Stderr
	in, err := c.StdinPipe()
	require.NoError(b, err)
	out, err := c.StdoutPipe()
	require.NoError(b, err)
	runtime.LockOSThread() // the child gets the affinity of the thread that starts it
	restore := func() {}
	if cpu, _, ok := cpus(); ok {
		restore, err = topo.Pin(cpu)
		require.NoError(b, err)
	}
	err = c.Start()
	restore()
	runtime.UnlockOSThread()
	require.NoError(b, err)
	b.Cleanup(func() {
		in.Close()
		require.NoError(b, c.Wait())
	})
	addr, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(b, err)
	return nvmetcp.Target{Addr: strings.TrimSpace(addr), NQN: nvmetest.DefaultNQN}
}

// cpus are the target's CPU and the queue's, where there are two.
func cpus() (target, initiator int, ok bool) {
	list, err := topo.CPUs()
	if err != nil || len(list) < 2 {
		return 0, 0, false
	}
	return list[0], list[1], true
}

// run measures n I/Os of a load.
func run(b *testing.B, cfg load.Config) {
	b.Helper()
	cfg.Host, cfg.NSID, cfg.QueuesPerCPU = nvmetcp.UniqueHost(), nullNSID, 1
	l, err := load.Open(b.Context(), cfg)
	if err != nil && cfg.Options.Driver == queue.DriverURing {
		b.Skipf("io_uring cannot be had here: %v", err)
	}
	require.NoError(b, err)
	defer l.Close()
	b.SetBytes(int64(cfg.Size))
	b.ReportAllocs()
	before := l.Stats()
	cpu := measure.ProcessCPU()
	b.ResetTimer()
	err = l.Do(context.Background(), int64(b.N))
	b.StopTimer()
	b.ReportMetric(float64(measure.ProcessCPU()-cpu)/float64(b.N), "cpu-ns/op")
	b.ReportMetric(float64(l.Stats().Syscalls-before.Syscalls)/float64(b.N), "syscalls/op")
	require.NoError(b, err)
}

var sizes = []int{4 << 10, 128 << 10, 1 << 20}

func sizeName(n int) string {
	if n >= 1<<20 {
		return fmt.Sprintf("%dMiB", n>>20)
	}
	return fmt.Sprintf("%dKiB", n>>10)
}

// BenchmarkFeed is one queue on a CPU of its own that pulls.
func BenchmarkFeed(b *testing.B) {
	target := start(b)
	for _, d := range drivers() {
		for _, digests := range []string{"none", "both"} {
			for _, reads := range []int{100, 0} {
				p := load.Pattern{Random: true, Reads: reads}
				for _, size := range sizes {
					for _, depth := range []int{1, 8, 32, 128} {
						b.Run(fmt.Sprintf("%s/digests=%s/%s/%s/QD%d", d, digests, p, sizeName(size), depth), func(b *testing.B) {
							cfg := load.Config{
								Target: target, Size: size, Depth: depth, Pattern: p, API: load.Feed,
								Options: nvmetcp.Options{Driver: d, HeaderDigest: digests == "both", DataDigest: digests == "both"},
							}
							if _, cpu, ok := cpus(); ok {
								cfg.CPUs = []int{cpu}
							}
							run(b, cfg)
						})
					}
				}
			}
		}
	}
}

// BenchmarkReadAt is the hand-off to and from goroutines, one I/O at a time each.
func BenchmarkReadAt(b *testing.B) {
	target := start(b)
	for _, d := range drivers() {
		for _, size := range sizes {
			for _, threads := range []int{1, 8, 64} {
				b.Run(fmt.Sprintf("%s/%s/goroutines=%d", d, sizeName(size), threads), func(b *testing.B) {
					run(b, load.Config{
						Target: target, Size: size, Depth: threads, Pattern: load.Pattern{Random: true, Reads: 100}, API: load.ReadAt,
						Threads: threads, Options: nvmetcp.Options{Driver: d},
					})
				})
			}
		}
	}
}

// BenchmarkReadBatch is the hand-off of many reads at a time. An operation is one of them.
func BenchmarkReadBatch(b *testing.B) {
	target := start(b)
	for _, d := range drivers() {
		for _, n := range []int{8, 64} {
			b.Run(fmt.Sprintf("%s/4KiB/reads=%d", d, n), func(b *testing.B) {
				run(b, load.Config{
					Target: target, Size: 4 << 10, Depth: n, Pattern: load.Pattern{Random: true, Reads: 100}, API: load.Batch,
					Threads: 1, Options: nvmetcp.Options{Driver: d},
				})
			})
		}
	}
}

// BenchmarkLoader is the loader: a whole shard through staging memory, handed to the consumer there
// (Pieces) or copied to host memory, as it would be to a GPU's (Stream). An operation is a shard.
func BenchmarkLoader(b *testing.B) {
	target := start(b)
	for _, how := range []string{"Pieces", "Stream"} {
		for _, d := range drivers() {
			b.Run(fmt.Sprintf("%s/%s", how, d), func(b *testing.B) { benchLoader(b, target, d, how == "Stream") })
		}
	}
}

func benchLoader(b *testing.B, target nvmetcp.Target, d queue.Driver, stream bool) {
	ctx := context.Background()
	sub, err := nvmetcp.UniqueHost().Connect(ctx, target, &nvmetcp.Options{NumIOQueues: 1, Driver: d})
	if err != nil && d == queue.DriverURing {
		b.Skipf("io_uring cannot be had here: %v", err)
	}
	require.NoError(b, err)
	defer sub.Close()
	ns, err := sub.Namespace(ctx, shardNSID)
	require.NoError(b, err)
	shard, err := staging.OpenShard(ctx, ns)
	require.NoError(b, err)
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 16 << 20})
	require.NoError(b, err)
	defer pool.Close()
	loader := &staging.Loader{Pool: pool}
	plan := shard.Plan()
	b.SetBytes(shardBytes)
	b.ReportAllocs()
	cpu := measure.ProcessCPU()
	for b.Loop() {
		n := int64(0)
		if stream {
			for t, err := range loader.Stream(ctx, plan, staging.Host{}) {
				require.NoError(b, err)
				n += t.Memory.Len()
				t.Release()
			}
		} else {
			for p, err := range loader.Pieces(ctx, plan) {
				require.NoError(b, err)
				n += int64(len(p.Data))
				p.Release()
			}
		}
		if n != shardBytes {
			b.Fatalf("%d bytes of %d", n, shardBytes)
		}
	}
	b.ReportMetric(float64(measure.ProcessCPU()-cpu)/float64(b.N), "cpu-ns/op")
}

// TestBenchmarks does a little of what the benchmarks do, so that they are known to work.
func TestBenchmarks(t *testing.T) {
	target := start(t)
	for _, api := range []load.API{load.Feed, load.ReadAt, load.Batch} {
		l, err := load.Open(t.Context(), load.Config{
			Host: nvmetcp.UniqueHost(), Target: target, NSID: nullNSID, QueuesPerCPU: 1, Depth: 4, Size: 4096, Threads: 2,
			Pattern: load.Pattern{Random: true, Reads: 100}, API: api,
		})
		require.NoError(t, err)
		require.NoError(t, l.Do(t.Context(), 100))
		require.NoError(t, l.Close())
	}
	sub, err := nvmetcp.UniqueHost().Connect(t.Context(), target, nil)
	require.NoError(t, err)
	defer sub.Close()
	ns, err := sub.Namespace(t.Context(), shardNSID)
	require.NoError(t, err)
	shard, err := staging.OpenShard(t.Context(), ns)
	require.NoError(t, err)
	require.Len(t, shard.Tensors, largeTensors+smallTensors)
}
