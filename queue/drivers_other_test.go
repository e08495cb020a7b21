//go:build !linux

package queue_test

import (
	"testing"

	"github.com/nvstage/nvstage/queue"
)

func drivers(testing.TB) []queue.Driver { return []queue.Driver{queue.DriverConn} }
