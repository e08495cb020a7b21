package nvmetcp

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// BenchmarkBareHost tells how much of a rate is the target's: next to a feed it runs a host that does nothing at all. It
// sends Read capsules whenever as many bytes have come as answer them, looks at none of those, and either has
// the kernel copy them to one buffer that stays in the cache (bare), or drop them where they are (discard). No host
// that wants the data can be faster than the one, none whatever than the other.
//
// The target is a process with a CPU of its own, NVSTAGE_BENCH_TARGET=HOST:PORT/NQN, and has to answer in order.
func BenchmarkBareHost(b *testing.B) {
	addr, nqn, ok := strings.Cut(os.Getenv("NVSTAGE_BENCH_TARGET"), "/")
	if !ok {
		b.Skip("needs a target: set NVSTAGE_BENCH_TARGET=HOST:PORT/NQN, for example that of go run ./bench/target")
	}
	for _, c := range []struct {
		size, depth int
		digests     bool
	}{
		{4 << 10, 1, false},
		{4 << 10, 32, false},
		{64 << 10, 32, false},
		{128 << 10, 8, false},
		{128 << 10, 8, true},
		{1 << 20, 8, false},
	} {
		name := fmt.Sprintf("%dKiB/QD%d", c.size>>10, c.depth)
		if c.digests {
			name += "/digests"
		}
		for _, how := range []string{"feed", "bare", "discard"} {
			b.Run(name+"/"+how, func(b *testing.B) {
				ns := benchTarget(b, Target{Addr: addr, NQN: nqn}, &Options{NumIOQueues: 1, QueueSize: 128, HeaderDigest: c.digests, DataDigest: c.digests, KeepAlive: -1})
				b.SetBytes(int64(c.size))
				if how == "feed" {
					f := newBenchFeed(b.N, c.depth, c.size, ns.Size())
					b.ResetTimer()
					if err := ns.Feed(b.Context(), f); err != nil || f.err != nil {
						b.Fatal(err, f.err)
					}
					return
				}
				h := bareHost{q: ns.sub.ctrl.io[0].Queue, nsid: ns.NSID(), size: c.size, block: ns.BlockSize(), blocks: ns.Size() / int64(ns.BlockSize())}
				err := h.q.Control(func(fd uintptr) {
					h.fd = fd
					h.run(1, 1, false) // what an answer is like
					b.ResetTimer()
					h.run(b.N, c.depth, how == "discard")
				})
				if err != nil || h.err != nil {
					b.Fatal(err, h.err)
				}
			})
		}
	}
}

func benchTarget(b *testing.B, t Target, o *Options) *Namespace {
	sub, err := UniqueHost().Connect(b.Context(), t, o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { sub.Close() })
	ids, err := sub.Namespaces(b.Context())
	if err != nil || len(ids) == 0 {
		b.Fatal(err, ids)
	}
	ns, err := sub.Namespace(b.Context(), ids[0])
	if err != nil {
		b.Fatal(err)
	}
	return ns
}

// bareHost has an I/O queue's socket to itself while its queue does nothing.
type bareHost struct {
	q             *queue.Queue
	fd            uintptr
	nsid          uint32
	size, block   int
	blocks        int64
	answer        int // bytes of one answer: C2HData and, if it comes, CapsuleResp
	cid           uint16
	rnd           *rand.Rand
	capsules, buf []byte
	err           error
}

func (h *bareHost) run(reads, depth int, discard bool) {
	if h.buf == nil {
		h.buf = make([]byte, 4<<20)
		h.rnd = rand.New(rand.NewPCG(1, 2))
	}
	flags := uintptr(unix.MSG_DONTWAIT)
	if discard {
		flags |= unix.MSG_TRUNC
	}
	first := min(reads, depth)
	h.send(first, depth)
	todo := reads - first
	for got, left := 0, reads; left > 0 && h.err == nil; {
		to := h.buf
		if h.answer == 0 {
			to = h.buf[got:]
		}
		n, _, e := unix.RawSyscall6(unix.SYS_RECVFROM, h.fd, uintptr(unsafe.Pointer(unsafe.SliceData(to))), uintptr(len(to)), flags, 0, 0)
		switch {
		case e == unix.EAGAIN || e == unix.EINTR:
			continue
		case e != 0:
			h.err = e
		case n == 0:
			h.err = unix.ECONNRESET
		}
		got += int(n)
		if h.answer == 0 && !h.learn(h.buf[:got]) || got < h.answer {
			continue
		}
		done := got / h.answer
		got %= h.answer
		left -= done
		more := min(done, todo)
		todo -= more
		h.send(more, depth)
	}
}

// learn looks at the first answer.
func (h *bareHost) learn(b []byte) bool {
	var c pdu.CommonHeader
	if len(b) < pdu.TypeC2HData.HeaderLen() {
		return false
	}
	c.Decode(b)
	if c.Type != pdu.TypeC2HData || int(c.PLEN) < h.size {
		h.err = fmt.Errorf("the target does not answer a read with one C2HData: %v, %d bytes", c.Type, c.PLEN)
		return false
	}
	h.answer = int(c.PLEN)
	if !c.Flags.Has(pdu.FlagSuccess) {
		h.answer += pdu.TypeCapsuleResp.HeaderLen()
		if h.q.Info().Digests.Header {
			h.answer += pdu.DigestLen
		}
	}
	return true
}

func (h *bareHost) send(n, depth int) {
	h.capsules = h.capsules[:0]
	for range n {
		nlb := h.size / h.block
		sqe := nvme.Read(h.nsid, uint64(h.rnd.Int64N(h.blocks/int64(nlb)))*uint64(nlb), uint16(nlb-1))
		sqe.CID = h.cid
		sqe.Flags = nvme.FlagSGL
		sqe.SGL = nvme.SGL{Length: uint32(h.size), ID: nvme.SGLTransport}
		var p pdu.CapsuleCmd
		sqe.Append(p.SQE[:0])
		h.capsules = p.AppendHeader(h.capsules, pdu.Layout{Digests: h.q.Info().Digests}, 0)
		h.cid = (h.cid + 1) % uint16(depth)
	}
	for b := h.capsules; len(b) > 0 && h.err == nil; {
		n, _, e := unix.RawSyscall6(unix.SYS_SENDTO, h.fd, uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(len(b)), unix.MSG_DONTWAIT|unix.MSG_NOSIGNAL, 0, 0)
		switch e {
		case 0:
			b = b[n:]
		case unix.EAGAIN, unix.EINTR:
		default:
			h.err = e
		}
	}
}

// benchFeed reads here and there.
type benchFeed struct {
	countFeed
	rnd    *rand.Rand
	blocks int64 // of the size of a read
	err    error
}

func newBenchFeed(reads, depth, size int, capacity int64) *benchFeed {
	f := &benchFeed{countFeed: countFeed{left: reads}, rnd: rand.New(rand.NewPCG(1, 2)), blocks: capacity / int64(size)}
	for range depth {
		f.free = append(f.free, &Read{Buf: make([]byte, size)})
	}
	return f
}

func (f *benchFeed) Next() (*Read, bool) {
	r, done := f.countFeed.Next()
	if r != nil {
		r.Off = f.rnd.Int64N(f.blocks) * int64(len(r.Buf))
	}
	return r, done
}

func (f *benchFeed) Complete(r *Read) {
	if r.Err != nil {
		f.err = r.Err
	}
	f.countFeed.Complete(r)
}
