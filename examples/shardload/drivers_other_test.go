//go:build !linux

package main

import "github.com/nvstage/nvstage/queue"

var availableDrivers = []string{string(queue.DriverConn)}
