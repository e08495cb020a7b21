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

// maxCPUs is how many CPUs a Linux kernel can be built for on any architecture (NR_CPUS of x86: 8192).
const maxCPUs = 8192

// CPUs lists the CPUs that the process may use, ascending: the affinity of its main thread (threads that are pinned
// do not count), without those that its cgroup v2 rules out, as far as that can be read.
func CPUs() ([]int, error) {
	set := unix.NewCPUSet(maxCPUs)
	if err := unix.SchedGetaffinityDynamic(os.Getpid(), set); err != nil {
		return nil, fmt.Errorf("topo: sched_getaffinity of the process: %w", err)
	}
	cpus := list(set)
	if allowed := cgroupCPUs("/proc/self/cgroup", "/sys/fs/cgroup"); allowed != nil {
		both := slices.DeleteFunc(slices.Clone(cpus), func(cpu int) bool { return !slices.Contains(allowed, cpu) })
		if len(both) > 0 { // else the file was not about us
			cpus = both
		}
	}
	return cpus, nil
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

// parseList reads the kernel's list format, such as "0-3,8".
func parseList(text string) ([]int, error) {
	var cpus []int
	if text == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		first, last, ranged := strings.Cut(part, "-")
		if !ranged {
			last = first
		}
		from, err := strconv.Atoi(first)
		to, err2 := strconv.Atoi(last)
		if err != nil || err2 != nil || from < 0 || to < from || to >= maxCPUs {
			return nil, fmt.Errorf("topo: CPU list %q: bad part %q", text, part)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
	}
	return cpus, nil
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
