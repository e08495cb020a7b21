package queue_test

import (
	"testing"

	"github.com/nvstage/nvstage/internal/uring"
	"github.com/nvstage/nvstage/queue"
)

func drivers(t testing.TB) []queue.Driver {
	d := []queue.Driver{queue.DriverEpoll, queue.DriverConn}
	if err := uring.Probe(); err != nil {
		t.Logf("NOT TESTED with io_uring: %v", err)
		return d
	}
	return append(d, queue.DriverURing)
}
