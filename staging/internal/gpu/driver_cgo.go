//go:build linux && cgo && (cuda || rocm)

package gpu

// #cgo CFLAGS: -O2 -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"unsafe"
)

const linked = true

// library is the driver by way of driver.c.
type library struct {
	vendor *Vendor
	c      *C.gpu
}

const textLen = 1024 // longest text from C

func openDriver(v *Vendor, name string) (driver, error) {
	path := C.CString(name)
	defer C.free(unsafe.Pointer(path))
	var text [textLen]C.char
	c := C.gpu_load(path, hip(v), &text[0], textLen)
	if c == nil {
		return nil, errors.New(C.GoString(&text[0]))
	}
	return &library{vendor: v, c: c}, nil
}

func hip(v *Vendor) C.int {
	if v.hip {
		return 1
	}
	return 0
}

func (l *library) library() string { return C.GoString(C.gpu_library(l.c)) }
func (l *library) unload()         { C.gpu_free(l.c) }

// check is the error that o stands for.
func (l *library) check(o C.outcome) error {
	if o.code == 0 {
		return nil
	}
	return &Error{
		Vendor: l.vendor.Name, Call: C.GoString(C.gpu_call_name(l.c, o.call)), Code: int(o.code),
		Name: C.GoString(C.gpu_error_name(l.c, o.code)), Text: C.GoString(C.gpu_error_text(l.c, o.code)),
	}
}

func (l *library) init() error { return l.check(C.gpu_init(l.c)) }

func (l *library) version() (int, error) {
	var n C.int
	err := l.check(C.gpu_version(l.c, &n))
	return int(n), err
}

func (l *library) count() (int, error) {
	var n C.int
	err := l.check(C.gpu_count(l.c, &n))
	return int(n), err
}

func (l *library) describe(ordinal int) (DeviceInfo, error) {
	d, o := DeviceInfo{Ordinal: ordinal}, C.int(ordinal)
	var text [textLen]C.char
	if err := l.check(C.gpu_name(l.c, o, &text[0], textLen-1)); err != nil {
		return d, err
	}
	d.Name = C.GoString(&text[0])
	if err := l.check(C.gpu_pci(l.c, o, &text[0], textLen-1)); err != nil {
		return d, err
	}
	var err error
	if d.PCI, err = parsePCI(C.GoString(&text[0])); err != nil {
		return d, fmt.Errorf("%s: device %d: %w", l.vendor.Name, ordinal, err)
	}
	d.Node = node("/sys", d.PCI)
	var n C.size_t
	err = l.check(C.gpu_total(l.c, o, &n))
	d.Bytes = int64(n)
	return d, err
}

func (l *library) open(ordinal int) error { return l.check(C.gpu_open(l.c, C.int(ordinal))) }
func (l *library) close() error           { return l.check(C.gpu_close(l.c)) }

func (l *library) trace(name string) error {
	path := C.CString(name)
	defer C.free(unsafe.Pointer(path))
	var text [textLen]C.char
	if C.gpu_trace(l.c, path, hip(l.vendor), &text[0], textLen) == 0 {
		return errors.New(C.GoString(&text[0]))
	}
	return nil
}

func (l *library) memInfo() (free, total int64, err error) {
	var f, t C.size_t
	err = l.check(C.gpu_mem_info(l.c, &f, &t))
	return int64(f), int64(t), err
}

func (l *library) alloc(n int64) (uintptr, error) {
	var p C.uintptr_t
	err := l.check(C.gpu_alloc(l.c, &p, C.size_t(n)))
	return uintptr(p), err
}

func (l *library) free(p uintptr) error { return l.check(C.gpu_release(l.c, C.uintptr_t(p))) }

func (l *library) register(mem []byte) error {
	return l.check(C.gpu_register(l.c, unsafe.Pointer(unsafe.SliceData(mem)), C.size_t(len(mem))))
}

func (l *library) unregister(mem []byte) error {
	return l.check(C.gpu_unregister(l.c, unsafe.Pointer(unsafe.SliceData(mem))))
}

func (l *library) newStream() (handle, error) {
	var s C.uintptr_t
	err := l.check(C.gpu_stream_create(l.c, &s))
	return handle(s), err
}

func (l *library) destroyStream(s handle) error {
	return l.check(C.gpu_stream_destroy(l.c, C.uintptr_t(s)))
}

func (l *library) waitStream(s handle) error {
	return l.check(C.gpu_stream_wait(l.c, C.uintptr_t(s)))
}

func (l *library) newEvent() (handle, error) {
	var e C.uintptr_t
	err := l.check(C.gpu_event_create(l.c, &e))
	return handle(e), err
}

func (l *library) destroyEvent(e handle) error {
	return l.check(C.gpu_event_destroy(l.c, C.uintptr_t(e)))
}

func (l *library) record(e, s handle) error {
	return l.check(C.gpu_event_record(l.c, C.uintptr_t(e), C.uintptr_t(s)))
}

func (l *library) waitEvent(e handle) error {
	return l.check(C.gpu_event_wait(l.c, C.uintptr_t(e)))
}

func (l *library) copy(dir direction, ptr uintptr, host []byte, s handle) error {
	return l.check(C.gpu_copy(l.c, C.int(dir), C.uintptr_t(ptr), unsafe.Pointer(unsafe.SliceData(host)), C.size_t(len(host)), C.uintptr_t(s)))
}

func (l *library) copyNow(dir direction, ptr uintptr, host []byte) error {
	return l.check(C.gpu_copy_now(l.c, C.int(dir), C.uintptr_t(ptr), unsafe.Pointer(unsafe.SliceData(host)), C.size_t(len(host))))
}

func (l *library) rangeStart(dir direction) uint64 { return uint64(C.gpu_range_start(l.c, C.int(dir))) }
func (l *library) rangeEnd(id uint64)              { C.gpu_range_end(l.c, C.uint64_t(id)) }
