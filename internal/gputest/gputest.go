// Package gputest is a stand-in for a GPU's driver library, for tests: testdata/standin.c, compiled by the test. It implements what packages
// staging/cuda and staging/rocm call, on host memory, with a thread for each stream, and checks how it is called: that a device is current on the
// calling thread and owns what is used; alignment; bounds of device memory; that host memory of asynchronous copies is registered, and neither
// it nor device memory is given back while a copy is in flight; that events are recorded before anybody waits for them; that nothing is used after its
// end, or ended twice; what was not freed. Device pointers are no host addresses: to use one on the host ends the program.
//
// Outside of a test it is compiled by hand: cc -shared -fPIC -O2 -pthread -o libcuda.so.1 standin.c, or with -DHIP libamdhip64.so.
//
// Settings change how it behaves. They are given to [Standin.Set], or in the environment variable NVSTAGE_STANDIN for a program that loads the
// library itself (by Config.Library, NVSTAGE_CUDA_LIBRARY or NVSTAGE_ROCM_LIBRARY), as a list such as "rate=25e9,devices=1":
//
//	devices=N        number of devices (2, at most 8), at PCI addresses 0000:f0:00.0, 0000:f1:00.0…
//	memory=BYTES     of each device (80 GiB); allocating is cheap, only what is written to takes memory
//	rate=BYTES       carried per second by a device's link, in each direction (0: no limit). Copies take the link in the order in which they were
//	                 started; that threads wake up late does not slow the link.
//	move=0           copies take their time but move no bytes: for links faster than this machine's memory. What device memory holds is arbitrary then.
//	delay_us=N       each copy ends so much later (the link is free meanwhile)
//	jitter_us=N      and up to so much later, at random
//	fail=CALL:N:CODE the N-th call of the function from now on fails at once, such as fail=cuMemAlloc_v2:1:2; up to 16 of these; fail= forgets them
//	fail_async=N:CODE the N-th copy to be executed from now on fails while it is executed, and with it all that follow on its stream
package gputest

import (
	_ "embed"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
)

//go:embed testdata/standin.c
var source string

// Driver is the library that the stand-in imitates.
type Driver struct {
	Name  string // file name
	flags []string
}

// CUDA and HIP are the drivers.
var (
	CUDA = &Driver{Name: "libcuda.so.1"}
	HIP  = &Driver{Name: "libamdhip64.so.5", flags: []string{"-DHIP"}}
)

var (
	mu       sync.Mutex
	compiled = map[*Driver][]byte{}
)

// Build compiles the stand-in and returns the path of the test's own copy of it, which shares no state with others. Without a C compiler it skips the test.
func Build(t testing.TB, d *Driver) string {
	t.Helper()
	mu.Lock()
	defer mu.Unlock()
	if compiled[d] == nil {
		lib, err := compile(t, d)
		if err != nil {
			t.Fatal(err)
		}
		compiled[d] = lib
	}
	path := filepath.Join(t.TempDir(), d.Name)
	if err := os.WriteFile(path, compiled[d], 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func compile(t testing.TB, d *Driver) ([]byte, error) {
	cc := os.Getenv("CC")
	if cc == "" {
		cc = "cc"
	}
	cc, err := exec.LookPath(cc)
	if err != nil {
		t.Skipf("NOT TESTED: no C compiler for the stand-in driver: %v; install gcc and libc6-dev, or set CC", err)
	}
	dir := t.TempDir()
	src, out := filepath.Join(dir, "standin.c"), filepath.Join(dir, d.Name)
	if err := os.WriteFile(src, []byte(source), 0o644); err != nil {
		return nil, err
	}
	args := append([]string{"-shared", "-fPIC", "-O2", "-pthread", "-Wall", "-Wextra", "-Werror", "-o", out, src}, d.flags...)
	if text, err := exec.Command(cc, args...).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s %s: %w\n%s", cc, strings.Join(args, " "), err, text)
	}
	return os.ReadFile(out)
}
