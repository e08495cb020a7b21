//go:build unix

package measure

import (
	"syscall"
	"time"
)

func processUsage() usage {
	var u syscall.Rusage
	if syscall.Getrusage(syscall.RUSAGE_SELF, &u) != nil {
		return usage{}
	}
	return usage{
		cpu: time.Duration(u.Utime.Nano() + u.Stime.Nano()), voluntary: int64(u.Nvcsw), involuntary: int64(u.Nivcsw), known: true,
	}
}
