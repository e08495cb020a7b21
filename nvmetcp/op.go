package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

const (
	// smallestPiece is how small pieces get, in bytes, when the controller has no memory for large ones.
	smallestPiece = 64 << 10
	// maxTries is how often a command is sent again because of a fault that passes.
	maxTries = 3
)

// op is one command's worth of a read or write: a range of the namespace that the caller sees as n
// bytes at off. Normally that takes one command. When the controller cannot do it at once, the op
// goes on in smaller chunks, one after another, with the same command.
type op struct {
	cmd   queue.Command
	ns    *Namespace
	q     *ioQueue
	req   *request     // the call that it is part of; nil for one of a feed
	read  *Read        // that it is for; nil for ReadAt and WriteAt
	stop  *atomic.Bool // set when nothing is to be issued any more
	busy  atomic.Bool  // of a feed: with the queue
	write bool
	off   int64
	n     int

	pos     int64    // where the next chunk begins, at a block boundary
	left    int      // bytes from pos on, whole blocks
	rest    [][]byte // where they go to or come from, discard buffers included
	limit   int      // bytes of a chunk at most
	chunk   int      // bytes of the command
	tries   int      // that the chunk has had again
	latency time.Duration

	scatter    [][]byte // memory for rest
	part       [][]byte // memory for the chunk's share of rest
	head, tail []byte   // discard buffers of a block, made when first needed
}

// aim makes o the read or write of n bytes at off with the data at cur. What blocks have before and
// after that goes to discard buffers, so the data itself is never copied.
func (o *op) aim(write bool, off int64, n int, cur *cursor) {
	block := o.ns.block
	head := int(off % block)
	tail := int((block - (off+int64(n))%block) % block)
	o.write, o.off, o.n = write, off, n
	o.pos, o.left = off-int64(head), head+n+tail
	o.limit, o.tries, o.latency = o.ns.maxRead, 0, 0
	if write {
		o.limit = o.ns.maxWrite
	}
	rest := o.scatter[:0]
	if head > 0 {
		rest = append(rest, discard(&o.head, block)[:head])
	}
	rest = cur.take(rest, n)
	if tail > 0 {
		rest = append(rest, discard(&o.tail, block)[:tail])
	}
	o.scatter, o.rest = rest, rest
	o.prepare()
}

func discard(b *[]byte, block int64) []byte {
	if *b == nil {
		*b = make([]byte, block)
	}
	return *b
}

// prepare makes the command for the next chunk.
func (o *op) prepare() {
	o.chunk = min(o.left, o.limit)
	o.cmd.Data = o.rest
	if o.chunk < o.left {
		cur := cursor{bufs: o.rest}
		o.part = cur.take(o.part[:0], o.chunk)
		o.cmd.Data = o.part
	}
	slba, nlb0 := uint64(o.pos/o.ns.block), uint16(int64(o.chunk)/o.ns.block-1)
	if o.write {
		o.cmd.SQE = nvme.Write(o.ns.nsid, slba, nlb0)
	} else {
		o.cmd.SQE = nvme.Read(o.ns.nsid, slba, nlb0)
	}
}

// again looks at how the command ended, and reports whether it has to be issued once more: for the
// next chunk, or because what went wrong may go right.
func (o *op) again() bool {
	o.latency += o.cmd.Latency()
	if o.cmd.Err == nil {
		o.count()
		if o.chunk == o.left {
			return false
		}
		cur := cursor{bufs: o.rest}
		cur.skip(o.chunk)
		o.rest = cur.rest()
		o.pos += int64(o.chunk)
		o.left -= o.chunk
		o.tries = 0
	} else if !o.retry() {
		return false
	}
	if o.stop.Load() {
		o.cmd.Err = context.Canceled
		return false
	}
	o.prepare()
	return true
}

// retry decides about a command that failed. Internal Error is what Linux targets say when they find
// no memory for a large transfer, so smaller ones are tried. A write is sent again only when the
// controller has answered it, so that it is not executed any more, and the caller agreed.
func (o *op) retry() bool {
	status, answered := o.cmd.Err.(nvme.Status)
	switch {
	case o.write && !(answered && o.q.retryWrites), answered && status.DNR():
		return false
	case answered && status.Code() == nvme.StatusInternalError:
		if o.chunk <= smallestPiece {
			return false
		}
		half := o.chunk / 2 / int(o.ns.block) * int(o.ns.block)
		o.limit = max(half, smallestPiece)
	case answered && passes(status.Code()), errors.Is(o.cmd.Err, ErrDigest):
		if o.tries++; o.tries > maxTries {
			return false
		}
	default:
		return false
	}
	o.q.retries.Add(1)
	return true
}

// passes tells whether a command that ended with this status is worth sending again at once. Other
// statuses that pass take time, which is the caller's to give.
func passes(c nvme.Code) bool {
	switch c {
	case nvme.StatusDataTransferError, nvme.StatusTransientTransportError, nvme.StatusCommandInterrupted:
		return true
	}
	return false
}

// count adds a chunk that was moved to the statistics.
func (o *op) count() {
	switch {
	case o.write:
		o.q.written.Add(uint64(o.chunk))
	default:
		o.q.read.Add(uint64(o.chunk))
		if o.chunk == o.left {
			o.q.asked.Add(uint64(o.n))
		}
	}
}

// failure is err as the error of the op.
func (o *op) failure(err error) error {
	verb := "read"
	if o.write {
		verb = "write"
	}
	qid := uint16(0)
	if o.q != nil {
		qid = o.q.Info().QID
	}
	e := o.ns.sub.ctrl.opError(fmt.Sprintf("%s of %d bytes at %d of namespace %d", verb, o.n, o.off, o.ns.nsid), qid, err)
	e.CID = o.cmd.SQE.CID
	return e
}

// release forgets the caller's buffers.
func (o *op) release() {
	o.cmd.Data = nil
	o.rest = nil
	clear(o.scatter)
	clear(o.part)
	o.read = nil
}

// cursor is a place in a list of buffers.
type cursor struct {
	bufs [][]byte
	off  int // in bufs[0]
}

// take appends the next n bytes to dst as slices, and moves over them.
func (c *cursor) take(dst [][]byte, n int) [][]byte {
	for n > 0 {
		b := c.bufs[0][c.off:]
		b = b[:min(n, len(b)):min(n, len(b))]
		if len(b) > 0 {
			dst = append(dst, b)
		}
		c.skip(len(b))
		n -= len(b)
	}
	return dst
}

// skip moves over n bytes, and over buffers that are used up.
func (c *cursor) skip(n int) {
	c.off += n
	for len(c.bufs) > 0 && c.off >= len(c.bufs[0]) {
		c.off -= len(c.bufs[0])
		c.bufs = c.bufs[1:]
	}
}

// rest returns what the cursor has not moved over, in the memory of the list.
func (c *cursor) rest() [][]byte {
	if len(c.bufs) > 0 {
		c.bufs[0] = c.bufs[0][c.off:]
	}
	return c.bufs
}
