//go:build !linux

package raw

import (
	"context"
	"errors"
	"fmt"
	"net"
	"runtime"

	"github.com/nvstage/nvstage/bench/internal/measure"
)

var errLinux = fmt.Errorf("raw mode on %s: %w: it needs Linux", runtime.GOOS, errors.ErrUnsupported)

// Serve needs Linux.
func Serve(context.Context, net.Listener, func(error)) error { return errLinux }

// Run needs Linux.
func Run(context.Context, Config) (*measure.Result, error) { return nil, errLinux }
