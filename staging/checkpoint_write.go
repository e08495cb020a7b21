package staging

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"time"
)

// superblock is where EROFS and ext4 have theirs.
const superblock = 1024

// undoTimeout bounds the removal of a shard that turned out wrong, in a context that may have ended.
const undoTimeout = 10 * time.Second

// saving is one save.
type saving struct {
	saver *Saver
	sink  Sink
	img   image
	block int64
	end   int64 // of the image, whole blocks
	chunk int64 // longest write and read, whole blocks
}

// write stores img in the order that a crash cannot tear. Only the first block decides whether there is a shard, and a
// block is stored whole or not at all, so nothing else needs an order. A flush stands wherever one thing must be on the
// medium before the next may get there.
func (s *Saver) write(ctx context.Context, sink Sink, img image) error {
	w, err := s.plan(sink, img)
	if err == nil {
		err = context.Cause(ctx)
	}
	left := LeftAsItWas
	if err == nil {
		left, err = w.run(ctx)
	}
	if err == nil {
		return nil
	}
	if cause := context.Cause(ctx); cause != nil {
		err = cause
	}
	return &SaveError{Left: left, Err: err}
}

// plan checks what can be checked before anything is written.
func (s *Saver) plan(sink Sink, img image) (*saving, error) {
	if s.Pool == nil {
		return nil, errors.New("staging: the saver has no pool")
	}
	w := &saving{saver: s, sink: sink, img: img, block: int64(sink.BlockSize()), chunk: int64(s.Pool.info.BufferSize)}
	if w.block <= 0 || sink.MaxIO() < 0 || sink.MaxWrite() < 0 {
		return nil, fmt.Errorf("staging: sink with blocks of %d bytes, reads of %d and writes of %d", w.block, sink.MaxIO(), sink.MaxWrite())
	}
	for _, limit := range []int{sink.MaxIO(), sink.MaxWrite()} {
		if limit > 0 {
			w.chunk = min(w.chunk, int64(limit))
		}
	}
	if w.chunk -= w.chunk % w.block; w.chunk == 0 {
		return nil, fmt.Errorf("staging: buffers of %d bytes, reads of at most %d and writes of at most %d cannot hold a block of %d",
			s.Pool.info.BufferSize, sink.MaxIO(), sink.MaxWrite(), w.block)
	}
	room := sink.Size() / w.block * w.block
	if img.size <= 0 || img.size > room {
		return nil, fmt.Errorf("staging: a shard of %d bytes does not fit a sink of %d", img.size, room)
	}
	w.end = (img.size + w.block - 1) / w.block * w.block
	s.stats.total.Store(img.size)
	s.stats.written.Store(0)
	s.stats.verified.Store(0)
	return w, nil
}

func (w *saving) run(ctx context.Context) (Left, error) {
	first, err := w.first(ctx)
	if err != nil {
		return LeftAsItWas, err
	}
	if err := w.invalidate(ctx); err != nil {
		return LeftUncertain, err
	}
	if err := w.body(ctx); err != nil {
		return LeftNoShard, err
	}
	if err := w.commit(ctx, first); err != nil {
		undo, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		// No other block: the first one may yet get there, late, and then all else must be as it says.
		if w.store(undo, make([]byte, w.block), 0) != nil {
			return LeftUncertain, err
		}
		return LeftNoShard, err
	}
	return LeftNoShard, nil
}

// invalidate makes the sink hold nothing that a reader knows: neither a shard nor a file system. Block by block, since
// what is known by one block must not lose another first.
func (w *saving) invalidate(ctx context.Context) error {
	zeros := make([]byte, w.block)
	if err := w.store(ctx, zeros, 0); err != nil {
		return err
	}
	if off := superblock / w.block * w.block; off > 0 && off+w.block <= w.sink.Size() {
		return w.store(ctx, zeros, off)
	}
	return nil
}

// store writes b at off, and has it stored when it returns.
func (w *saving) store(ctx context.Context, b []byte, off int64) error {
	if _, err := w.sink.WriteAtContext(ctx, b, off); err != nil {
		return fmt.Errorf("staging: writing the shard: %w", err)
	}
	return w.flush(ctx)
}

func (w *saving) flush(ctx context.Context) error {
	if err := w.sink.Flush(ctx); err != nil {
		return fmt.Errorf("staging: writing the shard: %w", err)
	}
	return nil
}

// body stores all but the first block.
func (w *saving) body(ctx context.Context) error {
	var sums []uint32
	if w.saver.Verify {
		sums = make([]uint32, (w.end+w.chunk-1)/w.chunk)
	}
	if err := w.pass(ctx, true, sums); err != nil {
		return err
	}
	if err := w.flush(ctx); err != nil {
		return err
	}
	if w.saver.Verify {
		return w.pass(ctx, false, sums)
	}
	return nil
}

// first is what the first block is to be.
func (w *saving) first(ctx context.Context) ([]byte, error) {
	buf, err := w.saver.Pool.Get(ctx) // devices copy to staging memory
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	var first []byte
	done := make(chan error, 1)
	w.img.fill(buf.Bytes()[:w.block], 0, func(b []byte, err error) {
		first = bytes.Clone(b)
		done <- err
	})
	err = <-done
	return first, err
}

// commit stores the first block.
func (w *saving) commit(ctx context.Context, first []byte) error {
	if err := w.store(ctx, first, 0); err != nil {
		return err
	}
	n := min(w.block, w.img.size)
	w.saver.stats.written.Add(n)
	if !w.saver.Verify {
		return nil
	}
	back := make([]byte, len(first))
	if err := readFull(ctx, w.sink, back, 0, "back the first block, "); err != nil {
		return fmt.Errorf("staging: %w", err)
	}
	if !bytes.Equal(first, back) {
		return fmt.Errorf("staging: %w: the first block", ErrVerify)
	}
	w.saver.stats.verified.Add(n)
	return nil
}
