//go:build !linux

package main

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/spf13/pflag"
)

func compareCommand(*pflag.FlagSet) runner {
	return func(context.Context, console) error {
		return fmt.Errorf("compare on %s: %w: it needs Linux", runtime.GOOS, errors.ErrUnsupported)
	}
}
