//go:build !linux

package uring

import (
	"errors"
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

var errOther = fmt.Errorf("uring: io_uring is Linux's, this is %s: %w", runtime.GOOS, errors.ErrUnsupported)

type setupFunc struct{}

// Msghdr stands for unix.Msghdr.
type Msghdr struct{}

// Ring cannot be made on this system.
type Ring struct{}

// New fails on this system.
func New(Config) (*Ring, error) { return nil, errOther }

// Probe fails on this system.
func Probe() error { return errOther }

// RegisterFiles fails on this system.
func (r *Ring) RegisterFiles([]int) error { return errOther }

// Features is nil on this system.
func (r *Ring) Features() []string { return nil }

// Notes is nil on this system.
func (r *Ring) Notes() []string { return nil }

// InFlight is 0 on this system.
func (r *Ring) InFlight() int { return 0 }

// PrepSendmsg returns false on this system, as the other Prep functions do.
func (r *Ring) PrepSendmsg(int, bool, *Msghdr, uint32, uint64) bool { return false }

// PrepRecvmsg returns false on this system.
func (r *Ring) PrepRecvmsg(int, bool, *Msghdr, uint32, uint64) bool { return false }

// PrepSend returns false on this system.
func (r *Ring) PrepSend(int, bool, unsafe.Pointer, int, uint32, uint64) bool { return false }

// PrepRecv returns false on this system.
func (r *Ring) PrepRecv(int, bool, unsafe.Pointer, int, uint32, uint64) bool { return false }

// PrepRead returns false on this system.
func (r *Ring) PrepRead(int, bool, unsafe.Pointer, int, uint64) bool { return false }

// PrepPoll returns false on this system.
func (r *Ring) PrepPoll(int, bool, uint32, bool, uint64) bool { return false }

// PrepCancel returns false on this system.
func (r *Ring) PrepCancel(uint64, uint64) bool { return false }

// Enter fails on this system.
func (r *Ring) Enter(int, time.Duration) error { return errOther }

// Next returns false on this system.
func (r *Ring) Next() (CQE, bool) { return CQE{}, false }

// Close does nothing on this system.
func (r *Ring) Close() error { return nil }
