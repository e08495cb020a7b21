package topo

import (
	"bufio"
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// CPUs lists the CPUs that the process may use, ascending: those that any of its threads may, without those that its
// cgroup v2 rules out, as far as that can be read. One thread will not do, not even the main thread: it may be one
// that is pinned.
func CPUs() ([]int, error) {
	cpus, err := threadCPUs()
	if err != nil {
		return nil, err
	}
	if allowed := cgroupCPUs("/proc/self/cgroup", "/sys/fs/cgroup"); allowed != nil {
		both := slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return !slices.Contains(allowed, cpu) })
		if len(both) > 0 { // else the file was not about us
			cpus = both
		}
	}
	return cpus, nil
}

// threadCPUs is the union of the threads' affinities. That of the runtime's monitor, which is never pinned, is among
// them.
func threadCPUs() ([]int, error) {
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		return nil, fmt.Errorf("topo: the threads of the process: %w", err)
	}
	all, one := unix.NewCPUSet(maxCPUs), unix.NewCPUSet(maxCPUs)
	for _, task := range tasks {
		tid, err := strconv.Atoi(task.Name())
		if err != nil {
			continue
		}
		err = unix.SchedGetaffinityDynamic(tid, one)
		if err == unix.ESRCH { // it has ended meanwhile
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("topo: sched_getaffinity: %w", err)
		}
		for i := range all {
			all[i] |= one[i]
		}
	}
	return list(all), nil
}

func list(set unix.CPUSetDynamic) []int {
	var cpus []int
	for cpu := range maxCPUs {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

// cgroupCPUs reads cpuset.cpus.effective of the process's cgroup, or of the closest one above it that has the file;
// nil if there is none to be read.
func cgroupCPUs(self, mount string) []int {
	membership, err := os.ReadFile(self)
	if err != nil {
		return nil
	}
	for lines := bufio.NewScanner(bytes.NewReader(membership)); lines.Scan(); {
		group, ok := strings.CutPrefix(lines.Text(), "0::") // the v2 hierarchy
		if !ok {
			continue
		}
		for group = filepath.Join("/", group); ; group = filepath.Dir(group) {
			if text, err := os.ReadFile(filepath.Join(mount, group, "cpuset.cpus.effective")); err == nil {
				cpus, err := parseList(strings.TrimSpace(string(text)))
				if err != nil {
					return nil
				}
				return cpus
			}
			if group == "/" {
				return nil
			}
		}
	}
	return nil
}

// Pin binds the calling thread to one CPU, until restore gives it back the affinity that it had. The goroutine must be
// locked to the thread (runtime.LockOSThread) before Pin and until restore.
func Pin(cpu int) (restore func(), err error) {
	if cpu < 0 || cpu >= maxCPUs {
		return nil, fmt.Errorf("topo: pin to CPU %d: there is no such CPU", cpu)
	}
	before, only := unix.NewCPUSet(maxCPUs), unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(0, before); err != nil {
		return nil, fmt.Errorf("topo: sched_getaffinity of the thread: %w", err)
	}
	only.Set(cpu)
	if err := unix.SchedSetaffinityDynamic(0, only); err != nil {
		if err == unix.EINVAL {
			return nil, fmt.Errorf("topo: pin to CPU %d: %w: it is offline, absent, or not in the process's cpuset", cpu, err)
		}
		return nil, fmt.Errorf("topo: pin to CPU %d: %w", cpu, err)
	}
	return func() { unix.SchedSetaffinityDynamic(0, before) }, nil
}
