package main

import "github.com/nvstage/nvstage/queue"

var availableDrivers = []string{string(queue.DriverURing), string(queue.DriverEpoll), string(queue.DriverConn)}
