package nvmetcp

import (
	"fmt"
	"os"

	"github.com/nvstage/nvstage/internal/uring"
	"github.com/nvstage/nvstage/queue"
)

// drivers are those that this system has.
func drivers() []queue.Driver {
	d := []queue.Driver{queue.DriverEpoll, queue.DriverConn}
	if err := uring.Probe(); err != nil {
		fmt.Fprintln(os.Stderr, "NOT TESTED with io_uring:", err)
		return d
	}
	return append(d, queue.DriverURing)
}
