package gpu

import (
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"
)

// pageSize is what the start and the length of registered memory are multiples of.
const pageSize = 4096

// registration is host memory that the driver has pinned.
type registration struct {
	mem    []byte
	copies atomic.Int64 // in flight
}

func address(b []byte) uintptr { return uintptr(unsafe.Pointer(unsafe.SliceData(b))) }

func (r *registration) holds(b []byte) bool {
	from, to := address(r.mem), address(b)
	return to >= from && to-from <= uintptr(len(r.mem)) && uintptr(len(b)) <= uintptr(len(r.mem))-(to-from)
}

// pins counts the devices that share a registration: the drivers pin memory for all devices of the process, and refuse to do it twice.
var pins = struct {
	mu    sync.Mutex
	users map[pinned]int
}{users: map[pinned]int{}}

type pinned struct {
	library string
	at, len uintptr
}

func (d *Device) pin(mem []byte) error {
	pins.mu.Lock()
	defer pins.mu.Unlock()
	p := pinned{d.info.Library, address(mem), uintptr(len(mem))}
	if pins.users[p] == 0 {
		if err := d.drv.register(mem); err != nil {
			return err
		}
	}
	pins.users[p]++
	return nil
}

func (d *Device) unpin(mem []byte) error {
	pins.mu.Lock()
	defer pins.mu.Unlock()
	p := pinned{d.info.Library, address(mem), uintptr(len(mem))}
	if pins.users[p] == 1 {
		if err := d.drv.unregister(mem); err != nil {
			return err
		}
		delete(pins.users, p)
		return nil
	}
	pins.users[p]--
	return nil
}

// Register pins mem with the driver (cuMemHostRegister, hipHostRegister). Its start and length are multiples of 4096. It must lie outside of the Go
// heap, and stay mapped until unregister has been called. Several devices may register the same memory. Unregister refuses while copies from or to mem are in flight. Calling it again, or after Close,
// which has done it already, does nothing.
func (d *Device) Register(mem []byte) (unregister func() error, err error) {
	if len(mem) == 0 || len(mem)%pageSize != 0 || address(mem)%pageSize != 0 {
		return nil, fmt.Errorf("%s: cannot register %d bytes at %#x: want whole pages of %d bytes", d.vendor.Name, len(mem), address(mem), pageSize)
	}
	d.gate.Lock()
	defer d.gate.Unlock()
	if d.closed {
		return nil, d.closedError()
	}
	if err := d.pin(mem); err != nil {
		return nil, fmt.Errorf("registering %d bytes of host memory: %w", len(mem), err)
	}
	r := &registration{mem: mem}
	d.registered = append(d.registered, r)
	return func() error { return d.unregister(r) }, nil
}

func (d *Device) unregister(r *registration) error {
	d.gate.Lock()
	defer d.gate.Unlock()
	i := slices.Index(d.registered, r)
	if i < 0 {
		return nil
	}
	if n := r.copies.Load(); n > 0 {
		return fmt.Errorf("%s: cannot unregister %d bytes of host memory: %d copies are in flight; wait for them first", d.vendor.Name, len(r.mem), n)
	}
	if err := d.unpin(r.mem); err != nil {
		return fmt.Errorf("unregistering %d bytes of host memory: %w", len(r.mem), err)
	}
	d.registered = slices.Delete(d.registered, i, i+1)
	return nil
}

// registrationOf is the registered memory that b lies in, or nil. The caller holds gate.
func (d *Device) registrationOf(b []byte) *registration {
	for _, r := range d.registered {
		if r.holds(b) {
			return r
		}
	}
	return nil
}
