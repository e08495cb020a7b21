package staging

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// ErrVerify: what was read back is not what was written.
var ErrVerify = errors.New("what was read back is not what was written")

// Saver writes shards to block devices, so that a crash at any moment leaves a whole shard or none, never a torn one.
// Only Pool is needed. A saver does one save at a time; it must not be copied after the first.
//
// The first block makes a shard of what is there. It is overwritten with zeros before anything else changes, and gets
// its content after all else is safely stored; flushes keep the order even where a cache is lost with the power. The
// old shard is gone with the first write, so keep checkpoints in turn on two namespaces to always have one. Nobody else
// may write to the sink meanwhile, and who still reads the old shard gets a mixture.
type Saver struct {
	// Pool holds the staging buffers. Writes are cut to its BufferSize and the sink's MaxWrite; how many are in flight is
	// bounded by its number of buffers.
	Pool *Pool
	// Verify reads everything back and compares checksums, the data before the first block is written. It proves the way
	// to the device and back, not the medium under its cache, and takes as long as loading the shard.
	Verify bool
	// OnIO, if not nil, sees each completed write of data (its Latency, its Err), and with Verify each read, on the
	// queues' threads and several at once. It must be quick and keep nothing of r.
	OnIO func(r *Read)

	stats struct{ total, written, verified atomic.Int64 }
}

// SaveStats says how far a save is. All counts are bytes of the shard.
type SaveStats struct {
	Total    int64
	Written  int64
	Verified int64
}

// Stats returns the counts of the present save, or else the last one. It may be called at any time.
func (s *Saver) Stats() SaveStats {
	return SaveStats{Total: s.stats.total.Load(), Written: s.stats.written.Load(), Verified: s.stats.verified.Load()}
}

// SaveTensor is a tensor to be saved. Begin and End of its TensorInfo are not used.
type SaveTensor struct {
	TensorInfo

	// Memory holds exactly the tensor's bytes, and must not change until Save has returned: what lies on the host is
	// written from there, without a copy. It may be nil for a tensor without bytes.
	Memory Memory
	// Device is whose memory it is; nil means [Host].
	Device Device
}

// HostBytes is b as memory of the [Host]. Free leaves b alone.
func HostBytes(b []byte) Memory { return &hostMemory{b: b} }

// Save writes the tensors as a safetensors shard at the start of sink: one behind the other in this order, and the first
// at a block boundary, for which the header is filled up with spaces. See [NewHeader] about names and alignment. It
// returns the shard's header.
//
// Errors are a [*SaveError] around what failed: the sink's error, the device's, the cause of ctx, [ErrVerify]. When Save
// has returned, no write and no copy is in flight, and all buffers are back in the pool.
func (s *Saver) Save(ctx context.Context, sink Sink, tensors []SaveTensor, metadata map[string]string) (*Header, error) {
	c, err := newCheckpoint(tensors, metadata, sink.BlockSize())
	if err != nil {
		return nil, &SaveError{Left: LeftAsItWas, Err: err}
	}
	if err := s.write(ctx, sink, image{size: c.header.Size, fill: c.fill}); err != nil {
		return nil, err
	}
	return c.header, nil
}

// Copy writes a shard that is already in its form, such as a file: the first size bytes of r to the start of sink, filled
// up with zeros to a block. It may be of any format that begins with its magic. r is read at several places at once.
// Otherwise it is as [Saver.Save].
func (s *Saver) Copy(ctx context.Context, sink Sink, r io.ReaderAt, size int64) error {
	return s.write(ctx, sink, image{size: size, fill: func(dst []byte, off int64, done func([]byte, error)) {
		go func() { done(dst, readChunk(r, dst, off, size)) }() // a file may be slow, and the queues wait for nothing
	}})
}

// readChunk reads what is at off in the first size bytes of r, with zeros behind them.
func readChunk(r io.ReaderAt, dst []byte, off, size int64) error {
	n := min(int64(len(dst)), size-off)
	clear(dst[n:])
	if got, err := r.ReadAt(dst[:n], off); int64(got) < n {
		if err == nil || errors.Is(err, io.EOF) {
			err = io.ErrUnexpectedEOF
		}
		return fmt.Errorf("staging: reading what is to be written, %d bytes at %d: %w", n, off, err)
	}
	return nil
}

// Left is what a save that failed has left on its sink.
type Left int

// What there may be: never a torn shard.
const (
	LeftAsItWas   Left = iota // nothing has been written
	LeftNoShard               // the sink holds no shard
	LeftUncertain             // the old shard, the new one, or none
)

// String says it in words.
func (l Left) String() string {
	switch l {
	case LeftAsItWas:
		return "nothing was written"
	case LeftNoShard:
		return "there is no shard now"
	default:
		return "there may be no shard now"
	}
}

// SaveError is a save that failed. It unwraps to the reason.
type SaveError struct {
	Left Left
	Err  error
}

func (e *SaveError) Error() string { return e.Err.Error() + "; " + e.Left.String() }

func (e *SaveError) Unwrap() error { return e.Err }
