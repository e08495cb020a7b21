//go:build !linux

package e2e

import (
	"testing"

	"github.com/nvstage/nvstage/queue"
)

func drivers(*testing.T) []queue.Driver { return []queue.Driver{queue.DriverConn} }
