package topo

import (
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// A machine of two nodes with two cores of two hardware threads each, numbered as Linux usually does.
func twoNodes(t *testing.T) string {
	files := map[string]string{
		"devices/pci0/0000:01/numa_node": "1\n", "class/net/eth0/device": "->devices/pci0/0000:01",
		"devices/pci0/0000:02/numa_node": "-1\n", "class/net/eth1/device": "->devices/pci0/0000:02",
		"devices/pci0/0000:03/numa_node": "x\n", "class/net/eth2/device": "->devices/pci0/0000:03",
		"class/net/veth0/carrier": "1",
	}
	for i, name := range []string{"eth0", "eth1", "eth2", "veth0"} {
		files["class/net/"+name+"/ifindex"] = string(rune('2'+i)) + "\n"
		files["class/net/"+name+"/address"] = "02:00:00:00:00:0" + string(rune('2'+i)) + "\n"
	}
	for cpu, node := range []string{"node0", "node0", "node1", "node1", "node0", "node0", "node1", "node1"} {
		dir := "devices/system/cpu/cpu" + string(rune('0'+cpu)) + "/"
		files[dir+node+"/cpulist"] = ""
		files[dir+"topology/thread_siblings_list"] = string(rune('0'+cpu%4)) + "," + string(rune('4'+cpu%4)) + "\n"
	}
	return tree(t, files)
}

func ifi(name string, index int) *net.Interface {
	return &net.Interface{Name: name, Index: index, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(index)}}
}

func TestNear(t *testing.T) {
	sys := twoNodes(t)
	all := []int{0, 1, 2, 3, 4, 5, 6, 7}
	lo := &net.Interface{Name: "lo", Index: 1, Flags: net.FlagLoopback}
	stranger := ifi("eth0", 2)
	stranger.HardwareAddr[0] = 6
	for name, c := range map[string]struct {
		allowed []int
		ifi     *net.Interface
		node    int
		cpus    []int
		reason  string
	}{
		"on the node":               {all, ifi("eth0", 2), 1, []int{2, 3, 6, 7}, "interface eth0 is on NUMA node 1"},
		"siblings last":             {[]int{2, 3, 6}, ifi("eth0", 2), 1, []int{2, 3, 6}, "interface eth0 is on NUMA node 1"},
		"siblings last of few":      {[]int{1, 2, 5, 6, 7}, ifi("eth0", 2), 1, []int{2, 7, 6}, "interface eth0 is on NUMA node 1"},
		"restricted":                {[]int{0, 7}, ifi("eth0", 2), 1, []int{7}, "interface eth0 is on NUMA node 1"},
		"restricted to the others":  {[]int{0, 4, 5}, ifi("eth0", 2), 1, []int{0, 5, 4}, "of which the process may use no CPU; so any"},
		"device without node":       {all, ifi("eth1", 3), -1, all, "eth1 belongs to no NUMA node"},
		"nonsense":                  {all, ifi("eth2", 4), -1, all, "is no NUMA node"},
		"virtual":                   {all, ifi("veth0", 5), -1, all, "veth0 belongs to no NUMA node: it is virtual"},
		"loopback":                  {all, lo, -1, all, "loopback belongs to no NUMA node"},
		"not in sysfs":              {all, ifi("eth7", 9), -1, all, "sysfs does not have interface eth7"},
		"another namespace's":       {all, ifi("eth0", 5), -1, all, "sysfs is about another network namespace's eth0"},
		"another one's, same index": {all, stranger, -1, all, "sysfs is about another network namespace's eth0"},
	} {
		n := near(sys, c.allowed, c.ifi)
		require.Equal(t, c.ifi.Name, n.Interface, name)
		require.Equal(t, c.node, n.Node, name)
		require.Equal(t, c.cpus, n.CPUs, name)
		require.Contains(t, n.Reason, c.reason, name)
	}
	require.Equal(t, []int{3, 1}, coresFirst(t.TempDir(), []int{3, 1}), "cores are not known")
}

// again runs this test in a process of its own, set up by how, and returns what it printed.
func again(t *testing.T, how *syscall.SysProcAttr) string {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), "NVSTAGE_TOPO_CHILD=1")
	cmd.SysProcAttr = how
	out, err := cmd.CombinedOutput()
	if how != nil && os.IsPermission(err) {
		t.Skipf("this process may not make a network namespace: %v", err)
	}
	require.NoError(t, err, string(out))
	return string(out)
}

func child() bool { return os.Getenv("NVSTAGE_TOPO_CHILD") != "" }

// A process that is bound to a CPU finds that one only, also when one of its own threads is pinned elsewhere or its
// main thread was.
func TestRestrictedProcess(t *testing.T) {
	cpus, err := CPUs()
	require.NoError(t, err)
	if child() {
		require.Equal(t, os.Getenv("NVSTAGE_TOPO_CPU"), FormatList(cpus))
		return
	}
	if len(cpus) < 2 {
		t.Skip("there is only one CPU to begin with")
	}
	for _, cpu := range cpus[:2] {
		runtime.LockOSThread()
		restore, err := Pin(cpu) // what a child inherits
		require.NoError(t, err)
		t.Setenv("NVSTAGE_TOPO_CPU", FormatList([]int{cpu}))
		again(t, nil)
		restore()
		runtime.UnlockOSThread()
	}
}

func TestMainThreadIsPinned(t *testing.T) {
	before, err := CPUs()
	require.NoError(t, err)
	set, old := unix.NewCPUSet(maxCPUs), unix.NewCPUSet(maxCPUs)
	require.NoError(t, unix.SchedGetaffinityDynamic(os.Getpid(), old))
	set.Set(before[len(before)-1])
	require.NoError(t, unix.SchedSetaffinityDynamic(os.Getpid(), set))
	defer unix.SchedSetaffinityDynamic(os.Getpid(), old)
	after, err := CPUs()
	require.NoError(t, err)
	require.Equal(t, before, after)
}

// In a network namespace of another process sysfs shows the interfaces of this one.
func TestNetworkNamespace(t *testing.T) {
	cpus, err := CPUs()
	require.NoError(t, err)
	if child() {
		_, err := routeInterface(addr("127.0.0.1"), addr("192.0.2.1"))
		require.ErrorContains(t, err, "the interface that leads to 192.0.2.1 is not known")
		n := NearRoute(cpus, "", addr("127.0.0.1"), addr("192.0.2.1"))
		require.Equal(t, -1, n.Node)
		require.ElementsMatch(t, cpus, n.CPUs)
		require.Contains(t, n.Reason, "is not known: RTM_GETROUTE: ")
		if ip, err := exec.LookPath("ip"); err == nil {
			if out, err := exec.Command(ip, "link", "add", "eth0", "type", "bridge").CombinedOutput(); err != nil {
				t.Logf("no interface to try it with: %v: %s", err, out)
				return
			}
			n := NearRoute(cpus, "eth0", addr("127.0.0.1"), addr("192.0.2.1"))
			require.Equal(t, -1, n.Node)
			require.Equal(t, "eth0", n.Interface)
			require.Contains(t, n.Reason, "sysfs")
			require.Contains(t, n.Reason, "of its own")
		}
		return
	}
	out := again(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET})
	t.Log(out)
}

func addr(s string) netip.Addr { return netip.MustParseAddr(s) }

func TestRoute(t *testing.T) {
	for _, dst := range []string{"127.0.0.1", "127.1.2.3", "::ffff:127.0.0.1"} {
		name, err := routeInterface(netip.Addr{}, addr(dst))
		require.NoError(t, err, dst)
		require.Equal(t, "lo", name)
		name, err = routeInterface(addr("127.0.0.1"), addr(dst))
		require.NoError(t, err, dst)
		require.Equal(t, "lo", name)
	}
	name, err := routeInterface(netip.Addr{}, addr("fe80::1%lo")) // wherever else fe80::/10 leads to
	require.NoError(t, err)
	require.Equal(t, "lo", name)
	for _, bad := range [][2]netip.Addr{{}, {addr("127.0.0.1"), addr("::1")}, {addr("::1"), addr("127.0.0.1")}} {
		_, err := routeInterface(bad[0], bad[1])
		require.ErrorContains(t, err, "is not known")
	}
	for _, junk := range [][]byte{nil, {1}, make([]byte, 16), make([]byte, 64)} {
		_, err := routeAnswer(junk)
		require.Error(t, err)
	}
}

// The interface of the default route, which the kernel tells in another way too.
func TestDefaultRoute(t *testing.T) {
	table, err := os.ReadFile("/proc/net/route")
	require.NoError(t, err)
	for line := range strings.Lines(string(table)) {
		f := strings.Fields(line)
		if len(f) > 7 && f[1] == "00000000" && f[7] == "00000000" {
			name, err := routeInterface(netip.Addr{}, addr("192.0.2.1"))
			require.NoError(t, err)
			require.Equal(t, f[0], name)
			return
		}
	}
	t.Skip("there is no default route")
}
