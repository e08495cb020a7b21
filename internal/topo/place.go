package topo

import "fmt"

// Place chooses CPUs for the threads of I/O queues: those that are near, in turn, if at least one of the allowed CPUs is
// left over for callers. The CPU of a thread that is not to be pinned is -1. reason says why it is these CPUs, or none.
func (n Near) Place(queues int, allowed []int) (cpus []int, reason string) {
	cpus = make([]int, queues)
	if queues >= len(allowed) {
		for i := range cpus {
			cpus[i] = -1
		}
		return cpus, fmt.Sprintf("%d I/O queues would leave none of the process's CPUs (%s) to callers, whom a pinned thread on their CPU delays: ask for fewer queues, or list CPUs",
			queues, FormatList(allowed))
	}
	for i := range cpus {
		cpus[i] = n.CPUs[i%len(n.CPUs)]
	}
	return cpus, n.Reason + Shared(queues, len(n.CPUs))
}

// Shared is what to say of queues that have so many CPUs.
func Shared(queues, cpus int) string {
	if queues <= cpus {
		return ""
	}
	return fmt.Sprintf("; %d I/O queues share %d of them, and delay each other", queues, cpus)
}

// ParseList reads CPUs or NUMA nodes in the kernel's list format, such as "0-3,8".
func ParseList(text string) ([]int, error) { return parseList(text) }
