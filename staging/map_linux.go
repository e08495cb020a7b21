package staging

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

const hugePage = 2 << 20

// mapMemory maps n > 0 bytes of ordinary pages, aligned for transparent hugepages. Nothing is touched yet. When there is not
// enough it is an error, where the Go heap would end the process.
func mapMemory(n int64) (mem []byte, unmap func() error, err error) {
	if n > 1<<62 || int64(int(n+hugePage)) != n+hugePage {
		return nil, nil, fmt.Errorf("mmap of %d bytes: more than this system can address", n)
	}
	// One hugepage more than needed, for the alignment; what is never touched costs nothing.
	m, err := unix.Mmap(-1, 0, int(n)+hugePage, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if errors.Is(err, unix.ENOMEM) {
		return nil, nil, fmt.Errorf("mmap of %d bytes: %w: free memory, or raise a limit on address space (ulimit -v)", n, err)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("mmap of %d bytes: %w", n, err)
	}
	skip := int(-uintptr(unsafe.Pointer(&m[0])) & (hugePage - 1))
	end := skip + int(n)
	return m[skip:end:end], func() error { return unix.Munmap(m) }, nil
}

// mapHost maps memory for a tensor. Hugepages make the first touch cheaper; that they are refused does not matter.
func mapHost(n int64) (mem []byte, unmap func() error, err error) {
	if mem, unmap, err = mapMemory(n); err == nil && n >= hugePage {
		_ = unix.Madvise(mem, unix.MADV_HUGEPAGE)
	}
	return mem, unmap, err
}
