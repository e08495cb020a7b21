package queue_test

import (
	"syscall"
	"testing"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/queue"
	"github.com/stretchr/testify/require"
)

// A queue that waits for the controller sleeps, also when a large payload has stopped coming half-way.
func TestStalledPayloadSleeps(t *testing.T) {
	forDrivers(t, func(t *testing.T, d queue.Driver) {
		for _, spin := range []time.Duration{0, -1} {
			const n = 1 << 20
			q, c := connect(t, d, opts{cfg: queue.Config{QID: 1, CommandTimeout: time.Minute, Spin: spin}})
			submit(t, q, read(n), make([]byte, n))
			sqe, _ := c.command()
			h := pdu.Data{Type: pdu.TypeC2HData, CCCID: sqe.CID, DATAL: n, Flags: pdu.FlagLast}
			c.send(append(h.AppendHeader(nil, c.layout), make([]byte, n/3)...))
			time.Sleep(50 * time.Millisecond)
			was, used := q.Stats(), cpuTime()
			time.Sleep(500 * time.Millisecond)
			now := q.Stats()
			require.Less(t, now.Turns-was.Turns, uint64(10_000), "turns in half a second")
			require.Less(t, cpuTime()-used, 300*time.Millisecond)
			require.NoError(t, q.Close())
		}
	})
}

func cpuTime() time.Duration {
	var u syscall.Rusage
	syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
