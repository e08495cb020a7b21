package staging

import (
	"context"
	"errors"
	"io"
	"sync"
	"time"
)

// ReaderSource makes a [Source] of any io.ReaderAt, such as a file: for tests, and to compare a shard with its file.
type ReaderSource struct {
	io.ReaderAt

	// Bytes is the size of the source.
	Bytes int64
	// Block is the block size in bytes; 0 means 4096.
	Block int
	// IO is the largest read in bytes; 0 means 1 MiB.
	IO int
	// Queues is the number of reads in flight, each on a goroutine of its own; 0 means 4.
	Queues int
}

// Size returns Bytes.
func (s *ReaderSource) Size() int64 { return s.Bytes }

// BlockSize returns the block size in bytes.
func (s *ReaderSource) BlockSize() int { return orDefault(s.Block, 4096) }

// MaxIO returns the largest read in bytes.
func (s *ReaderSource) MaxIO() int { return orDefault(s.IO, 1<<20) }

// Feed runs f on Queues goroutines. See [Source].
func (s *ReaderSource) Feed(ctx context.Context, f Feed) error {
	var (
		mu     sync.Mutex
		cond   = sync.NewCond(&mu)
		wakes  int // counts wake calls, so that none is lost between Next and Wait
		failed error
		wg     sync.WaitGroup
	)
	wake := func() {
		mu.Lock()
		wakes++
		mu.Unlock()
		cond.Broadcast()
	}
	f.Attach(wake)
	defer context.AfterFunc(ctx, wake)()
	queue := func() {
		defer wake() // done for one is done for all
		for {
			mu.Lock()
			seen := wakes
			mu.Unlock()
			if err := context.Cause(ctx); err != nil {
				mu.Lock()
				failed = err
				mu.Unlock()
				return
			}
			r, done := f.Next()
			if r != nil {
				s.read(r)
				f.Complete(r)
			}
			if done {
				return
			}
			if r == nil {
				mu.Lock()
				for wakes == seen {
					cond.Wait()
				}
				mu.Unlock()
			}
		}
	}
	for range orDefault(s.Queues, 4) {
		wg.Go(queue)
	}
	wg.Wait()
	return failed
}

func (s *ReaderSource) read(r *Read) {
	start := time.Now()
	n, err := s.ReadAt(r.Buf, r.Off)
	switch {
	case n == len(r.Buf):
		err = nil
	case err == nil || errors.Is(err, io.EOF):
		err = io.ErrUnexpectedEOF
	}
	r.Err, r.Latency = err, time.Since(start)
}

func orDefault(v, def int) int {
	if v == 0 {
		return def
	}
	return v
}
