package nvmetest

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// A target that polls serves both ways of writing and reads, sleeps when there is nothing to do, ends
// when it is closed, and polls only while every I/O queue can have a CPU.
func TestSpin(t *testing.T) {
	for _, spin := range []time.Duration{-1, maxSpin + 1} {
		_, err := Start(Config{Spin: spin})
		require.ErrorContains(t, err, "Spin")
	}
	target := start(t, Config{Spin: maxSpin})
	_, io := ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
	big := pattern(1<<20, 3)
	for range 3 {
		require.True(t, io.doWrite(nvme.Write(1, 0, 2047), big).cqe.Status.OK())
		require.True(t, io.doInCapsule(nvme.Write(1, 8, 7), big[:4096]).cqe.Status.OK())
		require.Equal(t, big[:4096], io.do(nvme.Read(1, 8, 7), 4096).data)
		require.Equal(t, big[8192:], io.do(nvme.Read(1, 16, 2031), 1<<20-8192).data)
		time.Sleep(2 * maxSpin) // it sleeps too, and is woken
	}
	var c *Conn
	for _, conn := range target.Conns() {
		if conn.QID() == 1 {
			c = conn
		}
	}
	require.Equal(t, maxSpin, c.spin())
	for range runtime.GOMAXPROCS(0) {
		ioQueue(t, target.Addr(), target.NQN(), pdu.ICReq{}, 0)
	}
	require.Zero(t, c.spin())
	require.Empty(t, target.Violations())
	require.NoError(t, target.Close())
	require.Zero(t, target.ioConns.Load())
}
