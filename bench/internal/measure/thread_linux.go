package measure

import (
	"time"

	"golang.org/x/sys/unix"
)

// ThreadCPU is the CPU time, user and system, that the calling thread has used. It is of use to a
// goroutine that is locked to its thread.
func ThreadCPU() (d time.Duration, known bool) {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_THREAD, &u) != nil {
		return 0, false
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano()), true
}
