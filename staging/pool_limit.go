package staging

import (
	"fmt"
	"sync"
)

// Limit bounds the memory of all pools that share it, and whatever else is reserved from it: one Limit for a whole process
// is a program's --memory-limit. All methods are safe for concurrent use; it must not be copied after the first.
type Limit struct {
	// Bytes is the limit; 0 means none.
	Bytes int64

	mu   sync.Mutex
	used int64
}

// LimitError is returned where a [Limit] does not allow what was asked for.
type LimitError struct {
	Asked, Free, Limit int64 // bytes
}

func (e *LimitError) Error() string {
	return fmt.Sprintf("%s asked for, %s free of the memory limit of %s: ask for less, release something first, or raise the limit",
		sizeText(e.Asked), sizeText(e.Free), sizeText(e.Limit))
}

// Reserve takes n ≥ 0 bytes from the limit until they are released, or nothing with a [*LimitError]. It does not wait.
func (l *Limit) Reserve(n int64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 {
		return fmt.Errorf("staging: %d bytes cannot be reserved", n)
	}
	if free := max(0, l.Bytes-l.used); l.Bytes != 0 && n > free {
		return &LimitError{Asked: n, Free: free, Limit: l.Bytes}
	}
	l.used += n
	return nil
}

// Release gives n bytes back. Giving back more than was reserved panics.
func (l *Limit) Release(n int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if n < 0 || n > l.used {
		panic(fmt.Sprintf("staging: %d bytes released to a limit of which %d are reserved", n, l.used))
	}
	l.used -= n
}

// Used is what is reserved, in bytes.
func (l *Limit) Used() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.used
}
