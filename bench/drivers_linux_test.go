package bench

import "github.com/nvstage/nvstage/queue"

func drivers() []queue.Driver {
	return []queue.Driver{queue.DriverEpoll, queue.DriverURing, queue.DriverConn}
}
