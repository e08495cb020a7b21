package gpu

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/nvstage/nvstage/staging"
)

var (
	_ staging.Device    = (*Device)(nil)
	_ staging.Registrar = (*Device)(nil)
	_ staging.Memory    = (*Memory)(nil)
)

// Device is an open device. It implements staging.Device and staging.Registrar. All methods are safe for concurrent use, on any goroutine and any
// thread.
type Device struct {
	vendor  *Vendor
	drv     driver
	info    Info
	tracing bool

	lanes   [2][]*lane // by direction
	turn    [2]atomic.Uint32
	running sync.WaitGroup
	failure atomic.Pointer[error]
	counts  [2]struct{ copies, bytes atomic.Int64 }
	slow    atomic.Int64 // bytes

	// gate is held for reading by all that call the driver; Close and registrations hold it alone.
	gate       sync.RWMutex
	closed     bool
	registered []*registration

	mu    sync.Mutex
	live  map[*Memory]struct{} // from Alloc
	bytes int64                // of these
}

// Open opens a device. tagged says whether the program was built with the vendor's tag.
func Open(v *Vendor, tagged bool, cfg Config) (*Device, error) {
	if cfg.Streams == 0 {
		cfg.Streams = defaultStreams
	}
	if cfg.Streams < 0 || cfg.Streams > maxStreams {
		return nil, fmt.Errorf("%s: %d streams: want 1 to %d", v.Name, cfg.Streams, maxStreams)
	}
	drv, n, err := v.start(tagged, cfg.Library)
	if err != nil {
		return nil, err
	}
	d := &Device{vendor: v, drv: drv, live: map[*Memory]struct{}{}}
	d.info.Library, d.info.Streams = drv.library(), cfg.Streams
	if err := d.open(cfg, n); err != nil {
		drv.unload()
		return nil, err
	}
	return d, nil
}

func (d *Device) open(cfg Config, devices int) error {
	var err error
	if d.info.DeviceInfo, err = d.choose(cfg, devices); err != nil {
		return err
	}
	if d.info.Version, err = d.drv.version(); err != nil {
		return err
	}
	if err := d.drv.open(d.info.Ordinal); err != nil {
		return err
	}
	if cfg.Trace {
		d.startTrace(cfg.TraceLibrary)
	}
	for _, dir := range []direction{toDevice, toHost} {
		for range cfg.Streams {
			l, err := newLane(d, dir)
			if l != nil {
				d.lanes[dir] = append(d.lanes[dir], l)
			}
			if err != nil {
				return errors.Join(append([]error{err}, d.dismantle()...)...)
			}
		}
	}
	for _, lanes := range d.lanes {
		for _, l := range lanes {
			d.running.Go(l.run)
		}
	}
	return nil
}

// choose finds the device that cfg means among n.
func (d *Device) choose(cfg Config, n int) (DeviceInfo, error) {
	if cfg.PCI == "" {
		if cfg.Ordinal < 0 || cfg.Ordinal >= n {
			return DeviceInfo{}, fmt.Errorf("%s: device %d: %w: the driver counts %d, from 0", d.vendor.Name, cfg.Ordinal, ErrNoDevice, n)
		}
		return d.drv.describe(cfg.Ordinal)
	}
	pci, err := parsePCI(cfg.PCI)
	if err != nil {
		return DeviceInfo{}, fmt.Errorf("%s: %w", d.vendor.Name, err)
	}
	var have []string
	for i := range n {
		info, err := d.drv.describe(i)
		if err != nil {
			return DeviceInfo{}, err
		}
		if info.PCI == pci {
			return info, nil
		}
		have = append(have, info.PCI)
	}
	return DeviceInfo{}, fmt.Errorf("%s: device at %s: %w: the driver has %s", d.vendor.Name, pci, ErrNoDevice, strings.Join(have, ", "))
}

// startTrace loads the library for ranges, or notes why there is none.
func (d *Device) startTrace(library string) {
	names := d.vendor.Traces
	if library != "" {
		names = []string{library}
	}
	var tried []string
	for _, name := range names {
		err := d.drv.trace(name)
		if err == nil {
			d.tracing, d.info.Trace = true, name
			return
		}
		tried = append(tried, err.Error())
	}
	d.info.Trace = "none: " + strings.Join(tried, "; ")
}

// Name is the model with the vendor's name and the ordinal, for reports.
func (d *Device) Name() string {
	return fmt.Sprintf("%s:%d %s", d.vendor.Name, d.info.Ordinal, d.info.Name)
}

// Info says what Open got.
func (d *Device) Info() Info { return d.info }

// Stats returns the counts of this moment.
func (d *Device) Stats() Stats {
	s := Stats{
		InCopies: d.counts[toDevice].copies.Load(), InBytes: d.counts[toDevice].bytes.Load(),
		OutCopies: d.counts[toHost].copies.Load(), OutBytes: d.counts[toHost].bytes.Load(),
		UnregisteredBytes: d.slow.Load(),
	}
	d.gate.RLock()
	for _, r := range d.registered {
		s.RegisteredBytes += int64(len(r.mem))
	}
	d.gate.RUnlock()
	d.mu.Lock()
	s.Memory = d.bytes
	d.mu.Unlock()
	return s
}

// Alloc returns n bytes of the device's memory, aligned to 256 bytes or better.
func (d *Device) Alloc(n int64) (staging.Memory, error) {
	if n < 0 {
		return nil, fmt.Errorf("%s: cannot allocate %d bytes", d.vendor.Name, n)
	}
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.closed {
		return nil, d.closedError()
	}
	m := &Memory{d: d, n: n, owned: true}
	m.refs.Store(1)
	if n > 0 { // the drivers refuse to allocate nothing
		var err error
		if m.ptr, err = d.drv.alloc(n); err != nil {
			return nil, d.allocError(n, err)
		}
	}
	d.mu.Lock()
	d.live[m] = struct{}{}
	d.bytes += n
	d.mu.Unlock()
	return m, nil
}

// allocError adds how much memory there is.
func (d *Device) allocError(n int64, err error) error {
	err = fmt.Errorf("allocating %d bytes on device %d: %w", n, d.info.Ordinal, err)
	var e *Error
	if errors.As(err, &e) && e.Code == codeOutOfMemory {
		if free, total, err2 := d.drv.memInfo(); err2 == nil {
			return fmt.Errorf("%w: %d of %d bytes are free", err, free, total)
		}
	}
	return err
}

// Wrap makes memory of n bytes at a device pointer that the caller owns, such as a tensor of another library. It must stay allocated until it is
// freed here, which does not free it there, and no copy is in flight.
func (d *Device) Wrap(ptr uintptr, n int64) (*Memory, error) {
	if n < 0 || n > 0 && (ptr == 0 || ptr+uintptr(n) < ptr) {
		return nil, fmt.Errorf("%s: no device memory of %d bytes can be at %#x", d.vendor.Name, n, ptr)
	}
	m := &Memory{d: d, ptr: ptr, n: n}
	m.refs.Store(1)
	return m, nil
}

// release gives memory from Alloc back to the driver.
func (d *Device) release(m *Memory) {
	d.gate.RLock()
	defer d.gate.RUnlock()
	d.mu.Lock()
	_, live := d.live[m]
	if live {
		delete(d.live, m)
		d.bytes -= m.n
	}
	d.mu.Unlock()
	if !live || m.n == 0 { // Close has been here
		return
	}
	if err := d.drv.free(m.ptr); err != nil {
		// Nobody can be told, so everybody is: whoever copies next. A pointer that the driver gave is not refused without cause.
		d.fail(err)
	}
}

// CopyIn copies src to dst at off. From registered memory it returns at once, and done is called later, on a goroutine of the device; else the copy is
// made, and done called, before it returns. done must be quick, and may not call Close. After a copy failed in the driver, all that follow fail with the same
// error: close the device and open it again.
func (d *Device) CopyIn(dst staging.Memory, off int64, src []byte, done func(error)) {
	if later, err := d.copy(toDevice, dst, off, src, done); !later {
		done(err)
	}
}

// CopyOut copies len(dst) bytes of src from off to dst, on the same terms.
func (d *Device) CopyOut(dst []byte, src staging.Memory, off int64, done func(error)) {
	if later, err := d.copy(toHost, src, off, dst, done); !later {
		done(err)
	}
}

// copy starts a copy if it can be asynchronous, else it makes one. done will be called if it returns later.
func (d *Device) copy(dir direction, mem staging.Memory, off int64, host []byte, done func(error)) (later bool, err error) {
	m, ok := mem.(*Memory)
	if !ok || m.d != d {
		return false, fmt.Errorf("%s: the memory is not this device's", d.vendor.Name)
	}
	if err := staging.InBounds(m, off, len(host)); err != nil {
		return false, fmt.Errorf("%s: %w", d.vendor.Name, err)
	}
	if err := m.ref(); err != nil {
		return false, err
	}
	if later, err = d.begin(dir, m, m.ptr+uintptr(off), host, done); !later {
		m.unref()
	}
	return later, err
}

func (d *Device) begin(dir direction, m *Memory, ptr uintptr, host []byte, done func(error)) (later bool, err error) {
	d.gate.RLock()
	defer d.gate.RUnlock()
	if d.closed {
		return false, d.closedError()
	}
	if err := d.failure.Load(); err != nil {
		return false, *err
	}
	if len(host) == 0 {
		return false, nil
	}
	reg := d.registrationOf(host)
	if reg == nil {
		if err := d.drv.copyNow(dir, ptr, host); err != nil {
			return false, err
		}
		d.slow.Add(int64(len(host)))
	} else {
		lanes := d.lanes[dir]
		reg.copies.Add(1)
		if err := lanes[d.turn[dir].Add(1)%uint32(len(lanes))].submit(flight{done: done, mem: m, reg: reg}, ptr, host); err != nil {
			reg.copies.Add(-1)
			return false, err
		}
	}
	d.counts[dir].copies.Add(1)
	d.counts[dir].bytes.Add(int64(len(host)))
	return reg != nil, nil
}

// landed gives back what a copy held.
func (d *Device) landed(f flight) {
	f.reg.copies.Add(-1)
	f.mem.unref()
}

// fail makes the device refuse further copies.
func (d *Device) fail(err error) {
	err = fmt.Errorf("%w; the device takes no more copies: close it and open it again", err)
	d.failure.CompareAndSwap(nil, &err)
}

func (d *Device) closedError() error { return fmt.Errorf("%s: %w", d.vendor.Name, ErrClosed) }

// Close waits for all copies in flight, frees what the device holds, and lets go of its context. Memory that is not freed and registrations that are not
// undone are an error, though they end here, too. Closing twice is harmless.
func (d *Device) Close() error {
	d.gate.Lock()
	if d.closed {
		d.gate.Unlock()
		return nil
	}
	d.closed = true
	d.gate.Unlock()
	for _, lanes := range d.lanes {
		for _, l := range lanes {
			l.close()
		}
	}
	d.running.Wait()

	d.gate.Lock()
	defer d.gate.Unlock()
	errs := d.leaks()
	errs = append(errs, d.dismantle()...)
	d.drv.unload()
	if err := errors.Join(errs...); err != nil {
		return fmt.Errorf("closing device %d: %w", d.info.Ordinal, err)
	}
	return nil
}

// leaks ends what the callers should have ended. The caller holds gate.
func (d *Device) leaks() []error {
	var errs []error
	d.mu.Lock()
	defer d.mu.Unlock()
	if len(d.live) > 0 {
		errs = append(errs, fmt.Errorf("%s: %d allocations of %d bytes were not freed", d.vendor.Name, len(d.live), d.bytes))
	}
	for m := range d.live {
		if m.n > 0 {
			errs = append(errs, d.drv.free(m.ptr))
		}
	}
	clear(d.live)
	d.bytes = 0
	for _, r := range d.registered {
		errs = append(errs, fmt.Errorf("%s: %d bytes of host memory were still registered: close the pool first", d.vendor.Name, len(r.mem)), d.unpin(r.mem))
	}
	d.registered = nil
	return errs
}

// dismantle gives streams, events and the context back.
func (d *Device) dismantle() []error {
	var errs []error
	for _, lanes := range d.lanes {
		for _, l := range lanes {
			errs = append(errs, l.destroy()...)
		}
	}
	return append(errs, d.drv.close())
}
