package queue

import "time"

// epoch is where the clock of Issued and Completed starts.
var epoch = time.Now()

// nanotime reads the monotonic clock: some 30 ns, so once per turn and not per command.
func nanotime() int64 { return int64(time.Since(epoch)) }
