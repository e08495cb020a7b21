package main

import (
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// pinProcess binds every thread of the process to one CPU. New threads inherit that.
func pinProcess(cpu int) error {
	var set unix.CPUSet
	set.Set(cpu)
	if !set.IsSet(cpu) {
		return fmt.Errorf("--cpu %d: there is no such CPU", cpu)
	}
	for done := map[int]bool{}; ; { // until no thread has appeared meanwhile
		threads, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("--cpu %d: %w", cpu, err)
		}
		more := false
		for _, t := range threads {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			if err := unix.SchedSetaffinity(tid, &set); err != nil && err != unix.ESRCH {
				return fmt.Errorf("--cpu %d: sched_setaffinity: %w: it is offline, absent, or not in the process's cpuset", cpu, err)
			}
			done[tid], more = true, true
		}
		if !more {
			return nil
		}
	}
}
