package staging

import "fmt"

// Device is where tensors end up: host memory, or a GPU's. All methods are safe for concurrent use.
type Device interface {
	// Name names the device in reports.
	Name() string
	// Alloc returns n bytes of the device's memory, contiguous and aligned for any element type. It does not wait for memory to become free.
	Alloc(n int64) (Memory, error)
	// CopyIn copies src to dst at off, and may do so behind the caller's back: until it calls done, exactly once, src is
	// being read. done may be called before CopyIn returns, and from any goroutine; it is quick. The device orders nothing:
	// copies to different places may finish in any order.
	CopyIn(dst Memory, off int64, src []byte, done func(error))
	// CopyOut copies len(dst) bytes of src from off to dst, on the same terms: until it calls done, dst is being written.
	CopyOut(dst []byte, src Memory, off int64, done func(error))
	// Close frees what the device holds. All memory must be freed before.
	Close() error
}

// Memory is contiguous memory on a device.
type Memory interface {
	// Len is the size in bytes.
	Len() int64
	// Bytes is the memory itself, or nil where the host cannot address it.
	Bytes() []byte
	// Free gives it back to the device. It may not be used after that, by copies neither.
	Free()
}

// Registrar is a [Device] that wants to know the staging memory before it copies from it, because only memory that its
// driver has pinned is copied at the rate of the link, and behind the caller's back. A pool registers all of its memory.
type Registrar interface {
	// Register pins mem, whose start and length are multiples of 4096. Nothing may be in flight when unregister is called.
	Register(mem []byte) (unregister func() error, err error)
}

// Host is the host as a device. The zero value works. Its memory lies outside the Go heap, so that a tensor too large is an error
// rather than the end of the process, and the garbage collector never waits for it: what is not freed leaks.
type Host struct{}

// Name returns "host".
func (Host) Name() string { return "host" }

// Alloc maps memory, aligned to 2 MiB; small tensors come from the Go heap.
func (Host) Alloc(n int64) (Memory, error) {
	const small = 64 << 10
	if n < 0 {
		return nil, fmt.Errorf("host: cannot allocate %d bytes", n)
	}
	if n <= small {
		// A whole number of words, which Go aligns to 8 bytes.
		b := make([]byte, (n+7)/8*8)
		return &hostMemory{b: b[:n:n]}, nil
	}
	b, unmap, err := mapHost(n)
	if err != nil {
		return nil, fmt.Errorf("host: %w", err)
	}
	return &hostMemory{b: b, unmap: unmap}, nil
}

// CopyIn copies at once and calls done before it returns.
func (Host) CopyIn(dst Memory, off int64, src []byte, done func(error)) {
	if err := InBounds(dst, off, len(src)); err != nil {
		done(fmt.Errorf("host: %w", err))
		return
	}
	copy(dst.Bytes()[off:], src)
	done(nil)
}

// CopyOut copies at once and calls done before it returns.
func (Host) CopyOut(dst []byte, src Memory, off int64, done func(error)) {
	if err := InBounds(src, off, len(dst)); err != nil {
		done(fmt.Errorf("host: %w", err))
		return
	}
	copy(dst, src.Bytes()[off:])
	done(nil)
}

// InBounds is nil if n bytes at off lie in m: for devices, which check each copy by it.
func InBounds(m Memory, off int64, n int) error {
	if size := m.Len(); off < 0 || off > size || int64(n) > size-off {
		return fmt.Errorf("staging: copy of %d bytes at %d in memory of %d", n, off, size)
	}
	return nil
}

// Close does nothing.
func (Host) Close() error { return nil }

type hostMemory struct {
	b     []byte
	unmap func() error
}

func (m *hostMemory) Len() int64    { return int64(len(m.b)) }
func (m *hostMemory) Bytes() []byte { return m.b }

func (m *hostMemory) Free() {
	m.b = nil
	if m.unmap == nil {
		return
	}
	if err := m.unmap(); err != nil { // it was mapped, so only a second Free can bring this about
		panic(fmt.Sprintf("staging: host: freeing memory: %v", err))
	}
}
