//go:build !linux

package nvmetvm

import (
	"context"
	"errors"
	"net"
	"os"
	"syscall"
)

// Available reports other systems as unfit before any of these is reached.

func lockFile(context.Context, string) (unlock func(), err error) {
	return nil, errors.ErrUnsupported
}

func socketPair() (ours net.Conn, theirs *os.File, err error) {
	return nil, nil, errors.ErrUnsupported
}

func dieWithParent() *syscall.SysProcAttr { return nil }
