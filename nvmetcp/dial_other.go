//go:build !linux

package nvmetcp

import (
	"errors"
	"runtime"
	"syscall"
)

// bindToDevice has no equal here.
func bindToDevice(string) (func(network, addr string, c syscall.RawConn) error, error) {
	return nil, errors.New("HostIface is not supported on " + runtime.GOOS + "; use HostTraddr")
}
