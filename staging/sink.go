package staging

import (
	"context"

	"github.com/nvstage/nvstage/nvmetcp"
)

// Sink is a block device that a [Saver] writes to: an nvmetcp namespace. Its Feed takes writes as well, of whole blocks
// and at most MaxWrite bytes ([Read].Write is set).
//
// What has completed may sit in a volatile cache, whose blocks reach the medium in any order, and are lost with the
// power, until Flush has returned. One block is stored whole or not at all, as NVMe promises; several are not.
type Sink interface {
	Source

	// MaxWrite is the largest single write of a feed in bytes; 0 means no limit.
	MaxWrite() int
	// WriteAtContext writes p, whole blocks, at off.
	WriteAtContext(ctx context.Context, p []byte, off int64) (int, error)
	// Flush makes all writes that have completed safe from a loss of power.
	Flush(ctx context.Context) error
}

var _ Sink = (*nvmetcp.Namespace)(nil)
