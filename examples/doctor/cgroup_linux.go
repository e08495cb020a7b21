package main

import (
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// cgroup is where the limits of the process are that a controller keeps.
type cgroup struct {
	tree
	version int
	mount   string
	group   string
}

// cgroupOf finds the process's cgroup for a controller: v1 if that has it, else v2; nil if there is neither.
func (t tree) cgroupOf(controller string) *cgroup {
	text, _, _ := t.head(maxText, "proc/self/cgroup")
	unified := ""
	for l := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(l), ":", 3)
		if len(parts) != 3 {
			continue
		}
		switch {
		case parts[0] == "0" && parts[1] == "":
			unified = filepath.Join("/", parts[2])
		case slices.Contains(strings.Split(parts[1], ","), controller):
			for _, dir := range []string{controller, parts[1]} {
				if mount := filepath.Join("sys/fs/cgroup", filepath.Join("/", dir)); t.exists(mount) {
					return &cgroup{t, 1, mount, filepath.Join("/", parts[2])}
				}
			}
		}
	}
	if unified == "" || !t.exists("sys/fs/cgroup/cgroup.controllers") {
		return nil
	}
	return &cgroup{t, 2, "sys/fs/cgroup", unified}
}

// up calls f for the group and those above it, as far as they can be seen: limits of all of them hold.
func (c *cgroup) up(f func(dir string)) {
	for group := c.group; ; group = filepath.Dir(group) {
		f(filepath.Join(c.mount, group))
		if group == "/" {
			return
		}
	}
}

// cpuQuota is how many CPUs' time the process may use, 0 for no limit.
func (t tree) cpuQuota() float64 {
	c := t.cgroupOf("cpu")
	if c == nil {
		return 0
	}
	least := 0.0
	c.up(func(dir string) {
		var quota, period int64
		if c.version == 2 {
			fields := strings.Fields(t.line(dir, "cpu.max"))
			if len(fields) != 2 {
				return
			}
			quota, _ = strconv.ParseInt(fields[0], 10, 64) // "max" is 0
			period, _ = strconv.ParseInt(fields[1], 10, 64)
		} else {
			quota, period = t.number(0, dir, "cpu.cfs_quota_us"), t.number(0, dir, "cpu.cfs_period_us")
		}
		if quota <= 0 || period <= 0 {
			return
		}
		if cpus := float64(quota) / float64(period); least == 0 || cpus < least {
			least = cpus
		}
	})
	return least
}

// memoryLimit is the memory that the process may use in bytes, 0 for no limit.
func (t tree) memoryLimit() int64 {
	c := t.cgroupOf("memory")
	if c == nil {
		return 0
	}
	file := "memory.max"
	if c.version == 1 {
		file = "memory.limit_in_bytes"
	}
	least := int64(0)
	c.up(func(dir string) {
		const unlimited = 1 << 60 // v1 says no limit with a large number
		if n := t.number(0, dir, file); n > 0 && n < unlimited && (least == 0 || n < least) {
			least = n
		}
	})
	return least
}

// cpuset is the CPUs that the process's cgroup leaves it, nil if that is not known.
func (t tree) cpuset() []int {
	c := t.cgroupOf("cpuset")
	if c == nil {
		return nil
	}
	var found []int
	c.up(func(dir string) {
		if found != nil {
			return
		}
		for _, file := range []string{"cpuset.cpus.effective", "cpuset.effective_cpus"} {
			if l := t.list(dir, file); l != nil {
				found = l
			}
		}
	})
	return found
}
