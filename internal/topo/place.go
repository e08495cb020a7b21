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

// PoolNode chooses the NUMA node of staging memory that queues near an interface fill, for a GPU on node gpu, -1 where there
// is none or its node is not known. The node is -1 where any will do.
func (n Near) PoolNode(gpu int) (node int, reason string) {
	switch {
	case gpu >= 0 && n.Node >= 0 && n.Node != gpu:
		return gpu, fmt.Sprintf("the GPU on node %d reads all of it; the queues' threads on node %d write across", gpu, n.Node)
	case gpu >= 0:
		return gpu, fmt.Sprintf("the GPU on node %d reads all of it", gpu)
	case n.Node >= 0:
		return n.Node, fmt.Sprintf("the queues' threads on node %d write all of it", n.Node)
	}
	return -1, "no node is known to be nearer"
}
