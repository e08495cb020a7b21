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
// A chunk goes from the producer, who starts the copies from the devices, to the summer, if there are checksums, and
// on to the queues; when it is read back, from the queues to the summer. Each takes the chunk over by a channel with room
// for all buffers, so that nobody who hands one on ever waits.
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
	filling sync.WaitGroup // copies from the devices

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
		saving: w, writing: writing, sums: sums, slots: make([]passSlot, n), bySlot: make(map[*Read]*passSlot, n),
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

	var producer, summer sync.WaitGroup
	producer.Go(p.produce)
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
	producer.Wait()
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

// produce gets a buffer for each chunk, and has it filled.
func (p *pass) produce() {
	for off := p.block; off < p.end; {
		buf, err := p.saver.Pool.Get(p.ctx)
		if err != nil {
			p.fail(err)
			return
		}
		next := min((off/p.chunk+1)*p.chunk, p.end)
		sl := &p.slots[buf.index]
		sl.buf = buf
		sl.io = Read{Write: p.writing, Off: off, Buf: buf.Bytes()[: next-off : next-off]}
		off = next
		if !p.writing {
			p.push(sl)
			continue
		}
		p.filling.Add(1)
		p.img.fill(sl.io.Buf, sl.io.Off, func(b []byte, err error) {
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
	}
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

// Next hands out the next chunk that is ready. See [Feed].
func (p *pass) Next() (r *Read, done bool) {
	for range 2 { // again when hungry is set: what came just before it woke nobody
		if p.ctx.Err() != nil || p.handed.Load() == p.chunks {
			return nil, true
		}
		select {
		case sl := <-p.ready:
			return &sl.io, p.handed.Add(1) == p.chunks
		default:
			p.hungry.Store(true)
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
