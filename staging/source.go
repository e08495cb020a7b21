package staging

import (
	"context"
	"io"
	"time"
)

// Source is a block device that a shard lies on: an nvmetcp namespace, or a [ReaderSource] over a file.
type Source interface {
	io.ReaderAt

	// Size is the capacity in bytes.
	Size() int64
	// BlockSize is the logical block size in bytes.
	BlockSize() int
	// MaxIO is the largest single read in bytes; 0 means no limit.
	MaxIO() int
	// Feed pulls reads from f on all queues until f is done, or ctx ends. It returns only when every read that
	// Next handed out has been given to Complete, because the buffers are in use until then.
	Feed(ctx context.Context, f Feed) error
}

// Feed gives the queues of a source their next read. Next and Complete are called on the queues' own threads, several
// at once: they are quick, do not block, and do not allocate in steady state.
type Feed interface {
	// Next returns the next read. nil and false: nothing now, wait for wake. done: never anything again after this one.
	Next() (r *Read, done bool)
	// Complete says how r went (r.Err) and gives its buffer back to the feed. Exactly once per read.
	Complete(r *Read)
	// Attach is called once before the first Next. wake makes the queues ask again; it may be called from any goroutine and
	// at any time: between a Next that returned nothing and the wait for it, where it is not lost, and after Feed returned.
	Attach(wake func())
}

// Read is one read of a feed.
type Read struct {
	// Off is the first byte on the device, Buf where the bytes go: any offset and any length up to MaxIO. Block-aligned
	// ones go straight into Buf.
	Off int64
	Buf []byte
	// Err says how the read went, Latency how long it took from submission to completion; both set before Complete.
	Err     error
	Latency time.Duration
}
