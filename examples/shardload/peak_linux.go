package main

import (
	"os"
	"strconv"
	"strings"
)

// peakMemory is the most memory that this process has had at once, in bytes, 0 if it is not known. Reserved huge pages do not count.
func peakMemory() int64 {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0
	}
	for line := range strings.Lines(string(status)) {
		if kib, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			n, _ := strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kib), "kB")), 10, 64)
			return n << 10
		}
	}
	return 0
}
