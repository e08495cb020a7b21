package topo

import (
	"fmt"
	"strconv"
	"strings"
)

// maxCPUs is how many CPUs a Linux kernel can be built for on any architecture (NR_CPUS of x86: 8192).
const maxCPUs = 8192

// parseList reads the kernel's list format, such as "0-3,8", which ascends: so a list has at most maxCPUs numbers.
func parseList(text string) ([]int, error) {
	var cpus []int
	next := 0
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
		if err != nil || err2 != nil || from < next || to < from || to >= maxCPUs {
			return nil, fmt.Errorf("topo: CPU list %q: bad part %q", text, part)
		}
		for cpu := from; cpu <= to; cpu++ {
			cpus = append(cpus, cpu)
		}
		next = to + 1
	}
	return cpus, nil
}

// FormatList writes ascending CPUs in the kernel's list format, such as "0-3,8".
func FormatList(cpus []int) string {
	var parts []string
	for i := 0; i < len(cpus); {
		j := i
		for j+1 < len(cpus) && cpus[j+1] == cpus[j]+1 {
			j++
		}
		part := strconv.Itoa(cpus[i])
		if j > i {
			part += "-" + strconv.Itoa(cpus[j])
		}
		parts = append(parts, part)
		i = j + 1
	}
	return strings.Join(parts, ",")
}
