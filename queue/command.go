package queue

import (
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// Command is one NVMe command with its data. The caller fills the first group of fields; the queue
// owns the Command and every buffer in Data from Submit (or from Feed.Next) until it reports the
// completion, which it does exactly once. After that the Command may be used again.
type Command struct {
	// SQE is the submission queue entry. The queue fills in CID, the PSDT flag and SGL1.
	SQE nvme.SQE
	// Data lists the buffers that the command's data is read from or written to, in order. Which it
	// is follows from the opcode. The sum of their lengths becomes the length of the SGL. Set it with SetData for one buffer.
	// What a read's buffers hold is not defined before it completes, nor after an error, nor where they overlap those of
	// another outstanding read.
	Data [][]byte
	// Done is called once, on the queue's goroutine, when a submitted command has completed. It must
	// not block. Commands of a Feed complete through Feed.Complete instead.
	Done func(*Command)
	// User is for the caller.
	User any
	// NoTimeout exempts the command from Config.CommandTimeout (Async Event Request).
	NoTimeout bool

	// CQE is the completion queue entry; all zero when none came, as for a read whose last C2HData had
	// SUCCESS. Its CID is not meaningful to callers.
	CQE nvme.CQE
	// Err is nil, an nvme.Status, an error that wraps ErrDigest, or the error that ended the queue.
	Err error
	// Issued and Completed are when the capsule was put into the send buffer and when the completion
	// was seen, in nanoseconds of a monotonic clock that all queues share. Issued is 0 for a
	// command that never left.
	Issued, Completed int64

	one       [1][]byte
	next      *Command
	feed      *feedState
	cancelled atomic.Bool
}

// reset prepares c for its next use.
func (c *Command) reset() {
	c.CQE, c.Err, c.Issued, c.Completed = nvme.CQE{}, nil, 0, 0
	c.feed = nil
	c.cancelled.Store(false)
}

// SetData makes b the command's only buffer, without an allocation. nil means no data.
func (c *Command) SetData(b []byte) {
	if b == nil {
		c.Data = nil
		return
	}
	c.one[0] = b
	c.Data = c.one[:]
}

// Latency returns the time from the capsule's entry into the send buffer to the completion, or 0 if
// the command was never sent.
func (c *Command) Latency() time.Duration {
	if c.Issued == 0 {
		return 0
	}
	return time.Duration(c.Completed - c.Issued)
}

// DataLen returns the sum of the buffers' lengths in bytes.
func (c *Command) DataLen() int {
	n := 0
	for _, b := range c.Data {
		n += len(b)
	}
	return n
}
