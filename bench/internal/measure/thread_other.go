//go:build !linux

package measure

import "time"

// ThreadCPU is known on Linux only.
func ThreadCPU() (d time.Duration, known bool) { return 0, false }
