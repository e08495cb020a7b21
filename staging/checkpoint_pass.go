package staging

import (
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"sync"
	"sync/atomic"
)

// pass moves all of an image but its first block between the pool and the sink: it writes it, or reads it back. It implements [Feed].
//
// The queues themselves start what fills a chunk, when they ask for one. It reaches them by a channel: at once if there is
// nothing to wait for, or when the device has copied and the summer, who computes the checksums, has seen it. The channels
// have room for all buffers, so nobody who hands on a chunk ever waits.
type pass struct {
	*saving

	writing bool
	sums    []uint32        // of the chunks; nil: none
	ctx     context.Context // ends with the first error, which is its cause
	stop    context.CancelCauseFunc
	slots   []passSlot // by buffer index
	bySlot  map[*Read]*passSlot
	ready   chan *passSlot // for the queues
	summing chan *passSlot // for the summer
	filling sync.WaitGroup // chunks that are being filled

	mu     sync.Mutex
	at     int64 // where the next chunk begins
	chunks int64
	handed atomic.Int64 // to the queues
	back   atomic.Int64 // from them
	wake   func()
	hungry atomic.Bool // a queue found nothing
}

// passSlot is one buffer in use. There are as many as the pool has buffers.
type passSlot struct {
	io  Read
	buf Buffer
}

// pass writes the body of the image and notes its checksums in sums, or reads it back and compares them.
func (w *saving) pass(ctx context.Context, writing bool, sums []uint32) error {
	if w.end == w.block {
		return nil
	}
	n := w.saver.Pool.info.Buffers
	p := &pass{
		saving: w, writing: writing, sums: sums, at: w.block, slots: make([]passSlot, n), bySlot: make(map[*Read]*passSlot, n),
		ready: make(chan *passSlot, n), summing: make(chan *passSlot, n),
	}
	for i := range p.slots {
		p.bySlot[&p.slots[i].io] = &p.slots[i]
	}
	p.chunks = (w.end + w.chunk - 1) / w.chunk
	if w.chunk == w.block {
		p.chunks-- // the first block is a chunk of its own
	}
	p.ctx, p.stop = context.WithCancelCause(ctx)
	defer p.stop(nil)

	defer w.saver.Pool.OnRelease(p.rouse)()
	var summer sync.WaitGroup
	summer.Go(p.sum)
	if err := w.sink.Feed(ctx, p); err != nil {
		p.fail(err)
	}
	if lost := p.handed.Load() - p.back.Load(); lost > 0 {
		// Their buffers may still be in use, so they are lost to the pool rather than used again.
		p.fail(fmt.Errorf("staging: the sink returned with %d commands in flight", lost))
	}
	if p.handed.Load() < p.chunks {
		p.fail(errors.New("staging: the sink returned before everything was written"))
	}
	p.filling.Wait()
	close(p.summing)
	summer.Wait()
	close(p.ready)
	for sl := range p.ready {
		sl.buf.Release()
	}
	return context.Cause(p.ctx)
}

// fail ends the pass: what is in flight completes, and nothing is begun. The first error counts.
func (p *pass) fail(err error) {
	p.stop(err)
	p.rouse()
}

// rouse wakes the queues if one of them has found nothing.
func (p *pass) rouse() {
	if p.hungry.Swap(false) {
		p.wake()
	}
}

// begin starts the next chunk, if there is one, and a buffer for it.
func (p *pass) begin() bool {
	p.mu.Lock()
	if p.at == p.end {
		p.mu.Unlock()
		return false
	}
	buf, ok := p.saver.Pool.TryGet()
	if !ok {
		p.mu.Unlock()
		return false
	}
	off := p.at
	p.at = min((off/p.chunk+1)*p.chunk, p.end)
	n := p.at - off
	p.mu.Unlock()

	sl := &p.slots[buf.index]
	sl.buf = buf
	sl.io = Read{Write: p.writing, Off: off, Buf: buf.Bytes()[:n:n]}
	if !p.writing {
		p.push(sl)
		return true
	}
	p.filling.Add(1)
	p.img.fill(sl.io.Buf, off, func(b []byte, err error) {
		defer p.filling.Done()
		sl.io.Buf = b
		switch {
		case err != nil:
			p.fail(err)
			sl.buf.Release()
		case p.sums != nil:
			p.summing <- sl
		default:
			p.push(sl)
		}
	})
	return true
}

func (p *pass) push(sl *passSlot) {
	p.ready <- sl
	p.rouse()
}

// sum computes checksums, away from the threads of queues and devices.
func (p *pass) sum() {
	for sl := range p.summing {
		crc := crc32.Checksum(sl.io.Buf, castagnoli)
		want := &p.sums[sl.io.Off/p.chunk]
		if p.writing {
			*want = crc
			p.push(sl)
			continue
		}
		if crc != *want {
			p.fail(fmt.Errorf("staging: %w: %d bytes at %d of the shard", ErrVerify, len(sl.io.Buf), sl.io.Off))
		} else {
			p.saver.stats.verified.Add(p.payload(sl))
		}
		sl.buf.Release()
	}
}

// payload is how much of a chunk belongs to the shard.
func (p *pass) payload(sl *passSlot) int64 {
	return min(sl.io.Off+int64(len(sl.io.Buf)), p.img.size) - sl.io.Off
}

// Attach keeps wake. See [Feed].
func (p *pass) Attach(wake func()) { p.wake = wake }

// Next hands out a chunk that is ready, and starts others as long as there is none. See [Feed].
func (p *pass) Next() (r *Read, done bool) {
	for looks := 0; looks < 2; { // again when hungry is set: what came just before it woke nobody
		if p.ctx.Err() != nil || p.handed.Load() == p.chunks {
			return nil, true
		}
		select {
		case sl := <-p.ready:
			return &sl.io, p.handed.Add(1) == p.chunks
		default:
		}
		if !p.begin() {
			p.hungry.Store(true)
			looks++
		}
	}
	return nil, false
}

// Complete takes a chunk back. See [Feed].
func (p *pass) Complete(r *Read) {
	sl := p.bySlot[r]
	p.back.Add(1)
	if p.saver.OnIO != nil {
		p.saver.OnIO(r)
	}
	switch {
	case r.Err != nil && p.writing:
		p.fail(fmt.Errorf("staging: writing the shard: %w", r.Err))
	case r.Err != nil:
		p.fail(fmt.Errorf("staging: reading the shard back: %w", r.Err))
	case p.writing:
		p.saver.stats.written.Add(p.payload(sl))
	default:
		p.summing <- sl
		return
	}
	sl.buf.Release()
}
