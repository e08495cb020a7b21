package staging

import (
	"context"
	"io"

	"github.com/nvstage/nvstage/nvmetcp"
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
	// Feed pulls reads from f on all queues until f is done, or ctx ends. It returns only when every read that Next handed
	// out has been given to Complete, because the buffers are in use until then. It calls Attach once, before the first
	// Next, and a wake-up between a Next that returned nothing and the wait for it is not lost. wake may be called after
	// Feed has returned.
	Feed(ctx context.Context, f Feed) error
}

// Feed and Read are what queues pull: the loader is a Feed.
type (
	Feed = nvmetcp.Feed
	Read = nvmetcp.Read
)

var _ Source = (*nvmetcp.Namespace)(nil)
