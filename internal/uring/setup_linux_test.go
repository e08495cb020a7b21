package uring

import (
	"errors"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// refusing is a kernel that does not know the given set-up flags.
func refusing(flags uint32) setupFunc {
	return func(entries uint32, p *params) (int, unix.Errno) {
		if p.flags&flags != 0 {
			return 0, unix.EINVAL
		}
		return sysSetup(entries, p)
	}
}

// Each older kernel's ring works, with what that kernel has.
func TestFallback(t *testing.T) {
	refused := uint32(0)
	for i, o := range optional {
		refused |= o.flag
		t.Run(o.name, func(t *testing.T) {
			r := newRing(t, Config{Entries: 8, CQEntries: 8, setup: refusing(refused)})
			require.Len(t, r.Notes(), i+1)
			for j, o := range optional {
				if j <= i {
					require.NotContains(t, r.Features(), o.name)
					require.Contains(t, r.Notes()[j], o.name+" refused: invalid argument (it needs Linux "+o.since)
				} else {
					require.Contains(t, r.Features(), o.name)
				}
			}
			a, b := tcpPair(t)
			testSendRecv(t, r, a, b, false)
			for i := range uint64(100) {
				require.True(t, nop(r, i))
				one(t, r, i)
			}
		})
	}
}

func TestAllFlags(t *testing.T) {
	lock(t)
	var flags []uint32
	r, err := New(Config{Entries: 1, setup: func(entries uint32, p *params) (int, unix.Errno) {
		flags = append(flags, p.flags)
		return sysSetup(entries, p)
	}})
	require.NoError(t, err)
	defer r.Close()
	require.EqualValues(t, _IORING_SETUP_NO_SQARRAY|_IORING_SETUP_DEFER_TASKRUN|_IORING_SETUP_SINGLE_ISSUER|_IORING_SETUP_COOP_TASKRUN, flags[0])
}

func TestSetupRefused(t *testing.T) {
	for _, errno := range []unix.Errno{unix.EPERM, unix.ENOSYS, unix.ENOMEM, unix.EINVAL} {
		calls := 0
		_, err := New(Config{Entries: 1, setup: func(uint32, *params) (int, unix.Errno) {
			calls++
			return 0, errno
		}})
		require.ErrorIs(t, err, errno)
		require.ErrorContains(t, err, "uring: io_uring_setup: ")
		require.Equal(t, errno == unix.ENOSYS, errors.Is(err, errors.ErrUnsupported))
		if errno == unix.EINVAL {
			require.Equal(t, 1+len(optional), calls)
		} else {
			require.Equal(t, 1, calls)
		}
	}
}

func TestSetupError(t *testing.T) {
	require.ErrorContains(t, setupError(unix.EPERM, "1"), "kernel.io_uring_group")
	require.ErrorContains(t, setupError(unix.EPERM, "2"), "set it to 0")
	require.ErrorContains(t, setupError(unix.EPERM, "0"), "seccomp")
	require.ErrorContains(t, setupError(unix.EPERM, ""), "seccomp")
	require.ErrorContains(t, setupError(unix.ENOMEM, ""), "ulimit -l")
	require.EqualError(t, setupError(unix.EFAULT, ""), "uring: io_uring_setup: bad address")
}

// A ring that is made and then found wanting leaves nothing behind.
func TestTooOld(t *testing.T) {
	lock(t)
	before := openFds(t)
	for _, feature := range []uint32{
		_IORING_FEAT_SINGLE_MMAP, _IORING_FEAT_NODROP, _IORING_FEAT_SUBMIT_STABLE,
		_IORING_FEAT_FAST_POLL, _IORING_FEAT_POLL_32BITS, _IORING_FEAT_EXT_ARG,
	} {
		_, err := New(Config{Entries: 1, setup: func(entries uint32, p *params) (int, unix.Errno) {
			fd, errno := sysSetup(entries, p)
			p.features &^= feature
			return fd, errno
		}})
		require.ErrorIs(t, err, errors.ErrUnsupported)
		require.ErrorContains(t, err, "Linux 5.19")
	}
	require.Equal(t, before, openFds(t))
}

func TestProbeOps(t *testing.T) {
	p := new(probe)
	p.opsLen = 60
	for i := range p.ops {
		p.ops[i].flags = _IO_URING_OP_SUPPORTED
	}
	require.NoError(t, p.check())
	p.ops[_IORING_OP_RECVMSG].flags = 0
	err := p.check()
	require.ErrorIs(t, err, errors.ErrUnsupported)
	require.ErrorContains(t, err, "RECVMSG")
	p.ops[_IORING_OP_RECVMSG].flags = _IO_URING_OP_SUPPORTED
	p.opsLen = _IORING_OP_RECV
	require.ErrorContains(t, p.check(), "RECV")
	require.True(t, slices.IsSortedFunc(optional, func(a, b struct {
		flag  uint32
		name  string
		since string
	},
	) int {
		return int(b.flag) - int(a.flag)
	}), "newest first")
}
