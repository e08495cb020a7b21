//go:build !linux

package main

import (
	"context"
	"fmt"
	"runtime"
)

// examine can do nothing on this system.
func examine(context.Context, *flags) (*report, error) {
	return nil, fmt.Errorf("only Linux can be examined, and this is %s; nvstage works here, too, with its driver net.Conn and ordinary memory", runtime.GOOS)
}
