package topo

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// thread lists the CPUs that the calling thread may use.
func thread(t *testing.T) []int {
	t.Helper()
	set := unix.NewCPUSet(maxCPUs)
	require.NoError(t, unix.SchedGetaffinityDynamic(0, set))
	return list(set)
}

func TestPin(t *testing.T) {
	cpus, err := CPUs()
	require.NoError(t, err)
	require.NotEmpty(t, cpus)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := thread(t)
	for _, cpu := range cpus[max(0, len(cpus)-2):] {
		restore, err := Pin(cpu)
		require.NoError(t, err)
		require.Equal(t, []int{cpu}, thread(t))
		again, err := CPUs() // of the process, whichever thread is pinned
		require.NoError(t, err)
		require.Equal(t, cpus, again)
		restore()
		require.Equal(t, before, thread(t))
	}
	for _, cpu := range []int{-1, maxCPUs} {
		_, err = Pin(cpu)
		require.ErrorContains(t, err, "no such CPU")
	}
	_, err = Pin(maxCPUs - 1)
	require.ErrorIs(t, err, unix.EINVAL)
	require.ErrorContains(t, err, "offline, absent")
	require.Equal(t, before, thread(t))
}

func TestParseList(t *testing.T) {
	for text, want := range map[string][]int{"": nil, "0": {0}, "0-2": {0, 1, 2}, "0-1,4,6-7": {0, 1, 4, 6, 7}} {
		got, err := parseList(text)
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	for _, text := range []string{",", "a", "1-", "-1", "3-2", "0-99999999999", "0-8192", "0 1"} {
		_, err := parseList(text)
		require.Error(t, err, text)
	}
}

func TestFormatList(t *testing.T) {
	for _, text := range []string{"", "0", "0-2", "0-1,4,6-7", "3,5,7-8191"} {
		cpus, err := parseList(text)
		require.NoError(t, err)
		require.Equal(t, text, FormatList(cpus))
	}
}

// tree makes files of the given contents, and symbolic links where the content starts with "->".
func tree(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range files {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o755))
		if len(content) > 2 && content[:2] == "->" {
			require.NoError(t, os.Symlink(filepath.Join(root, content[2:]), name))
		} else {
			require.NoError(t, os.WriteFile(name, []byte(content), 0o644))
		}
	}
	return root
}

func TestCgroupCPUs(t *testing.T) {
	root := tree(t, map[string]string{
		"v2":    "0::/a/b/c\n",
		"both":  "3:cpuset:/x\n0::/\n",
		"v1":    "3:cpuset:/a\n",
		"none":  "0::/a/empty\n",
		"bad":   "0::/bad\n",
		"above": "0::/../..\n",

		"cg/cpuset.cpus.effective":         "0-7\n",
		"cg/a/b/cpuset.cpus.effective":     "2-3\n",
		"cg/a/b/c/pids.max":                "max\n",
		"cg/a/empty/cpuset.cpus.effective": "\n",
		"cg/bad/cpuset.cpus.effective":     "all\n",
	})
	for self, want := range map[string][]int{
		"v2": {2, 3}, "both": {0, 1, 2, 3, 4, 5, 6, 7}, "v1": nil, "none": nil, "bad": nil, "absent": nil,
		"above": {0, 1, 2, 3, 4, 5, 6, 7},
	} {
		require.Equal(t, want, cgroupCPUs(filepath.Join(root, self), filepath.Join(root, "cg")), self)
	}
	require.Nil(t, cgroupCPUs(filepath.Join(root, "v2"), filepath.Join(root, "absent")))
}

func TestNodes(t *testing.T) {
	sys := tree(t, map[string]string{
		"devices/system/cpu/cpu0/node0/cpulist":  "0",
		"devices/system/cpu/cpu17/node1/cpulist": "17",
		"devices/system/cpu/cpu17/online":        "1",
		"devices/system/cpu/cpu3/online":         "1",
		"devices/pci0/0000:01/numa_node":         "1\n",
		"devices/pci0/0000:02/numa_node":         "-1\n",
		"devices/pci0/0000:03/numa_node":         "x\n",
		"devices/pci0/0000:04/numa_node":         "0\n",
		"devices/pci0/0000:01/virtio3/features":  "",
		"devices/plain/dev/uevent":               "",
		"devices/pci0/0000:01/net/eth0/address":  "",
		"class/net/eth0/device":                  "->devices/pci0/0000:01",
		"class/net/eth1/device":                  "->devices/pci0/0000:02",
		"class/net/eth2/device":                  "->devices/pci0/0000:03",
		"class/net/eth3/device":                  "->devices/pci0/0000:04",
		"class/net/virt/device":                  "->devices/pci0/0000:01/virtio3",
		"class/net/plain/device":                 "->devices/plain/dev",
		"class/net/lo/address":                   "",
		"class/net/vlan/lower_eth0":              "->class/net/eth0",
		"class/net/bond/lower_eth0":              "->class/net/eth0",
		"class/net/bond/lower_virt":              "->class/net/virt",
		"class/net/split/lower_eth0":             "->class/net/eth0",
		"class/net/split/lower_eth3":             "->class/net/eth3",
		"class/net/broken/lower_eth2":            "->class/net/eth2",
	})
	for cpu, want := range map[int]int{0: 0, 17: 1, 3: -1, 1: -1, -1: -1} {
		require.Equal(t, want, nodeOfCPU(sys, cpu), cpu)
	}
	for name, want := range map[string]int{
		"eth0": 1, "eth1": -1, "eth3": 0, "virt": 1, "plain": -1, "lo": -1, "vlan": 1, "bond": 1, "split": -1,
	} {
		node, err := nodeOfNetdev(sys, name)
		require.NoError(t, err, name)
		require.Equal(t, want, node, name)
	}
	for _, name := range []string{"", ".", "..", "../net/eth0", "eth2", "broken"} {
		_, err := nodeOfNetdev(sys, name)
		require.Error(t, err, name)
	}
	_, err := nodeOfNetdev(sys, "eth9")
	require.ErrorIs(t, err, fs.ErrNotExist)
}

// The real machine: whatever its topology, loopback has no node and each CPU's node is one that exists.
func TestReal(t *testing.T) {
	node, err := NodeOfNetdev("lo")
	require.NoError(t, err)
	require.Equal(t, -1, node)
	cpus, err := CPUs()
	require.NoError(t, err)
	for _, cpu := range cpus {
		if node := NodeOfCPU(cpu); node >= 0 {
			require.DirExists(t, fmt.Sprintf("/sys/devices/system/node/node%d", node))
		}
	}
}
