package main

import (
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/uring"
)

// askURing makes a ring as the library does, and asks the kernel which operations it knows.
func askURing() uringFacts {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	ring, err := uring.New(uring.Config{Entries: 16})
	if err != nil {
		return uringFacts{Error: strings.TrimPrefix(err.Error(), "uring: ")}
	}
	f := uringFacts{Works: true, Flags: ring.Features(), Notes: ring.Notes()}
	f.ops = uringOps()
	for _, has := range f.ops {
		if has {
			f.Ops++
		}
	}
	if err := ring.Close(); err != nil {
		f.Notes = append(f.Notes, err.Error())
	}
	return f
}

// uringOps asks with IORING_REGISTER_PROBE; nil if that is refused.
func uringOps() []bool {
	const (
		registerProbe = 8
		opSupported   = 1
		maxOps        = 256
		setupSize     = 120 // struct io_uring_params
	)
	var params [setupSize / 8]uint64
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, 1, uintptr(unsafe.Pointer(&params)), 0)
	if errno != 0 {
		return nil
	}
	defer unix.Close(int(fd))
	var probe struct { // struct io_uring_probe
		last, len uint8
		_         uint16
		_         [3]uint32
		ops       [maxOps]struct {
			op, _ uint8
			flags uint16
			_     uint32
		}
	}
	if _, _, errno := unix.Syscall6(unix.SYS_IO_URING_REGISTER, fd, registerProbe, uintptr(unsafe.Pointer(&probe)), maxOps, 0, 0); errno != 0 {
		return nil
	}
	ops := make([]bool, probe.len)
	for i := range ops {
		ops[i] = probe.ops[i].flags&opSupported != 0
	}
	return ops
}

// ioURing says whether io_uring may be used.
func (m *machine) ioURing(r *report) {
	t := topic{r: r, name: "io_uring"}
	r.URing = m.uring()
	u := &r.URing
	u.Flags, u.Notes, u.Disabled = list(u.Flags), list(u.Notes), m.line("proc/sys/kernel/io_uring_disabled")
	if !u.Works {
		t.add(finding{
			ID: "allowed", Mark: neutral, Text: "not to be had: " + u.Error + "; the driver epoll, which is the default, needs none of it", Mend: mendURing(u, r.Container.Kind),
		})
	} else {
		t.good("allowed", "allowed, with the flags %s (--driver io_uring; the default is epoll)", strings.Join(u.Flags, ", "))
	}
	for _, n := range u.Notes {
		t.note("flags", "%s", n)
	}
	t.features(&r.Kernel, u.ops)
}

// mendURing says what to run where io_uring is refused.
func mendURing(u *uringFacts, container string) string {
	switch {
	case u.Disabled == "1" || u.Disabled == "2":
		return "sysctl -w kernel.io_uring_disabled=0"
	case container != "":
		return "docker run --security-opt seccomp=PROFILE   # one that allows io_uring_setup, io_uring_enter and io_uring_register"
	case strings.Contains(u.Error, "needed"):
		return "uname -r   # then install a kernel of Linux 5.19 or later"
	case strings.Contains(u.Error, "ulimit -l"):
		return "ulimit -l unlimited"
	case strings.Contains(u.Error, "ulimit -n"):
		return "ulimit -n 1024"
	}
	return "grep Seccomp /proc/self/status   # 2: a seccomp profile or sandbox must allow io_uring_setup, io_uring_enter and io_uring_register"
}
