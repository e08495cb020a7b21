package topo

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPlace(t *testing.T) {
	near := Near{Interface: "eth0", Node: 1, CPUs: []int{2, 3}, Reason: "interface eth0 is on NUMA node 1"}
	for _, c := range []struct {
		queues, allowed int
		cpus            []int
		reason          string
	}{
		{1, 4, []int{2}, near.Reason},
		{2, 4, []int{2, 3}, near.Reason},
		{3, 4, []int{2, 3, 2}, near.Reason + "; 3 I/O queues share 2 of them, and delay each other"},
		{4, 4, []int{-1, -1, -1, -1}, "4 I/O queues would leave none of the process's CPUs (0-3) to callers, whom a pinned thread on their CPU delays: ask for fewer queues, or list CPUs"},
	} {
		cpus, reason := near.Place(c.queues, []int{0, 1, 2, 3}[:c.allowed])
		require.Equal(t, c.cpus, cpus)
		require.Equal(t, c.reason, reason)
	}
}

// A list that is not ascending could grow without bound.
func TestParseListBounded(t *testing.T) {
	for _, text := range []string{"0-8191,0-8191", "1,0", "0,0", "0-3,2"} {
		_, err := ParseList(text)
		require.Error(t, err, text)
	}
}

func TestPoolNode(t *testing.T) {
	for _, c := range []struct{ nic, gpu, want int }{{-1, -1, -1}, {1, -1, 1}, {-1, 0, 0}, {1, 1, 1}, {1, 0, 0}} {
		node, reason := Near{Node: c.nic}.PoolNode(c.gpu)
		require.Equal(t, c.want, node)
		require.NotEmpty(t, reason)
	}
}
