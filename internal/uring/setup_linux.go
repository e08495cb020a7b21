package uring

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// setupFunc is io_uring_setup(2).
type setupFunc func(entries uint32, p *params) (fd int, errno unix.Errno)

func sysSetup(entries uint32, p *params) (int, unix.Errno) {
	fd, _, errno := unix.Syscall(unix.SYS_IO_URING_SETUP, uintptr(entries), uintptr(unsafe.Pointer(p)), 0)
	return int(fd), errno
}

// optional are the set-up flags to do without if need be, newest first. COOP_TASKRUN adds nothing to DEFER_TASKRUN; it
// is there for the kernels that have only the former.
var optional = []struct {
	flag  uint32
	name  string
	since string
}{
	{_IORING_SETUP_NO_SQARRAY, "NO_SQARRAY", "6.6"},
	{_IORING_SETUP_DEFER_TASKRUN, "DEFER_TASKRUN", "6.1"},
	{_IORING_SETUP_SINGLE_ISSUER, "SINGLE_ISSUER", "6.0"},
	{_IORING_SETUP_COOP_TASKRUN, "COOP_TASKRUN", "5.19"},
}

// setup gets the ring's descriptor with as many of the optional flags as the kernel takes. An EINVAL does not name the
// flag that it is about, so the newest goes first.
func (r *Ring) setup(cfg Config) (*params, error) {
	call := cfg.setup
	if call == nil {
		call = sysSetup
	}
	flags := uint32(0)
	for _, o := range optional {
		flags |= o.flag
	}
	rest := optional
	for {
		p := &params{flags: flags}
		if cfg.CQEntries != 0 {
			p.flags |= _IORING_SETUP_CQSIZE
			p.cqEntries = cfg.CQEntries
		}
		fd, errno := call(cfg.Entries, p)
		switch {
		case errno == 0:
			r.fd = fd
			for _, o := range rest {
				r.features = append(r.features, o.name)
			}
			return p, nil
		case errno == unix.EINVAL && len(rest) > 0:
			r.notes = append(r.notes, fmt.Sprintf("%s refused: %v (it needs Linux %s)", rest[0].name, errno, rest[0].since))
			flags &^= rest[0].flag
			rest = rest[1:]
		default:
			disabled, _ := os.ReadFile("/proc/sys/kernel/io_uring_disabled")
			return nil, setupError(errno, strings.TrimSpace(string(disabled)))
		}
	}
}

// setupError explains why io_uring_setup failed; disabled is the value of the sysctl kernel.io_uring_disabled, "" where
// there is none.
func setupError(errno unix.Errno, disabled string) error {
	hint := ""
	switch errno {
	case unix.ENOSYS:
		hint = "the kernel has no io_uring, or a seccomp profile or sandbox hides it"
	case unix.EPERM, unix.EACCES:
		switch disabled {
		case "1":
			hint = "sysctl kernel.io_uring_disabled is 1: be a member of the group in kernel.io_uring_group, have CAP_SYS_ADMIN, or set it to 0"
		case "2":
			hint = "sysctl kernel.io_uring_disabled is 2, which forbids it to everyone: set it to 0"
		default:
			hint = "a seccomp profile (the default one of most container runtimes) or a security module forbids it: allow io_uring_setup, io_uring_enter and io_uring_register"
		}
	case unix.ENOMEM:
		hint = "raise the limit of locked memory (ulimit -l) or make the ring smaller"
	case unix.EMFILE, unix.ENFILE:
		hint = "raise the limit of open files (ulimit -n)"
	}
	return hinted("io_uring_setup", errno, hint)
}

// enterError explains why io_uring_enter failed.
func enterError(errno unix.Errno) error {
	hint := ""
	switch errno {
	case unix.EEXIST:
		hint = "called on a thread that does not own the ring: lock the goroutine to its thread before New"
	case unix.EBADF, unix.EINVAL:
		hint = "if the ring's descriptor is registered, it is so for the thread that owns it only: lock the goroutine to its thread before New"
	case unix.EBADR:
		hint = "the kernel had no memory for completions and dropped some: the ring is of no more use"
	case unix.EPERM:
		hint = "a seccomp profile or a security module allows io_uring_setup but not io_uring_enter"
	}
	return hinted("io_uring_enter", errno, hint)
}

func hinted(call string, errno unix.Errno, hint string) error {
	if hint == "" {
		return fmt.Errorf("uring: %s: %w", call, errno)
	}
	return fmt.Errorf("uring: %s: %w: %s", call, errno, hint)
}

// tooOld is what a kernel lacks that cannot be done without.
func tooOld(what string) error {
	return fmt.Errorf("uring: this kernel's io_uring lacks %s: Linux 5.19 or later is needed: %w", what, errors.ErrUnsupported)
}

// checkFeatures wants the features that the rings are used with.
func checkFeatures(have uint32) error {
	for _, f := range []struct {
		flag uint32
		name string
	}{
		{_IORING_FEAT_SINGLE_MMAP, "SINGLE_MMAP"},
		{_IORING_FEAT_NODROP, "NODROP"},
		{_IORING_FEAT_SUBMIT_STABLE, "SUBMIT_STABLE"},
		{_IORING_FEAT_FAST_POLL, "FAST_POLL"},
		{_IORING_FEAT_POLL_32BITS, "POLL_32BITS"},
		{_IORING_FEAT_EXT_ARG, "EXT_ARG"},
	} {
		if have&f.flag == 0 {
			return tooOld("the feature " + f.name)
		}
	}
	return nil
}

// checkOps wants the operations that there are Prep functions for.
func (r *Ring) checkOps() error {
	p := new(probe)
	if _, errno := r.register(_IORING_REGISTER_PROBE, unsafe.Pointer(p), len(p.ops)); errno != 0 {
		return hinted("io_uring_register", errno, "does a seccomp profile allow io_uring_setup but not io_uring_register?")
	}
	return p.check()
}

func (p *probe) check() error {
	for op, name := range map[uint8]string{
		_IORING_OP_POLL_ADD:     "POLL_ADD",
		_IORING_OP_SENDMSG:      "SENDMSG",
		_IORING_OP_RECVMSG:      "RECVMSG",
		_IORING_OP_ASYNC_CANCEL: "ASYNC_CANCEL",
		_IORING_OP_READ:         "READ",
		_IORING_OP_SEND:         "SEND",
		_IORING_OP_RECV:         "RECV",
	} {
		if op >= p.opsLen || p.ops[op].flags&_IO_URING_OP_SUPPORTED == 0 {
			return tooOld("the operation " + name)
		}
	}
	return nil
}

// cancelAll cancels everything in flight. Close cannot do without it.
var cancelAll = sqe{
	opcode:  _IORING_OP_ASYNC_CANCEL,
	fd:      -1,
	opFlags: _IORING_ASYNC_CANCEL_ANY | _IORING_ASYNC_CANCEL_ALL,
}

// checkCancelAny tries cancelAll with nothing to cancel, and with it whether the ring works.
func (r *Ring) checkCancelAny() error {
	r.put(cancelAll)
	if err := r.Enter(1, -1); err != nil {
		return err
	}
	switch c, ok := r.Next(); {
	case !ok:
		return errors.New("uring: io_uring_enter came back without the completion that it was to wait for")
	case c.Res == -int32(unix.EINVAL):
		return tooOld("cancelling of any operation (IORING_ASYNC_CANCEL_ANY)")
	}
	return nil
}

// Probe says whether New can be expected to work here, by making a ring and closing it. The error says what stands in
// the way and what to do about it.
func Probe() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r, err := New(Config{Entries: 1})
	if err != nil {
		return err
	}
	return r.Close()
}
