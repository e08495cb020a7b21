//go:build !linux

package staging

import (
	"errors"
	"runtime"
	"unsafe"
)

// allocate takes plain memory: pinning is done on Linux only.
func (p *Pool) allocate(cfg PoolConfig) error {
	if cfg.HugePages == Require || cfg.Lock == Require {
		return errors.New("hugepages and locked memory are not available on " + runtime.GOOS)
	}
	m := make([]byte, int(p.info.Bytes)+bufferAlign)
	skip := int(-uintptr(unsafe.Pointer(&m[0])) & (bufferAlign - 1))
	p.mem = m[skip : skip+int(p.info.Bytes)]
	p.unmap = func() error { return nil }
	p.info.HugePagesNote = "not available on " + runtime.GOOS
	p.info.LockNote = "not available on " + runtime.GOOS
	return nil
}
