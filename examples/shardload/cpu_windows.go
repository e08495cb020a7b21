package main

import (
	"syscall"
	"time"
)

// cpuTime is the CPU time that this process has used, user and kernel.
func cpuTime() time.Duration {
	var created, exited, kernel, user syscall.Filetime
	p, err := syscall.GetCurrentProcess()
	if err != nil || syscall.GetProcessTimes(p, &created, &exited, &kernel, &user) != nil {
		return 0
	}
	ticks := func(t syscall.Filetime) int64 { return int64(t.HighDateTime)<<32 | int64(t.LowDateTime) }
	return time.Duration(ticks(kernel)+ticks(user)) * 100 * time.Nanosecond
}
