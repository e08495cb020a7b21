package topo

import (
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestMemoryNodes(t *testing.T) {
	dir := tree(t, map[string]string{"devices/system/node/has_memory": "0,2-3\n"})
	require.Equal(t, []int{0, 2, 3}, nodes(dir))
	require.Nil(t, nodes(t.TempDir()))
	require.Nil(t, nodes(tree(t, map[string]string{"devices/system/node/has_memory": "0-x\n"})))
	for _, node := range Nodes() {
		n, err := AvailableOn(node)
		require.NoError(t, err)
		require.Positive(t, n)
	}
}

func TestAvailable(t *testing.T) {
	n, err := Available()
	require.NoError(t, err)
	require.Positive(t, n)
	require.Less(t, n, int64(math.MaxInt64))

	dir := tree(t, map[string]string{
		"meminfo":                           "MemTotal: 900 kB\nMemAvailable:    500 kB\nSwapFree: 100 kB\nHugePages_Total:    7\n",
		"self":                              "4:memory:/old\n0::/a/b\n",
		"cg/a/memory.max":                   "300000\n",
		"cg/a/memory.current":               "200000\n",
		"cg/a/memory.stat":                  "anon 5\nactive_file 1000\ninactive_file 2000\n",
		"cg/a/b/memory.max":                 "max\n",
		"root/memory.max":                   "7000\n",
		"root/memory.current":               "9000\n",
		"devices/system/node/node1/meminfo": "Node 1 MemFree: 16 kB\nNode 1 Active(file): 32 kB\nNode 1 Inactive(file): 16 kB\nNode 1 Shmem: 5 kB\n",
	})
	at := func(name string) string { return filepath.Join(dir, name) }
	n, err = available(at("meminfo"), at("none"), at("cg"))
	require.NoError(t, err)
	require.EqualValues(t, 600<<10, n)
	n, err = available(at("meminfo"), at("self"), at("cg"))
	require.NoError(t, err)
	require.EqualValues(t, 103000, n, "the group above has the limit")
	n, err = available(at("meminfo"), at("self"), at("root"))
	require.NoError(t, err)
	require.Zero(t, n, "more than allowed is used")
	_, err = available(at("self"), at("self"), at("cg"))
	require.ErrorContains(t, err, "MemAvailable")

	n, err = availableOn(dir, 1)
	require.NoError(t, err)
	require.EqualValues(t, 60<<10, n)
	_, err = availableOn(dir, 2)
	require.ErrorIs(t, err, os.ErrNotExist)
}
