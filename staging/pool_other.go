//go:build !linux

package staging

import (
	"context"
	"errors"
	"runtime"
	"unsafe"
)

// allocate takes plain memory: pinning is done on Linux only.
func (p *Pool) allocate(_ context.Context, cfg PoolConfig) error {
	if cfg.HugePages == Require || cfg.Lock == Require || cfg.Node != nil && cfg.Bind == Require {
		return errors.New("hugepages, locked memory and NUMA nodes are not available on " + runtime.GOOS)
	}
	if err := p.reserve(cfg.Limit, p.info.Bytes); err != nil {
		return err
	}
	m := make([]byte, int(p.info.Bytes)+bufferAlign)
	skip := int(-uintptr(unsafe.Pointer(&m[0])) & (bufferAlign - 1))
	p.mem = m[skip : skip+int(p.info.Bytes)]
	note := "not available on " + runtime.GOOS
	p.info.HugePagesNote, p.info.LockNote = note, note
	if cfg.Node != nil && cfg.Bind != Never {
		p.info.NodeNote = note
	}
	if cfg.Debug {
		p.info.GuardNote = note
	}
	return nil
}
