package e2e

import (
	"bytes"
	"context"
	"math/rand/v2"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// FuzzMangledTarget runs the whole initiator against a target whose bytes arrive flipped, dropped, doubled,
// replaced and cut off. Whatever happens: no panic, no byte outside a buffer, no hang, nothing left behind;
// and with both digests no wrong data either.
func FuzzMangledTarget(f *testing.F) {
	for i := range 24 {
		f.Add(uint64(i), uint16(1<<(i%12)), byte(i))
	}
	f.Fuzz(mangled)
}

const (
	mangleSize = 1 << 20
	guardLen   = 64
)

func mangled(t *testing.T, seed uint64, oneIn uint16, how byte) {
	base := fdCount(t)
	goroutines := runtime.NumGoroutine()
	ds := drivers(t)
	opts := nvmetcp.Options{
		Driver: ds[int(how>>2)%len(ds)], NumIOQueues: 2, HeaderDigest: true, DataDigest: true,
		DialTimeout: time.Second, ICTimeout: 300 * time.Millisecond, ConnectTimeout: 300 * time.Millisecond, CommandTimeout: 300 * time.Millisecond,
	}
	rate := 1 / float64(max(int(oneIn), 1)) / 64 // from the whole of a PDU to a byte in some megabytes
	conn := nvmetest.ConnFaults{MangleRate: rate, MangleSeed: seed}
	if how&1 != 0 { // only when connected
		conn = nvmetest.ConnFaults{}
	}
	if how&2 != 0 {
		opts.HeaderDigest, opts.DataDigest = how&64 != 0, false
	}
	rnd := rand.New(rand.NewPCG(seed, 1))
	content := fill(rnd, make([]byte, mangleSize))
	var (
		mu    sync.Mutex
		conns []*nvmetest.Conn
	)
	tg, err := nvmetest.Start(nvmetest.Config{
		Mode:       nvmetest.Mode(how >> 4 % 3),
		Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{Backend: nvmetest.MemoryOf(bytes.Clone(content))}}}},
	})
	require.NoError(t, err)
	tg.SetFaults(nvmetest.Faults{Conn: conn, OnConn: func(c *nvmetest.Conn) {
		mu.Lock()
		defer mu.Unlock()
		conns = append(conns, c)
	}})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if sub, err := host(t).Connect(ctx, nvmetcp.Target{Addr: tg.Addr(), NQN: nvmetest.DefaultNQN}, &opts); err == nil {
		if how&1 != 0 {
			mu.Lock()
			for i, c := range conns {
				c.Mangle(seed+uint64(i), rate)
			}
			mu.Unlock()
		}
		if ns, err := sub.Namespace(ctx, 1); err == nil && ns.Size() == mangleSize && ns.BlockSize() == 512 {
			mangledIO(ctx, t, ns, rnd.Uint64(), content, opts.DataDigest)
		}
		sub.Close()
	}
	require.NoError(t, ctx.Err(), "a hang")
	require.NoError(t, tg.Close())
	for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > goroutines || fdCount(t) > base; {
		if time.Now().After(end) {
			buf := make([]byte, 1<<20)
			t.Fatalf("left behind: %d goroutines, %d before; %d descriptors, %d before\n%s", runtime.NumGoroutine(), goroutines, fdCount(t), base, buf[:runtime.Stack(buf, true)])
		}
		time.Sleep(time.Millisecond)
	}
}

// mangledIO reads and writes the content it finds, so that what is right does not change.
func mangledIO(ctx context.Context, t *testing.T, ns *nvmetcp.Namespace, seed uint64, content []byte, digests bool) {
	var wg sync.WaitGroup
	for i := range 3 {
		wg.Go(func() {
			rnd := rand.New(rand.NewPCG(seed, uint64(i)))
			for range 8 {
				if i == 0 {
					n := 512 * (1 + rnd.IntN(200))
					off := 512 * rnd.IntN((mangleSize-n)/512)
					ns.WriteAtContext(ctx, content[off:off+n], int64(off))
					continue
				}
				n := 1 + rnd.IntN(1<<(4+rnd.IntN(15)))
				off := rnd.IntN(mangleSize - n)
				buf := bytes.Repeat([]byte{0xEE}, guardLen+n+guardLen)
				got, err := ns.ReadAtContext(ctx, buf[guardLen:guardLen+n], int64(off))
				if err == nil && got != n {
					t.Errorf("%d of %d bytes, and no error", got, n)
				}
				if digests && !bytes.Equal(buf[guardLen:guardLen+got], content[off:off+got]) {
					t.Errorf("wrong data in %d of %d bytes at %d, error %v", got, n, off, err)
				}
				if e := bytes.Repeat([]byte{0xEE}, guardLen); !bytes.Equal(buf[:guardLen], e) || !bytes.Equal(buf[guardLen+n:], e) {
					t.Errorf("a byte outside the buffer was written")
				}
			}
		})
	}
	wg.Wait()
}

func fdCount(t *testing.T) int {
	if runtime.GOOS != "linux" {
		return 0
	}
	ents, err := os.ReadDir("/proc/self/fd")
	require.NoError(t, err)
	return len(ents)
}
