package main

import (
	"math"

	"golang.org/x/sys/unix"
)

// freeBytes is how much this user may still write into a directory, if its file system tells.
func freeBytes(dir string) (n int64, known bool) {
	var s unix.Statfs_t
	if unix.Statfs(dir, &s) != nil || s.Blocks == 0 || s.Bsize <= 0 {
		return 0, false
	}
	block := uint64(s.Bsize)
	return int64(min(s.Bavail, math.MaxInt64/block) * block), true
}
