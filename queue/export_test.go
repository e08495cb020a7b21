package queue

import (
	"testing"
	"time"
)

// SetCancelGrace changes how long the queues that this test makes hereafter wait for a cancelled write.
func SetCancelGrace(t *testing.T, d time.Duration) {
	was := cancelGrace
	cancelGrace = d
	t.Cleanup(func() { cancelGrace = was })
}
