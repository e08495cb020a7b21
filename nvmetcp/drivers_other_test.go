//go:build !linux

package nvmetcp

import "github.com/nvstage/nvstage/queue"

// drivers are those that this system has.
func drivers() []queue.Driver { return []queue.Driver{queue.DriverConn} }
