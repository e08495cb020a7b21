//go:build !linux

package main

import (
	"errors"
	"fmt"
	"runtime"
)

func pinProcess(cpu int) error {
	return fmt.Errorf("--cpu %d: pinning on %s: %w", cpu, runtime.GOOS, errors.ErrUnsupported)
}
