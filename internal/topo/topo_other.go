//go:build !linux

package topo

import (
	"errors"
	"fmt"
	"net/netip"
	"runtime"
)

var errOther = fmt.Errorf("topo: not known how to ask %s: %w", runtime.GOOS, errors.ErrUnsupported)

// CPUs fails on this system.
func CPUs() ([]int, error) { return nil, errOther }

// Pin fails on this system.
func Pin(int) (restore func(), err error) { return nil, errOther }

// NodeOfCPU is -1 on this system.
func NodeOfCPU(int) int { return -1 }

// NodeOfNetdev fails on this system.
func NodeOfNetdev(string) (int, error) { return -1, errOther }

// NearRoute chooses all CPUs on this system.
func NearRoute(allowed []int, ifname string, _, _ netip.Addr) Near {
	return Near{Interface: ifname, Node: -1, CPUs: allowed, Reason: errOther.Error()}
}
