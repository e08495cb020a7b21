//go:build linux && cgo && (cuda || rocm)

package gputest

// #cgo LDFLAGS: -ldl
// #include <dlfcn.h>
// #include <stdint.h>
// #include <stdlib.h>
//
// typedef struct { int (*set)(const char *); int64_t (*count)(const char *); void (*violations)(char *, size_t);
// 	void (*make_current)(int); int (*current)(void); } standin;
//
// static int standin_open(standin *s, const char *path) {
// 	void *lib = dlopen(path, RTLD_NOW | RTLD_LOCAL);
// 	if (lib == NULL)
// 		return 0;
// 	*(void **)&s->set = dlsym(lib, "standin_set");
// 	*(void **)&s->count = dlsym(lib, "standin_count");
// 	*(void **)&s->violations = dlsym(lib, "standin_violations");
// 	*(void **)&s->make_current = dlsym(lib, "standin_make_current");
// 	*(void **)&s->current = dlsym(lib, "standin_current");
// 	return s->set && s->count && s->violations && s->make_current && s->current;
// }
// static int set(standin *s, const char *settings) { return s->set(settings); }
// static int64_t count(standin *s, const char *name) { return s->count(name); }
// static void make_current(standin *s, int device) { s->make_current(device); }
// static int current(standin *s) { return s->current(); }
// static void violations(standin *s, char *text, size_t n) { s->violations(text, n); }
import "C"

import (
	"strings"
	"testing"
	"unsafe"
)

// Standin is a stand-in that the test has loaded.
type Standin struct {
	Path string // the library, for Config.Library

	t testing.TB
	c C.standin
}

// New builds and loads a stand-in and applies settings to it. When the test ends, anything that was done wrong or is left over in it is an error.
func New(t testing.TB, d *Driver, settings ...string) *Standin {
	t.Helper()
	s := &Standin{Path: Build(t, d), t: t}
	path := C.CString(s.Path)
	defer C.free(unsafe.Pointer(path))
	if C.standin_open(&s.c, path) == 0 {
		t.Fatalf("the stand-in driver %s cannot be loaded: %s", s.Path, C.GoString(C.dlerror()))
	}
	s.Set(settings...)
	t.Cleanup(func() {
		for _, v := range s.Violations() {
			t.Errorf("stand-in driver: %s", v)
		}
		for _, name := range []string{"allocations", "registrations", "streams", "events", "contexts", "pushed", "ranges"} {
			if n := s.Count(name); n != 0 {
				t.Errorf("stand-in driver: %d %s are left over", n, name)
			}
		}
	})
	return s
}

// Set applies settings, which the package's documentation lists.
func (s *Standin) Set(settings ...string) {
	s.t.Helper()
	list := C.CString(strings.Join(settings, ","))
	defer C.free(unsafe.Pointer(list))
	if C.set(&s.c, list) == 0 {
		s.t.Fatalf("stand-in driver: not understood: %s", settings)
	}
}

// Count is what the driver holds now: allocations, registrations, streams, events, contexts (retained), pushed (contexts on all threads' stacks), ranges
// (open); or how often something happened: calls, copies, bytes_in, bytes_out, violations.
func (s *Standin) Count(name string) int64 {
	s.t.Helper()
	c := C.CString(name)
	defer C.free(unsafe.Pointer(c))
	n := int64(C.count(&s.c, c))
	if n < 0 {
		s.t.Fatalf("stand-in driver: no count %q", name)
	}
	return n
}

// MakeCurrent makes a device current on the calling thread, as another user of the driver does. -1 is none: the state of a new thread, with CUDA.
func (s *Standin) MakeCurrent(device int) { C.make_current(&s.c, C.int(device)) }

// Current is the device that is current on the calling thread, -1 for none.
func (s *Standin) Current() int { return int(C.current(&s.c)) }

// Violations describes what was done wrong since it was called last.
func (s *Standin) Violations() []string {
	text := (*C.char)(C.calloc(1, 8192))
	defer C.free(unsafe.Pointer(text))
	C.violations(&s.c, text, 8192)
	return strings.FieldsFunc(C.GoString(text), func(r rune) bool { return r == '\n' })
}
