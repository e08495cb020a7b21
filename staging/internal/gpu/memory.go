package gpu

import (
	"fmt"
	"sync/atomic"
)

// Memory is device memory. It implements staging.Memory.
type Memory struct {
	d     *Device
	ptr   uintptr
	n     int64
	owned bool // by the device: it came from Alloc

	freed atomic.Bool
	// refs counts the owner and the copies in flight; the last one gives the memory back to the driver.
	refs atomic.Int64
}

// Len is the size in bytes.
func (m *Memory) Len() int64 { return m.n }

// Bytes is nil: the host cannot address device memory.
func (m *Memory) Bytes() []byte { return nil }

// Pointer is the device pointer (CUdeviceptr, hipDeviceptr_t), for kernels and other libraries. It is 0 for memory without bytes.
func (m *Memory) Pointer() uintptr { return m.ptr }

// Free gives the memory back, or lets go of it when it was wrapped. Copies that are still in flight are waited for behind the caller's back. Freeing
// twice panics; after the device's Close, which has freed it already, Free does nothing.
//
// The driver may let all copies finish before it frees (cuMemFree, hipFree), so memory that is freed while tensors stream costs time.
func (m *Memory) Free() {
	if m.freed.Swap(true) {
		panic(m.d.vendor.Name + ": memory freed twice")
	}
	m.unref()
}

// ref counts a copy. It fails if the memory is freed already.
func (m *Memory) ref() error {
	for {
		n := m.refs.Load()
		if n == 0 || m.freed.Load() {
			return fmt.Errorf("%s: copy from or to memory that is freed", m.d.vendor.Name)
		}
		if m.refs.CompareAndSwap(n, n+1) {
			return nil
		}
	}
}

func (m *Memory) unref() {
	if m.refs.Add(-1) == 0 && m.owned {
		m.d.release(m)
	}
}
