//go:build !linux

package bench

import "github.com/nvstage/nvstage/queue"

func drivers() []queue.Driver { return []queue.Driver{queue.DriverConn} }
