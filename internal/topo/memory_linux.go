package topo

import (
	"bufio"
	"bytes"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// Nodes lists the NUMA nodes that have memory, ascending; nil where the kernel knows of none.
func Nodes() []int { return nodes(sysfs) }

func nodes(sys string) []int {
	text, err := os.ReadFile(filepath.Join(sys, "devices/system/node/has_memory"))
	if err != nil {
		return nil
	}
	list, err := parseList(strings.TrimSpace(string(text)))
	if err != nil {
		return nil
	}
	return list
}

// Available is about how many bytes of ordinary memory can still be had before the kernel ends processes for it: what is
// free or holds files that can be read again, and swap, within the limits of the process's cgroup v2.
func Available() (int64, error) {
	return available("/proc/meminfo", "/proc/self/cgroup", "/sys/fs/cgroup")
}

// AvailableOn is the same of one NUMA node alone.
func AvailableOn(node int) (int64, error) { return availableOn(sysfs, node) }

func available(meminfo, self, mount string) (int64, error) {
	m, err := counters(meminfo)
	if err != nil {
		return 0, err
	}
	n, ok := m["MemAvailable"]
	if !ok { // before Linux 3.14
		return 0, fmt.Errorf("topo: %s has no MemAvailable", meminfo)
	}
	return min(n+m["SwapFree"], cgroupAvailable(self, mount)), nil
}

func availableOn(sys string, node int) (int64, error) {
	m, err := counters(filepath.Join(sys, "devices/system/node", "node"+strconv.Itoa(node), "meminfo"))
	if err != nil {
		return 0, err
	}
	n := m["MemFree"] + m["Active(file)"] + m["Inactive(file)"]
	return n - n/16, nil // the kernel keeps some back
}

// counters reads lines like "MemFree: 5 kB" and "Node 0 MemFree: 5 kB", in bytes, and like "inactive_file 4096".
func counters(path string) (map[string]int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("topo: %w", err)
	}
	m := map[string]int64{}
	for lines := bufio.NewScanner(bytes.NewReader(text)); lines.Scan(); {
		f := strings.Fields(lines.Text())
		if len(f) > 2 && f[0] == "Node" {
			f = f[2:]
		}
		if len(f) < 2 {
			continue
		}
		n, err := strconv.ParseInt(f[1], 10, 64)
		if err != nil || n < 0 {
			continue
		}
		if len(f) == 3 && f[2] == "kB" {
			if n > math.MaxInt64>>10 {
				continue
			}
			n <<= 10
		}
		m[strings.TrimSuffix(f[0], ":")] = n
	}
	return m, nil
}

// cgroupAvailable is what the memory.max of the process's cgroup v2 and of those above it leave; a cgroup v1 is not looked at.
func cgroupAvailable(self, mount string) int64 {
	left := int64(math.MaxInt64)
	membership, err := os.ReadFile(self)
	if err != nil {
		return left
	}
	for lines := bufio.NewScanner(bytes.NewReader(membership)); lines.Scan(); {
		group, ok := strings.CutPrefix(lines.Text(), "0::")
		if !ok {
			continue
		}
		for group = filepath.Join("/", group); group != "/"; group = filepath.Dir(group) {
			left = min(left, groupAvailable(filepath.Join(mount, group)))
		}
		return min(left, groupAvailable(mount)) // in a container, its own group is the root that it sees
	}
	return left
}

func groupAvailable(dir string) int64 {
	limit, err := number(filepath.Join(dir, "memory.max"))
	if err != nil { // "max", or no such file
		return math.MaxInt64
	}
	used, err := number(filepath.Join(dir, "memory.current"))
	if err != nil {
		return math.MaxInt64
	}
	m, _ := counters(filepath.Join(dir, "memory.stat"))
	return max(0, limit-used+m["active_file"]+m["inactive_file"])
}

func number(path string) (int64, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return 0, err
	}
	return strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
}
