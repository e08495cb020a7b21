package nvmetcp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"time"
)

// Read is one read of a batch or a feed: len(Buf) bytes at Off. Buf belongs to the Namespace from the
// time that the Read is handed over until it has completed.
type Read struct {
	Write   bool          // in a feed: write Buf, which is whole blocks, in place of reading it. See WriteAtContext for what holds of writes
	Off     int64         // bytes from the start of the namespace; need not be at a block
	Buf     []byte        // where the data goes; any length
	Err     error         // set on completion: nil when all of Buf has been read
	Latency time.Duration // set on completion: from the command's capsule to its completion. Of several commands the longest, and the sum of those that followed each other
}

// ReadAt reads len(p) bytes at off, as [io.ReaderAt] has it: at the end of the namespace it returns
// what there is, and io.EOF. Options.CommandTimeout bounds each of its commands.
func (n *Namespace) ReadAt(p []byte, off int64) (int, error) {
	return n.ReadAtContext(context.Background(), p, off)
}

// ReadAtContext is ReadAt that ends early when ctx does. The buffer is free when it returns, whatever
// it returns: data that arrives later is thrown away.
//
// The read may have any offset and length. It is split into commands of MaxIO bytes, which run in
// parallel; what blocks have besides the range is dropped on arrival. Data that arrives damaged, and
// faults that pass at once, lead to a few more tries; a controller that has no memory for a large
// read is asked for smaller ones. The count is that of the bytes from off on that are valid.
func (n *Namespace) ReadAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	r := n.request()
	r.one[0] = p
	moved, err := n.readInto(ctx, r, r.one[:], int64(len(p)), off)
	return int(moved), err
}

// ReadVAt reads the range at off that is as long as all of bufs into them, one after another. Otherwise
// it is as ReadAtContext.
func (n *Namespace) ReadVAt(ctx context.Context, bufs [][]byte, off int64) (int64, error) {
	var total int64
	for _, b := range bufs {
		total += int64(len(b))
	}
	return n.readInto(ctx, n.request(), bufs, total, off)
}

// readInto runs r, and gives it back.
func (n *Namespace) readInto(ctx context.Context, r *request, bufs [][]byte, total, off int64) (int64, error) {
	defer r.put()
	switch {
	case off < 0:
		return 0, n.rangeError("read", total, off)
	case total == 0:
		return 0, nil
	case off >= n.size:
		return 0, io.EOF
	}
	length := min(total, n.size-off)
	r.add(ctx, false, off, length, &cursor{bufs: bufs}, nil)
	r.flush(ctx)
	if r.err == nil && length < total {
		return length, io.EOF
	}
	return r.moved, r.err
}

// ReadBatch does all of reads together, of any length each, and returns when all have completed. Each
// has its own Err; the result is the first of them. A read that goes past the end of the namespace is
// an ErrRange and reads nothing.
func (n *Namespace) ReadBatch(ctx context.Context, reads []*Read) error {
	r := n.request()
	defer r.put()
	var refused error
	for _, read := range reads {
		read.Err, read.Latency = n.inside("read", int64(len(read.Buf)), read.Off), 0
		if read.Write {
			read.Err = n.opError("write", int64(len(read.Buf)), read.Off, errors.New("a batch only reads; use WriteAt or a Feed"))
		}
		if read.Err != nil {
			if refused == nil {
				refused = read.Err
			}
			continue
		}
		r.one[0] = read.Buf
		r.add(ctx, false, read.Off, int64(len(read.Buf)), &cursor{bufs: r.one[:]}, read)
	}
	r.flush(ctx)
	if refused != nil {
		return refused
	}
	return r.err
}

// WriteAt writes len(p) bytes at off. Both must be multiples of the block size, or the error is
// ErrUnaligned: nothing is read to fill blocks up. Past the end of the namespace the error is ErrRange,
// and nothing is written.
func (n *Namespace) WriteAt(p []byte, off int64) (int, error) {
	return n.WriteAtContext(context.Background(), p, off)
}

// WriteAtContext is WriteAt that ends early when ctx does. A write that the controller may be taking
// data for then gets half a second to complete, after which the association ends, since there is no
// other way to get the buffer back.
//
// A write is sent once, unless [Options].RetryWrites allows more. After an error the content of the
// range is unknown beyond the count that is returned, and after ErrPathLost the controller may even
// change it later.
func (n *Namespace) WriteAtContext(ctx context.Context, p []byte, off int64) (int, error) {
	length := int64(len(p))
	if err := n.inside("write", length, off); err != nil {
		return 0, err
	}
	if err := n.aligned(length, off); err != nil {
		return 0, err
	}
	if n.sub.ctrl.opts.CopyWrites {
		p = bytes.Clone(p)
	}
	r := n.request()
	defer r.put()
	r.one[0] = p
	r.add(ctx, true, off, length, &cursor{bufs: r.one[:]}, nil)
	r.flush(ctx)
	return int(r.moved), r.err
}

// aligned refuses writes that are not of whole blocks.
func (n *Namespace) aligned(length, off int64) error {
	if off%n.block != 0 || length%n.block != 0 {
		return n.opError("write", length, off, fmt.Errorf("%w of %d bytes: read what is there, and write whole blocks", ErrUnaligned, n.block))
	}
	return nil
}

// inside refuses ranges that are not within the namespace.
func (n *Namespace) inside(verb string, length, off int64) error {
	if off < 0 || off > n.size || length > n.size-off {
		return n.rangeError(verb, length, off)
	}
	return nil
}

func (n *Namespace) rangeError(verb string, length, off int64) error {
	return n.opError(verb, length, off, fmt.Errorf("%w of %d bytes", ErrRange, n.size))
}

func (n *Namespace) opError(verb string, length, off int64, err error) error {
	return n.sub.ctrl.wrap(fmt.Sprintf("%s of %d bytes at %d of namespace %d", verb, length, off, n.nsid), 0, err)
}
