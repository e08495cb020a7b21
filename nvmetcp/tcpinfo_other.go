//go:build !linux

package nvmetcp

import (
	"errors"
	"fmt"
	"runtime"
)

func (*TCPInfo) ask(uintptr) error {
	return fmt.Errorf("not known how to ask %s: %w", runtime.GOOS, errors.ErrUnsupported)
}
