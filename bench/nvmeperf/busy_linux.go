package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

// busyLook is how long the machine is watched before a comparison, and busyMuch the share of a CPU from
// which on others are in the way.
const (
	busyLook = 200 * time.Millisecond
	busyMuch = 0.1
)

// busy is the share of each CPU that is in use at the moment, 0 to 1, of those that the kernel lists.
func busy() (map[int]float64, error) {
	before, err := cpuTicks()
	if err != nil {
		return nil, err
	}
	time.Sleep(busyLook)
	after, err := cpuTicks()
	if err != nil {
		return nil, err
	}
	shares := map[int]float64{}
	for cpu, b := range before {
		if a, ok := after[cpu]; ok && a.all > b.all {
			shares[cpu] = 1 - float64(a.idle-b.idle)/float64(a.all-b.all)
		}
	}
	return shares, nil
}

// ticks are what a CPU has spent its time with since the system began.
type ticks struct{ all, idle uint64 }

func cpuTicks() (map[int]ticks, error) {
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return nil, err
	}
	return parseTicks(string(b))
}

// parseTicks reads the lines cpu0, cpu1 and so on: user, nice, system, idle, iowait and more.
func parseTicks(stat string) (map[int]ticks, error) {
	all := map[int]ticks{}
	for line := range strings.Lines(stat) {
		f := strings.Fields(line)
		if len(f) < 6 || !strings.HasPrefix(f[0], "cpu") || f[0] == "cpu" {
			continue
		}
		cpu, err := strconv.Atoi(f[0][3:])
		if err != nil {
			return nil, fmt.Errorf("/proc/stat: %q", line)
		}
		var t ticks
		for i, s := range f[1:] {
			n, err := strconv.ParseUint(s, 10, 64)
			if err != nil {
				return nil, fmt.Errorf("/proc/stat: %q", line)
			}
			if i >= 8 { // guest time is in user time already
				break
			}
			t.all += n
			if i == 3 || i == 4 {
				t.idle += n
			}
		}
		all[cpu] = t
	}
	return all, nil
}

// disturbed says which of the CPUs somebody else uses, "" for none.
func disturbed(shares map[int]float64, cpus ...int) string {
	var list []string
	for i, cpu := range cpus {
		if i > 0 && cpu == cpus[0] {
			continue
		}
		if s := shares[cpu]; s > busyMuch {
			list = append(list, fmt.Sprintf("CPU %d is %.0f %% busy", cpu, 100*s))
		}
	}
	if list == nil {
		return ""
	}
	return strings.Join(list, ", ") + " with other things: do not go by these figures"
}
