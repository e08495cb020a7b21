package staging

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"time"
)

// lz4MaxReads bounds the reads that a run takes from its reader at a time.
const lz4MaxReads = 1024

// lz4Run is one Feed of an [LZ4Source].
//
// Blocks go through it in one line, in the order in which the reader's reads want them. Each gets a buffer and is read
// into it (reading), is decoded when it is whole (decoding), and is settled: hashed where the frame is read in order, and
// told to the reads that wanted it. Everything is begun in the order of the line, so that the first block of it never
// waits for what the others hold; only the reads of the source below and the decoding finish in any order.
//
// Settled blocks stay in their buffers until these are needed, for reads that want the rest of them.
type lz4Run struct {
	s       *LZ4Source
	ctx     context.Context // the caller's
	layout  lz4Layout
	reader  Feed
	cancel  context.CancelCauseFunc // of the reads below
	buffers map[*Read]*lz4Buffer

	mu       sync.Mutex
	work     sync.Cond // for workers: something to decode or to settle, or the end
	room     sync.Cond // for the puller: the reader was woken, or the line is shorter
	err      error     // the first one
	wakes    int       // counts reasons to ask the reader again
	done     bool      // the reader has no more reads
	reads    map[*lz4Read]struct{}
	line     []*lz4Work
	placed   int // how many of the line have a buffer, have all their reads handed out, have a worker
	issued   int
	taken    int
	settling bool
	live     map[*lz4Block]*lz4Work // in line or kept, unless decoded into the reader's buffer
	kept     []*lz4Work             // settled, the least recently used first
	in, out  []*lz4Buffer           // free
	wake     func()
	hungry   bool
	flying   int // reads of the source below

	asked  map[*lz4Frame]int // blocks before it have been in line, or are sure
	hashes map[*lz4Frame]*lz4Hash
}

// lz4Buffer is memory for one block, and the reads that fill it.
type lz4Buffer struct {
	mem   []byte
	reads []Read
	work  *lz4Work
}

// lz4Read is a read of the reader's.
type lz4Read struct {
	*Read

	left  int // bytes that are not settled
	begun time.Time
}

// lz4Work is a block on its way.
type lz4Work struct {
	frame *lz4Frame
	block int
	want  []lz4Part
	given int // of want: copied

	in          *lz4Buffer // compressed
	from        int64      // where on the source the buffer begins
	next, until int64      // what of the source is still to be read
	missing     int        // reads that have not completed

	out     *lz4Buffer // decoded; nil when that is in the reader's buffer
	data    []byte     // the decoded bytes, from decoding on
	decoded bool
	settled bool
	users   int // copies out of a kept block
}

// lz4Part is a part of a block that a read wants.
type lz4Part struct {
	read *lz4Read
	from int // in the block
	to   []byte
}

// lz4Hash is the content checksum of a frame while its blocks come in order.
type lz4Hash struct {
	xxh32

	next   int // the block
	broken bool
}

// covers is whether all of the content has been hashed.
func (h *lz4Hash) covers(f *lz4Frame) bool { return int64(h.total) == f.size }

// Feed reads what f hands out. Each Read may have any offset and length. See [Source].
//
// The first error, whether of the source below or of a block, ends the feed: all reads that it held complete with it.
func (s *LZ4Source) Feed(ctx context.Context, f Feed) error {
	if err := context.Cause(ctx); err != nil {
		return err
	}
	layout, err := s.layout()
	if err != nil {
		return err
	}
	mem, unmap, err := mapHost(int64(layout.buffer) * int64(layout.in+layout.out))
	if err != nil {
		return fmt.Errorf("staging: LZ4: %w", err)
	}
	below, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	e := &lz4Run{
		s: s, ctx: ctx, layout: layout, reader: f, cancel: cancel,
		buffers: map[*Read]*lz4Buffer{}, reads: map[*lz4Read]struct{}{}, live: map[*lz4Block]*lz4Work{},
		asked: map[*lz4Frame]int{}, hashes: map[*lz4Frame]*lz4Hash{},
	}
	e.work.L, e.room.L = &e.mu, &e.mu
	e.divide(mem)
	f.Attach(e.again)
	defer context.AfterFunc(ctx, func() { e.fail(context.Cause(ctx)) })()

	var running sync.WaitGroup
	running.Go(func() { e.below(below) })
	for range s.workers {
		running.Go(e.worker)
	}
	e.pull()
	running.Wait()

	e.mu.Lock()
	err = e.err
	e.mu.Unlock()
	for r := range e.reads {
		r.Err, r.Latency = err, time.Since(r.begun)
		f.Complete(r.Read)
	}
	for f, h := range e.hashes {
		if !h.covers(f) {
			s.stats.contentUnverified.Add(1)
		}
	}
	if e.flying > 0 {
		return err // the source broke its promise: what it may still write to is lost
	}
	if uerr := unmap(); err == nil {
		err = uerr
	}
	return err
}

// divide makes the buffers.
func (e *lz4Run) divide(mem []byte) {
	size := e.layout.buffer
	for i := range e.layout.in + e.layout.out {
		b := &lz4Buffer{mem: mem[i*size : (i+1)*size : (i+1)*size], reads: make([]Read, int64(size)/e.layout.chunk+1)}
		for k := range b.reads {
			e.buffers[&b.reads[k]] = b
		}
		if i < e.layout.in {
			e.in = append(e.in, b)
		} else {
			e.out = append(e.out, b)
		}
	}
}

// again makes the puller ask the reader again.
func (e *lz4Run) again() {
	e.mu.Lock()
	e.wakes++
	e.mu.Unlock()
	e.room.Broadcast()
}

// fail records the first error and stops everything. An error caused by the end of ctx is the cause of that.
func (e *lz4Run) fail(err error) {
	e.mu.Lock()
	if e.err == nil {
		e.err = err
		if cause := context.Cause(e.ctx); cause != nil {
			e.err = cause
		}
	}
	wake := e.wake
	e.mu.Unlock()
	e.cancel(err)
	e.work.Broadcast()
	e.room.Broadcast()
	if wake != nil {
		wake()
	}
}

// pull takes reads from the reader until it is done.
func (e *lz4Run) pull() {
	for {
		e.mu.Lock()
		for e.err == nil && (e.full() || len(e.reads) >= lz4MaxReads) {
			e.room.Wait()
		}
		seen, err := e.wakes, e.err
		e.mu.Unlock()
		if err != nil {
			return
		}
		r, done := e.reader.Next()
		if r != nil {
			e.accept(r)
		}
		if done {
			break
		}
		if r == nil {
			e.mu.Lock()
			for e.wakes == seen && e.err == nil {
				e.room.Wait()
			}
			e.mu.Unlock()
		}
	}
	e.mu.Lock()
	e.done = true
	wake := e.wake
	e.mu.Unlock()
	e.work.Broadcast()
	if wake != nil {
		wake()
	}
}

// full is whether the line is long enough to keep everybody busy. The caller holds mu.
func (e *lz4Run) full() bool { return len(e.line) >= 2*(e.layout.in+e.layout.out) }

// accept puts the blocks that r wants in line.
func (e *lz4Run) accept(r *Read) {
	r.Err, r.Latency = nil, 0
	n := len(r.Buf)
	switch {
	case r.Write:
		r.Err = errLZ4ReadOnly
	case r.Off < 0 || r.Off > e.s.size || int64(n) > e.s.size-r.Off:
		r.Err = fmt.Errorf("staging: LZ4: read of %d bytes at %d, of %d decompressed bytes: %w", n, r.Off, e.s.size, io.ErrUnexpectedEOF)
	}
	if r.Err != nil || n == 0 {
		e.reader.Complete(r)
		e.again()
		return
	}
	read := &lz4Read{Read: r, left: n, begun: time.Now()}
	e.mu.Lock()
	e.reads[read] = struct{}{}
	e.mu.Unlock()
	for to := r.Buf; len(to) > 0; {
		at := r.Off + int64(n-len(to))
		f, k := e.s.locate(at)
		if !e.makeSure(f, k) {
			return
		}
		from := int(at - f.dst - int64(k)*f.blockMax)
		take := min(f.length(k)-from, len(to))
		if !e.want(f, k, &lz4Part{read, from, to[:take:take]}) {
			return
		}
		to = to[take:]
	}
}

// makeSure puts the blocks before k in line, as far as nobody knows yet that they are full.
func (e *lz4Run) makeSure(f *lz4Frame, k int) bool {
	next := max(e.asked[f], int(f.sure.Load()))
	for ; next < k; next++ {
		if !e.want(f, next, nil) {
			return false
		}
	}
	e.asked[f] = max(next, k+1)
	return true
}

// want puts a block in line for a part of it; nil means only that it is to be decoded. It is false when the run has failed.
func (e *lz4Run) want(f *lz4Frame, k int, p *lz4Part) bool {
	e.mu.Lock()
	for e.err == nil && e.full() {
		e.room.Wait()
	}
	if e.err != nil {
		e.mu.Unlock()
		return false
	}
	w := e.live[&f.blocks[k]]
	switch {
	case w == nil:
		w = &lz4Work{frame: f, block: k}
		e.live[&f.blocks[k]] = w
		e.line = append(e.line, w)
	case p == nil:
		e.mu.Unlock()
		return true
	case w.settled:
		w.users++
		i := slices.Index(e.kept, w)
		e.kept = append(slices.Delete(e.kept, i, i+1), w)
		e.mu.Unlock()
		copy(p.to, w.data[p.from:])
		e.mu.Lock()
		w.users--
		whole := e.settle(*p)
		e.mu.Unlock()
		e.work.Broadcast() // the buffer may be awaited
		if whole {
			e.complete(p.read)
		}
		return true
	}
	if p != nil {
		w.want = append(w.want, *p)
	}
	wake := e.place()
	e.mu.Unlock()
	if wake != nil {
		wake()
	}
	return true
}

// place gives buffers to those in line as far as there are some, and returns what wakes the source below. The caller holds mu.
func (e *lz4Run) place() (wake func()) {
	for ; e.placed < len(e.line) && len(e.in) > 0; e.placed++ {
		w := e.line[e.placed]
		w.in, e.in = e.in[len(e.in)-1], e.in[:len(e.in)-1]
		w.in.work = w
		block := int64(e.s.src.BlockSize())
		start, end := w.frame.span(w.block)
		w.from = start - start%block
		w.next, w.until = w.from, min((end+block-1)/block*block, e.s.src.Size())
		w.missing = int((w.until - w.from + e.layout.chunk - 1) / e.layout.chunk)
		if e.hungry {
			e.hungry, wake = false, e.wake
		}
	}
	return wake
}

// below reads the compressed bytes.
func (e *lz4Run) below(ctx context.Context) {
	err := e.s.src.Feed(ctx, lz4Below{e})
	e.mu.Lock()
	e.wake = nil
	switch {
	case err != nil:
	case e.flying > 0:
		err = fmt.Errorf("staging: LZ4: the source returned with %d reads in flight", e.flying)
	case !e.done || e.issued < len(e.line):
		err = fmt.Errorf("staging: LZ4: the source returned before everything was read")
	}
	e.mu.Unlock()
	if err != nil {
		e.fail(err)
	}
}

// lz4Below is what a run is to the source below.
type lz4Below struct{ *lz4Run }

func (e lz4Below) Attach(wake func()) {
	e.mu.Lock()
	e.wake = wake
	e.mu.Unlock()
}

func (e lz4Below) Next() (r *Read, done bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.err != nil || e.done && e.issued == len(e.line) {
		return nil, true
	}
	if e.issued == e.placed {
		e.hungry = true
		return nil, false
	}
	w := e.line[e.issued]
	n := min(e.layout.chunk, w.until-w.next)
	at := w.next - w.from
	r = &w.in.reads[at/e.layout.chunk]
	*r = Read{Off: w.next, Buf: w.in.mem[at : at+n : at+n]}
	e.flying++
	if w.next += n; w.next == w.until {
		e.issued++
	}
	return r, false
}

func (e lz4Below) Complete(r *Read) {
	e.mu.Lock()
	w := e.buffers[r].work
	e.flying--
	if r.Err == nil {
		w.missing--
	}
	arrived := w.missing == 0
	read := *r // which is the next block's as soon as this one is decoded
	frame, block := w.frame, w.block
	e.mu.Unlock()
	e.s.stats.compressed.Add(int64(len(read.Buf)))
	switch {
	case read.Err != nil:
		e.fail(frame.fail(block, fmt.Errorf("reading %d bytes at %d: %w", len(read.Buf), read.Off, read.Err)))
	case arrived:
		e.work.Broadcast()
	}
}

// worker decodes and settles until the line has ended.
func (e *lz4Run) worker() {
	c := &e.s.stats
	mark := time.Now()
	lap := func() int64 {
		t := time.Since(mark)
		mark = mark.Add(t)
		return int64(t)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	for e.err == nil {
		switch {
		case !e.settling && len(e.line) > 0 && e.line[0].decoded:
			e.settleFirst()
			c.decodeTime.Add(lap())
			continue
		case e.taken < e.placed && e.ready(e.line[e.taken]):
			e.decode(e.line[e.taken])
			c.decodeTime.Add(lap())
			continue
		case e.done && len(e.line) == 0:
			return
		}
		waits := &c.outputWait
		switch {
		case e.taken < e.placed && e.line[e.taken].missing == 0:
			waits = &c.decodeTime // of another worker
		case e.taken < len(e.line):
			waits = &c.inputWait
		}
		e.work.Wait()
		waits.Add(lap())
	}
}

// ready is whether w can be decoded now; then it has what it needs. The caller holds mu.
func (e *lz4Run) ready(w *lz4Work) bool {
	if w.missing > 0 {
		return false
	}
	if len(w.want) == 1 && len(w.want[0].to) == w.frame.length(w.block) {
		return true // into the reader's buffer
	}
	if len(e.out) == 0 {
		i := slices.IndexFunc(e.kept, func(k *lz4Work) bool { return k.users == 0 })
		if i < 0 {
			return false
		}
		k := e.kept[i]
		e.kept = slices.Delete(e.kept, i, i+1)
		delete(e.live, &k.frame.blocks[k.block])
		e.out = append(e.out, k.out)
	}
	w.out, e.out = e.out[len(e.out)-1], e.out[:len(e.out)-1]
	return true
}

// decode decodes w and gives its parts to those who want them. The caller holds mu, which is released meanwhile.
func (e *lz4Run) decode(w *lz4Work) {
	e.taken++
	f, k := w.frame, w.block
	start, end := f.span(k)
	in := w.in.mem[start-w.from : end-w.from]
	n := f.length(k)
	stored := f.blocks[k].stored()
	switch {
	case w.out == nil:
		delete(e.live, &f.blocks[k])
		w.data, w.given = w.want[0].to, 1
	case stored: // what was read is what is wanted: the buffers change places
		w.in, w.out = w.out, w.in
		w.data = in[:n:n]
	default:
		w.data = w.out.mem[:n:n]
	}
	e.mu.Unlock()
	var err error
	if w.out != nil && stored {
		_, err = f.check(k, in)
	} else {
		err = f.fill(k, in, w.data)
	}
	if err != nil {
		e.fail(err)
		e.mu.Lock()
		return
	}
	e.s.stats.decoded.Add(int64(n))
	e.mu.Lock()
	e.give(w)
	w.decoded = true
	e.in = append(e.in, w.in)
	w.in = nil
	wake := e.place()
	e.mu.Unlock()
	if wake != nil {
		wake()
	}
	e.work.Broadcast()
	e.mu.Lock()
}

// give copies the parts of w that are wanted. The caller holds mu, which is released meanwhile.
func (e *lz4Run) give(w *lz4Work) {
	for w.given < len(w.want) {
		p := w.want[w.given]
		w.given++
		e.mu.Unlock()
		copy(p.to, w.data[p.from:])
		e.mu.Lock()
	}
}

// settleFirst settles the first block in line. The caller holds mu, which is released meanwhile.
func (e *lz4Run) settleFirst() {
	w := e.line[0]
	f := w.frame
	e.settling = true
	if f.contentSum {
		e.mu.Unlock()
		err := e.hash(w)
		if err != nil {
			e.fail(err)
			e.mu.Lock()
			return
		}
		e.mu.Lock()
	}
	e.give(w) // what was asked for since it was decoded
	f.settled(w.block)
	w.settled, e.settling = true, false
	e.line[0] = nil
	e.line = e.line[1:]
	e.placed--
	e.issued--
	e.taken--
	if w.out != nil {
		e.kept = append(e.kept, w)
	}
	var whole []*lz4Read
	for _, p := range w.want {
		if e.settle(p) {
			whole = append(whole, p.read)
		}
	}
	w.want = nil
	e.mu.Unlock()
	e.work.Broadcast()
	for _, r := range whole {
		e.complete(r)
	}
	e.room.Broadcast()
	e.mu.Lock()
}

// settle notes that a part has been read, and says whether its read is whole. The caller holds mu.
func (e *lz4Run) settle(p lz4Part) (whole bool) {
	p.read.left -= len(p.to)
	if p.read.left > 0 || e.err != nil { // after an error, everything completes with it
		return false
	}
	delete(e.reads, p.read)
	return true
}

func (e *lz4Run) complete(r *lz4Read) {
	e.s.stats.bytes.Add(int64(len(r.Buf)))
	r.Latency = time.Since(r.begun)
	e.reader.Complete(r.Read)
	e.again()
}

// hash carries the content checksum of w's frame on, and compares it at the end. Only the settler calls it.
func (e *lz4Run) hash(w *lz4Work) error {
	f := w.frame
	h := e.hashes[f]
	if h == nil {
		h = &lz4Hash{xxh32: *newXXH32()}
		e.hashes[f] = h
	}
	switch {
	case h.broken || w.block < h.next: // once more
		return nil
	case w.block > h.next:
		h.broken = true
		return nil
	}
	h.write(w.data)
	if h.next++; !h.covers(f) {
		return nil
	}
	if sum := h.sum(); sum != f.sum {
		return f.fail(w.block, fmt.Errorf("%w: content checksum %#08x, the content has %#08x", ErrLZ4, f.sum, sum))
	}
	e.s.stats.contentVerified.Add(1)
	return nil
}
