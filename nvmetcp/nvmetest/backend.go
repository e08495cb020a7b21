package nvmetest

import (
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
)

// Backend is what a namespace stores its blocks in. Offsets and lengths are in bytes; the target
// calls it with ranges inside Size only, from several goroutines at once.
//
// A namespace has whole blocks. What ends within a block, as most safetensors files do, is to be padded,
// or its end cannot be read.
//
// A Backend may also be a [Slicer], and may have a method ReadOnly() bool.
type Backend interface {
	io.ReaderAt
	io.WriterAt
	Flush() error
	Size() int64 // bytes; what does not fill a block at the end is not used
}

// Slicer is the fast way out of a [Backend]: reads are sent from the slice that it returns, without
// a copy.
type Slicer interface {
	// Slice returns the n bytes at off, which stay valid while the target runs, or nil where only
	// ReadAt will do.
	Slice(off int64, n int) []byte
}

// ErrReadOnly is what WriteAt of a read-only [Backend] returns. The host sees Namespace is Write
// Protected.
var ErrReadOnly = errors.New("nvmetest: the backend is read-only")

func readOnly(b Backend) bool {
	r, ok := b.(interface{ ReadOnly() bool })
	return ok && r.ReadOnly()
}

// Memory returns a backend of size zero bytes in memory.
func Memory(size int64) Backend { return MemoryOf(make([]byte, size)) }

// MemoryOf returns a backend that stores in b.
func MemoryOf(b []byte) Backend { return &memory{b: b} }

type memory struct {
	mu sync.RWMutex // taken under the race detector only, see Slice
	b  []byte
}

func (m *memory) ReadAt(p []byte, off int64) (int, error) {
	if raceEnabled {
		m.mu.RLock()
		defer m.mu.RUnlock()
	}
	return copy(p, m.b[off:]), nil
}

func (m *memory) WriteAt(p []byte, off int64) (int, error) {
	if raceEnabled {
		m.mu.Lock()
		defer m.mu.Unlock()
	}
	return copy(m.b[off:], p), nil
}

func (m *memory) Flush() error { return nil }
func (m *memory) Size() int64  { return int64(len(m.b)) }

// Slice lends the memory itself. A host that reads and writes the same blocks at the same time gets
// torn blocks, as from a real device, but that is no reason for the race detector to speak.
func (m *memory) Slice(off int64, n int) []byte {
	if raceEnabled {
		return nil
	}
	return m.b[off:][:n:n]
}

// File returns a backend that stores in f, whose size is taken now. The caller closes f after the
// target.
func File(f *os.File) (Backend, error) {
	size, err := f.Seek(0, io.SeekEnd) // a block device has no size in Stat
	if err != nil {
		return nil, fmt.Errorf("nvmetest: size of %s: %w", f.Name(), err)
	}
	return &file{File: f, size: size}, nil
}

type file struct {
	*os.File
	size int64
}

func (f *file) Flush() error { return f.Sync() }
func (f *file) Size() int64  { return f.size }

// ReaderAt returns a read-only backend of the first size bytes of r. Bytes that r does not have
// make the host's read fail with Unrecovered Read Error.
func ReaderAt(r io.ReaderAt, size int64) Backend { return &reader{r, size} }

type reader struct {
	io.ReaderAt
	size int64
}

func (r *reader) WriteAt([]byte, int64) (int, error) { return 0, ErrReadOnly }
func (r *reader) Flush() error                       { return nil }
func (r *reader) Size() int64                        { return r.size }
func (r *reader) ReadOnly() bool                     { return true }

// Null returns a backend for measuring: writes vanish, and every read returns the same bytes, which
// stay in the processor's cache (byte i of any read is i mod 251).
func Null(size int64) Backend { return null(size) }

type null int64

// nullPattern is as long as the largest read that is sent without a copy.
var nullPattern = sync.OnceValue(func() []byte {
	b := make([]byte, 1<<20)
	for i := range b {
		b[i] = byte(i % 251)
	}
	return b
})

func (n null) ReadAt(p []byte, _ int64) (int, error) {
	for i := range p {
		p[i] = byte(i % 251)
	}
	return len(p), nil
}

func (n null) WriteAt(p []byte, _ int64) (int, error) { return len(p), nil }
func (n null) Flush() error                           { return nil }
func (n null) Size() int64                            { return int64(n) }

func (n null) Slice(_ int64, size int) []byte {
	if p := nullPattern(); size <= len(p) {
		return p[:size:size]
	}
	return nil
}
