//go:build !linux

package staging

import "fmt"

// mapHost takes memory for a tensor from the Go heap.
func mapHost(n int64) (mem []byte, unmap func() error, err error) {
	if n > 1<<40 || int64(int(n)) != n {
		return nil, nil, fmt.Errorf("%d bytes are more than this system can address", n)
	}
	return make([]byte, n), func() error { return nil }, nil
}
