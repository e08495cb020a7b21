package staging

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
)

// cached is a block device with a volatile cache. Its queues complete late and out of order. It keeps a log of all writes
// and flushes, from which [cached.crash] tells what a loss of power at any moment may leave.
type cached struct {
	t                       testing.TB
	block, io, queues, deep int
	seed                    uint64
	lies                    bool      // Flush does nothing
	before                  func(int) // each write and flush, counted from 1
	fail                    int       // the one that fails
	failHalf                bool      // and a write that fails has been half done
	corrupt                 int64     // the byte that is stored wrong, 0 none

	mu      sync.Mutex
	initial []byte
	data    []byte // what reads see
	ops     int
	flying  int
	log     []event
}

// event is the begin or the end of a write, or, without data, of a flush.
type event struct {
	id   int
	end  bool
	off  int64
	data []byte
}

func newCached(t testing.TB, block int, initial []byte) *cached {
	return &cached{t: t, block: block, io: 8 * block, queues: 2, deep: 3, initial: initial, data: bytes.Clone(initial)}
}

func (c *cached) Size() int64    { return int64(len(c.data)) }
func (c *cached) BlockSize() int { return c.block }
func (c *cached) MaxIO() int     { return c.io }
func (c *cached) MaxWrite() int  { return c.io }

func (c *cached) ReadAt(p []byte, off int64) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return bytes.NewReader(c.data).ReadAt(p, off)
}

// begin logs the begin of an operation.
func (c *cached) begin(off int64, p []byte) (op int, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	b := int64(c.block)
	if n := int64(len(p)); off%b != 0 || n%b != 0 || off < 0 || off+n > c.Size() {
		c.t.Errorf("bad write of %d bytes at %d", n, off)
	}
	c.ops++
	c.flying++
	op = c.ops
	if c.before != nil {
		c.before(op)
	}
	if op == c.fail {
		err = errMedium
		if !c.failHalf {
			return op, err
		}
		p = p[:len(p)/2/c.block*c.block]
		copy(c.data[off:], p)
	}
	c.log = append(c.log, event{id: op, off: off, data: bytes.Clone(p)})
	return op, err
}

// finish logs its end.
func (c *cached) finish(op int, off int64, p []byte, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.flying--
	if err != nil {
		return
	}
	copy(c.data[off:], p)
	if c.corrupt > 0 && off <= c.corrupt && c.corrupt < off+int64(len(p)) {
		c.data[c.corrupt] ^= 4
	}
	c.log = append(c.log, event{id: op, end: true, off: off, data: bytes.Clone(p)})
}

func (c *cached) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	op, err := c.begin(off, p)
	if err == nil {
		err = ctx.Err()
	}
	c.finish(op, off, p, err)
	if err != nil {
		return 0, err
	}
	return len(p), nil
}

func (c *cached) Flush(ctx context.Context) error {
	op, err := c.begin(0, nil)
	if err == nil {
		err = ctx.Err()
	}
	c.finish(op, 0, nil, err)
	return err
}

func (c *cached) Feed(ctx context.Context, f Feed) error {
	wakes := make([]chan struct{}, c.queues)
	for i := range wakes {
		wakes[i] = make(chan struct{}, 1)
	}
	wake := func() {
		for _, w := range wakes {
			select {
			case w <- struct{}{}:
			default:
			}
		}
	}
	f.Attach(wake)
	type command struct {
		r   *Read
		op  int
		err error
	}
	var wg sync.WaitGroup
	for q := range c.queues {
		wg.Go(func() {
			defer wake() // done for one is done for all
			rnd := rand.New(rand.NewPCG(c.seed, uint64(q)))
			var flying []command
			for done := false; ; {
				for !done && len(flying) < c.deep && ctx.Err() == nil {
					var r *Read
					if r, done = f.Next(); r == nil {
						break
					}
					if len(r.Buf) == 0 || len(r.Buf) > c.io {
						c.t.Errorf("bad command of %d bytes", len(r.Buf))
					}
					cmd := command{r: r}
					if r.Write {
						cmd.op, cmd.err = c.begin(r.Off, r.Buf)
					}
					flying = append(flying, cmd)
				}
				switch {
				case len(flying) > 0:
					pause(rnd)
					i := rnd.IntN(len(flying))
					cmd := flying[i]
					flying = slices.Delete(flying, i, i+1)
					if cmd.err == nil {
						cmd.err = ctx.Err()
					}
					if r := cmd.r; r.Write {
						c.finish(cmd.op, r.Off, r.Buf, cmd.err)
					} else if _, err := c.ReadAt(r.Buf, r.Off); cmd.err == nil {
						cmd.err = err
					}
					cmd.r.Err = cmd.err
					f.Complete(cmd.r)
				case done || ctx.Err() != nil:
					return
				default:
					select {
					case <-wakes[q]:
					case <-ctx.Done():
					}
				}
			}
		})
	}
	wg.Wait()
	return ctx.Err()
}

// crash is what the medium may hold when the power goes after the first n events: what was flushed, and of the rest any
// blocks, in any order. keep says of each block whether it got there.
func (c *cached) crash(n int, r *rand.Rand, keep func(off int64) bool) []byte {
	type write struct {
		off  int64
		data []byte
	}
	var (
		medium  = bytes.Clone(c.initial)
		pending = map[int]write{} // by id
		order   []int
		ended   = map[int]bool{}
		flushed = map[int][]int{} // the writes that a flush covers
	)
	for _, e := range c.log[:n] {
		switch flush := e.data == nil; {
		case !flush && !e.end:
			pending[e.id] = write{e.off, e.data}
			order = append(order, e.id)
		case !flush:
			pending[e.id] = write{e.off, e.data} // half a write never ends
			ended[e.id] = true
		case !e.end:
			for _, id := range order {
				if ended[id] {
					flushed[e.id] = append(flushed[e.id], id)
				}
			}
		case !c.lies:
			for _, id := range flushed[e.id] {
				if w, ok := pending[id]; ok {
					copy(medium[w.off:], w.data)
					delete(pending, id)
				}
			}
			order = slices.DeleteFunc(order, func(id int) bool { _, ok := pending[id]; return !ok })
		}
	}
	var blocks []write
	for _, id := range order {
		w := pending[id]
		for i := 0; i < len(w.data); i += c.block {
			blocks = append(blocks, write{w.off + int64(i), w.data[i : i+c.block]})
		}
	}
	r.Shuffle(len(blocks), func(i, j int) { blocks[i], blocks[j] = blocks[j], blocks[i] })
	for _, w := range blocks {
		if keep(w.off) {
			copy(medium[w.off:], w.data)
		}
	}
	return medium
}
