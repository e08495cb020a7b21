package nvmetest

import (
	"math/bits"
	"sync"
)

// buffer is memory for the data of one command.
type buffer struct {
	b    []byte
	full []byte // b at its whole capacity
}

// buffers hands out the most recently returned buffer of a size class, a power of two, because that
// one is still in cache.
type buffers struct {
	mu   sync.Mutex
	free [33][]*buffer
}

const (
	minBufferBits = 12
	maxFree       = 64 // of each class; what is more goes to the garbage collector
)

func (p *buffers) get(n int) *buffer {
	class := max(bits.Len(uint(max(n, 1)-1)), minBufferBits)
	p.mu.Lock()
	if s := p.free[class]; len(s) > 0 {
		buf := s[len(s)-1]
		p.free[class] = s[:len(s)-1]
		p.mu.Unlock()
		buf.b = buf.full[:n]
		return buf
	}
	p.mu.Unlock()
	full := make([]byte, 1<<class)
	return &buffer{b: full[:n], full: full}
}

func (p *buffers) put(buf *buffer) {
	if buf == nil {
		return
	}
	class := bits.Len(uint(len(buf.full) - 1))
	p.mu.Lock()
	if len(p.free[class]) < maxFree {
		p.free[class] = append(p.free[class], buf)
	}
	p.mu.Unlock()
}
