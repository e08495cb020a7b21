package staging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// lateDevice is a device whose memory the host cannot address, and which copies out late, in two steps and any order.
type lateDevice struct {
	Host

	mu     sync.Mutex
	r      *rand.Rand
	copies int
	failAt int
	flying atomic.Int64
}

type lateMemory []byte

func (m lateMemory) Len() int64    { return int64(len(m)) }
func (m lateMemory) Bytes() []byte { return nil }
func (m lateMemory) Free()         {}

func (d *lateDevice) Name() string { return "late device" }

func (d *lateDevice) CopyOut(dst []byte, src Memory, off int64, done func(error)) {
	d.mu.Lock()
	d.copies++
	fail, now := d.copies == d.failAt, d.r.IntN(4) == 0
	wait := rand.New(rand.NewPCG(d.r.Uint64(), 0))
	d.mu.Unlock()
	d.flying.Add(1)
	move := func() {
		b := src.(lateMemory)[off:][:len(dst)]
		half := len(b) / 2
		copy(dst[half:], b[half:])
		pause(wait)
		copy(dst[:half], b)
		d.flying.Add(-1)
		if fail {
			done(errCopy)
			return
		}
		done(nil)
	}
	if now {
		move()
	} else {
		go move()
	}
}

// everyDType is tensors of all types and of odd sizes, on the host and on dev.
func everyDType(r *rand.Rand, dev *lateDevice) []SaveTensor {
	var list []SaveTensor
	for d := U64; d >= BOOL; d-- {
		for _, n := range []int64{0, 8, 8 * int64(r.IntN(100)), 8 * int64(r.IntN(20000))} {
			if d.Bits() >= 8 {
				n = max(n-int64(r.IntN(3)), 0)
			}
			t := SaveTensor{TensorInfo: TensorInfo{Name: fmt.Sprintf("%s.%d", d, len(list)), DType: d, Shape: []int64{n}}}
			b := make([]byte, n*int64(d.Bits())/8)
			fillRandom(r, b)
			switch {
			case len(b) == 0 && r.IntN(2) == 0: // no memory
			case r.IntN(2) == 0:
				t.Memory = HostBytes(b)
			default:
				t.Memory, t.Device = lateMemory(b), dev
			}
			list = append(list, t)
		}
	}
	return append(list, SaveTensor{TensorInfo: TensorInfo{Name: "scalar \"ö\"", DType: U8}, Memory: HostBytes([]byte{7})})
}

// content is the bytes of a tensor.
func (t *SaveTensor) content() []byte {
	switch m := t.Memory.(type) {
	case nil:
		return nil
	case lateMemory:
		return m
	default:
		return m.Bytes()
	}
}

// loadsAs loads a shard and compares it with what was saved.
func loadsAs(t testing.TB, src Source, tensors []SaveTensor, meta map[string]string) {
	t.Helper()
	s, err := OpenShard(t.Context(), src)
	require.NoError(t, err)
	require.Equal(t, meta, s.Metadata)
	require.Zero(t, s.DataOffset%int64(src.BlockSize()), "the data does not begin at a block")
	n := 0
	for x, err := range s.Stream(t.Context(), newPool(t, 4, 64<<10), Host{}) {
		require.NoError(t, err)
		want := tensors[n]
		require.Equal(t, want.Name, x.Name)
		require.Equal(t, want.DType, x.DType)
		require.Equal(t, append([]int64{}, want.Shape...), append([]int64{}, x.Shape...))
		require.True(t, bytes.Equal(want.content(), x.Memory.Bytes()), x.Name)
		x.Release()
		n++
	}
	require.Equal(t, len(tensors), n)
}

// The whole way, with all drivers, kinds of targets, digests, block sizes, and with a file behind the target.
func TestSaveNamespace(t *testing.T) {
	i := 0
	for _, driver := range []queue.Driver{queue.DriverConn, queue.DriverEpoll, queue.DriverURing} {
		for _, mode := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
			i++
			t.Run(fmt.Sprintf("%s/%v", driver, mode), func(t *testing.T) {
				r := rand.New(rand.NewPCG(uint64(i), 1))
				block := []int{512, 4096}[i%2]
				f, err := os.Create(filepath.Join(t.TempDir(), "namespace"))
				require.NoError(t, err)
				defer f.Close()
				require.NoError(t, f.Truncate(16<<20))
				file, err := nvmetest.File(f)
				require.NoError(t, err)
				target, err := nvmetest.Start(nvmetest.Config{Mode: mode, Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{
					{NSID: 1, BlockSize: block, Backend: nvmetest.Memory(16 << 20)}, {NSID: 2, BlockSize: block, Backend: file},
				}}}})
				require.NoError(t, err)
				defer target.Close()
				host := nvmetcp.UniqueHost()
				opts := &nvmetcp.Options{NumIOQueues: 1 + i%3, QueueSize: 8, HeaderDigest: i%2 == 0, DataDigest: i%4 < 2, Driver: driver}
				sub, err := host.Connect(t.Context(), nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, opts)
				if err != nil && driver != queue.DriverConn {
					t.Skipf("%s cannot be had here: %v", driver, err)
				}
				require.NoError(t, err)
				defer sub.Close()
				for nsid := range uint32(2) {
					ns, err := sub.Namespace(t.Context(), nsid+1)
					require.NoError(t, err)
					dev := &lateDevice{r: r}
					tensors, meta := everyDType(r, dev), map[string]string{"step": fmt.Sprint(nsid)}
					var writes, reads atomic.Int64
					s := &Saver{Pool: newPool(t, 5, 64<<10), Verify: true, OnIO: func(c *Read) {
						if c.Write {
							writes.Add(1)
						} else {
							reads.Add(1)
						}
					}}
					h, err := s.Save(t.Context(), ns, tensors, meta)
					require.NoError(t, err)
					require.Equal(t, SaveStats{Total: h.Size, Written: h.Size, Verified: h.Size}, s.Stats())
					require.Greater(t, writes.Load(), int64(10), "in one pool, this tests little")
					require.Equal(t, writes.Load(), reads.Load())
					loadsAs(t, ns, tensors, meta)
				}
				require.Empty(t, target.Violations())
			})
		}
	}
}

// Only a buffer or two, and one of a block: larger tensors than that all the same.
func TestSaveSmallPools(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 2))
		dev := &lateDevice{r: r}
		tensors := everyDType(r, dev)
		d := newCached(t, []int{512, 4096}[seed%2], make([]byte, 16<<20))
		d.io, d.seed = 4096*(1+r.IntN(3)), seed
		s := &Saver{Pool: newPool(t, 1+r.IntN(2), 4096*(1+r.IntN(2))), Verify: seed%3 == 0}
		_, err := s.Save(t.Context(), d, tensors, nil)
		require.NoError(t, err)
		loadsAs(t, &ReaderSource{ReaderAt: d, Bytes: d.Size(), Block: d.block}, tensors, nil)
		require.Zero(t, dev.flying.Load())
	}
	// Nothing at all, too.
	d := newCached(t, 512, make([]byte, 4096))
	_, err := (&Saver{Pool: newPool(t, 1, 4096), Verify: true}).Save(t.Context(), d, nil, nil)
	require.NoError(t, err)
	loadsAs(t, &ReaderSource{ReaderAt: d, Bytes: d.Size(), Block: 512}, nil, nil)
}

// What lies on the host is not copied, but for what shares a buffer with something else.
func TestSaveLends(t *testing.T) {
	x := randomTensor(rand.New(rand.NewPCG(1, 1)), "t", 64<<10)
	b := x.Memory.Bytes()
	lent := 0
	s := &Saver{Pool: newPool(t, 3, 4096), Verify: true, OnIO: func(r *Read) {
		if at := r.Off - 512; r.Write && at >= 0 && &r.Buf[0] == &b[at] {
			lent += len(r.Buf)
		}
	}}
	d := newCached(t, 512, make([]byte, 1<<20))
	d.queues = 1
	_, err := s.Save(t.Context(), d, []SaveTensor{x}, nil)
	require.NoError(t, err)
	require.Equal(t, imageOf(t, []SaveTensor{x}, nil, 512), d.data[:512+len(b)])
	require.Equal(t, len(b), lent)
}

// A copy out of a device that fails.
func TestSaveCopyFails(t *testing.T) {
	for failAt := 1; ; failAt++ {
		r := rand.New(rand.NewPCG(uint64(failAt), 3))
		dev := &lateDevice{r: r, failAt: failAt}
		var tensors []SaveTensor
		for i := range 12 {
			x := randomTensor(r, fmt.Sprint("t", i), 3000*i)
			x.Memory, x.Device = lateMemory(x.Memory.Bytes()), dev
			tensors = append(tensors, x)
		}
		d := newCached(t, 512, make([]byte, 1<<20))
		s := &Saver{Pool: newPool(t, 3, 8192), Verify: failAt%2 == 0}
		_, err := s.Save(t.Context(), d, tensors, nil)
		require.Zero(t, s.Pool.Out())
		require.Zero(t, dev.flying.Load())
		require.Zero(t, d.flying)
		if err == nil {
			require.Less(t, dev.copies, failAt)
			require.Greater(t, failAt, 20)
			return
		}
		require.ErrorIs(t, err, errCopy)
		require.ErrorContains(t, err, `staging: copying tensor "t`)
		require.ErrorContains(t, err, " from late device: copy engine fault; there is no shard now")
		_, err = OpenShard(t.Context(), &ReaderSource{ReaderAt: d, Bytes: d.Size()})
		require.ErrorIs(t, err, ErrNotShard)
	}
}

// Whatever byte comes back wrong, there is no shard.
func TestSaveVerify(t *testing.T) {
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 4))
		c := newCrashCase(t, r)
		for at := int64(1); at < int64(len(c.new)); at += 1 + int64(r.IntN(len(c.new)/10+1)) {
			s, d := c.saver(t, r)
			s.Verify, d.corrupt = true, at
			_, err := s.Save(t.Context(), d, c.tensors, c.meta)
			require.ErrorIs(t, err, ErrVerify)
			var se *SaveError
			require.ErrorAs(t, err, &se)
			require.Equal(t, LeftNoShard, se.Left)
			require.Equal(t, none, c.find(d.data), "byte %d", at)
			require.Zero(t, s.Pool.Out())
			require.Less(t, s.Stats().Verified, s.Stats().Total)
		}
	}
}

func TestSaveRefuses(t *testing.T) {
	one := func(n int) []SaveTensor { return []SaveTensor{randomTensor(rand.New(rand.NewPCG(1, 1)), "t", n)} }
	short := one(10)
	short[0].Shape = []int64{11}
	missing := one(10)
	missing[0].Memory = nil
	twice := append(one(1), one(1)...)
	pool := newPool(t, 2, 4096)
	for name, c := range map[string]struct {
		saver   *Saver
		tensors []SaveTensor
		block   int
		io      int
		text    string
	}{
		"no pool":     {&Saver{}, one(10), 512, 512, "staging: the saver has no pool"},
		"short":       {&Saver{Pool: pool}, short, 512, 512, `staging: tensor "t": shape [11] of U8 is 11 bytes, its memory has 10`},
		"no memory":   {&Saver{Pool: pool}, missing, 512, 512, `is 10 bytes, its memory has 0`},
		"twice":       {&Saver{Pool: pool}, twice, 512, 512, `staging: tensor name "t" is a duplicate`},
		"too large":   {&Saver{Pool: pool}, one(64 << 10), 512, 512, "staging: a shard of 66048 bytes does not fit a sink of 65536"},
		"large block": {&Saver{Pool: pool}, one(10), 8192, 8192, "cannot hold a block of 8192"},
		"no block":    {&Saver{Pool: pool}, one(10), 0, 512, "staging: sink with blocks of 0 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			d := newCached(t, c.block, make([]byte, 64<<10))
			d.io = c.io
			_, err := c.saver.Save(t.Context(), d, c.tensors, nil)
			require.ErrorContains(t, err, c.text)
			require.ErrorContains(t, err, "; nothing was written")
			var se *SaveError
			require.ErrorAs(t, err, &se)
			require.Equal(t, LeftAsItWas, se.Left)
			require.Empty(t, d.log)
		})
	}
}

// A shard that fills its sink to the last block.
func TestSaveFits(t *testing.T) {
	tensors := []SaveTensor{randomTensor(rand.New(rand.NewPCG(1, 1)), "t", 20*512-3)}
	d := newCached(t, 512, make([]byte, 21*512+100))
	s := &Saver{Pool: newPool(t, 1, 4096), Verify: true}
	buf, _ := s.Pool.TryGet()
	copy(buf.Bytes(), bytes.Repeat([]byte{0xbd}, 4096)) // from an earlier use
	buf.Release()
	_, err := s.Save(t.Context(), d, tensors, nil)
	require.NoError(t, err)
	require.Equal(t, imageOf(t, tensors, nil, 512), d.data[:21*512-3])
	require.Equal(t, make([]byte, 103), d.data[21*512-3:], "not filled up with zeros")
}

// brokenSink returns from Feed too early.
type brokenSink struct {
	*cached

	take int
}

func (b *brokenSink) Feed(_ context.Context, f Feed) error {
	f.Attach(func() {})
	for range b.take {
		for {
			if r, done := f.Next(); r != nil || done {
				break
			}
			time.Sleep(time.Millisecond)
		}
	}
	return nil
}

// What a sink does wrong is an error, not a shard.
func TestSaveBrokenSink(t *testing.T) {
	for take, text := range []string{"before everything was written", "with 1 commands in flight"} {
		pool, err := NewPool(PoolConfig{Bytes: 8192, BufferSize: 4096, HugePages: Never, Lock: Never})
		require.NoError(t, err)
		b := &brokenSink{newCached(t, 512, make([]byte, 64<<10)), take}
		_, err = (&Saver{Pool: pool}).Save(t.Context(), b, []SaveTensor{randomTensor(rand.New(rand.NewPCG(1, 1)), "t", 30000)}, nil)
		require.ErrorContains(t, err, text)
		require.Equal(t, take, pool.Out(), "a buffer that may still be in use is not used again")
		_, err = OpenShard(t.Context(), &ReaderSource{ReaderAt: b, Bytes: b.Size()})
		require.ErrorIs(t, err, ErrNotShard)
	}
}

// Copy writes what is in a file as it is.
func TestSaveCopy(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 5))
	for _, n := range []int{100, 512, 513, 8191, 8192, 100_001} {
		shard := randomShard(t, "x", int64(n))
		d := newCached(t, 512, bytes.Repeat([]byte{0xa5}, (len(shard)/512+3)*512))
		s := &Saver{Pool: newPool(t, 1+r.IntN(3), 8192), Verify: true}
		require.NoError(t, s.Copy(t.Context(), d, bytes.NewReader(shard), int64(len(shard))))
		end := (len(shard) + 511) / 512 * 512
		require.True(t, bytes.Equal(shard, d.data[:len(shard)]))
		require.Equal(t, make([]byte, end-len(shard)), d.data[len(shard):end])
		if end > 3*512 { // else a superblock's place is behind it
			require.EqualValues(t, 0xa5, d.data[end])
		}
		require.EqualValues(t, len(shard), s.Stats().Verified)

		err := s.Copy(t.Context(), d, io.NewSectionReader(bytes.NewReader(shard), 0, int64(len(shard)-1)), int64(len(shard)))
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		var se *SaveError
		require.ErrorAs(t, err, &se)
		if len(shard) <= 512 {
			require.Equal(t, LeftAsItWas, se.Left)
			require.True(t, bytes.Equal(shard, d.data[:len(shard)]))
			continue
		}
		require.Equal(t, LeftNoShard, se.Left)
		_, err = OpenShard(t.Context(), &ReaderSource{ReaderAt: d, Bytes: d.Size()})
		require.ErrorIs(t, err, ErrNotShard)
	}
	require.ErrorContains(t, (&Saver{Pool: newPool(t, 1, 8192)}).Copy(t.Context(), newCached(t, 512, make([]byte, 512)), strings.NewReader(""), 0), "a shard of 0 bytes")
}

// Status from the controller, a lost association, and a cancel: an error in time, and all buffers are back.
func TestSaveNamespaceFails(t *testing.T) {
	r := rand.New(rand.NewPCG(6, 6))
	tensors := []SaveTensor{randomTensor(r, "a", 5<<20), randomTensor(r, "b", 77)}
	for name, c := range map[string]struct {
		op   nvme.Opcode
		nth  int
		end  func(*nvmetest.Target, context.CancelCauseFunc)
		want error
		left Left
	}{
		"first write":      {nvme.OpWrite, 1, nil, nvme.StatusWriteFault.Status(), LeftUncertain},
		"write":            {nvme.OpWrite, 20, nil, nvme.StatusWriteFault.Status(), LeftNoShard},
		"first flush":      {nvme.OpFlush, 1, nil, nvme.StatusWriteFault.Status(), LeftUncertain},
		"flush":            {nvme.OpFlush, 3, nil, nvme.StatusWriteFault.Status(), LeftNoShard},
		"last flush":       {nvme.OpFlush, 4, nil, nvme.StatusWriteFault.Status(), LeftNoShard},
		"connections lost": {nvme.OpWrite, 20, func(target *nvmetest.Target, _ context.CancelCauseFunc) { target.CloseConnections() }, nvmetcp.ErrPathLost, LeftNoShard},
		"cancelled":        {nvme.OpWrite, 20, func(_ *nvmetest.Target, cancel context.CancelCauseFunc) { cancel(errCause) }, errCause, LeftNoShard},
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithCancelCause(t.Context())
			defer cancel(nil)
			backend := nvmetest.MemoryOf(append(randomShard(t, "x", 6<<20), make([]byte, 4096)...))
			target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: backend}}}}})
			require.NoError(t, err)
			defer target.Close()
			host := nvmetcp.UniqueHost()
			sub, err := host.Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, &nvmetcp.Options{NumIOQueues: 2, QueueSize: 8})
			require.NoError(t, err)
			defer sub.Close()
			ns, err := sub.Namespace(ctx, 1)
			require.NoError(t, err)
			rule := nvmetest.Rule{Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{c.op}, Nth: c.nth, Count: 1, Do: nvmetest.Action{Status: nvme.StatusWriteFault.Status().WithDNR()}}
			s := &Saver{Pool: newPool(t, 4, 64<<10)}
			if c.end != nil {
				rule.Do = nvmetest.Action{Delay: 20 * time.Millisecond}
				var n atomic.Int64
				s.OnIO = func(*Read) {
					if n.Add(1) == int64(c.nth) {
						c.end(target, cancel)
					}
				}
			}
			target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{rule}})
			_, err = s.Save(ctx, ns, tensors, nil)
			var se *SaveError
			require.ErrorAs(t, err, &se)
			var status nvme.Status
			if errors.As(c.want, &status) {
				require.ErrorAs(t, err, &status)
				require.Equal(t, nvme.StatusWriteFault, status.Code())
			} else {
				require.ErrorIs(t, err, c.want)
			}
			require.Equal(t, c.left, se.Left, "%v", err)
			require.Zero(t, s.Pool.Out())
			first := make([]byte, 512)
			_, err = backend.ReadAt(first, 0)
			require.NoError(t, err)
			if name != "first write" {
				require.Equal(t, make([]byte, 512), first)
			}
		})
	}
}
