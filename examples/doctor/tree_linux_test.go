package main

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"
)

// files are a made-up tree: contents by name. One that begins with "->" is a link to what follows, below the root.
type files map[string]string

// add adds files with the names and contents of lines such as "proc/x: contents".
func (f files) add(dir string, lines string) {
	for l := range strings.Lines(lines) {
		if name, content, ok := strings.Cut(strings.TrimSpace(l), ": "); ok {
			f[filepath.Join(dir, name)] = content + "\n"
		}
	}
}

// write writes the files, and returns the root.
func (f files) write(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range f {
		put(t, root, name, content)
	}
	return root
}

func put(t *testing.T, root, name, content string) {
	t.Helper()
	full := filepath.Join(root, name)
	require.NoError(t, os.MkdirAll(filepath.Dir(full), 0o755))
	if to, ok := strings.CutPrefix(content, "->"); ok {
		rel, err := filepath.Rel(filepath.Dir(full), filepath.Join(root, strings.TrimSpace(to)))
		require.NoError(t, err)
		require.NoError(t, os.Symlink(rel, full))
		return
	}
	require.NoError(t, os.WriteFile(full, []byte(content), 0o644))
}

func TestTree(t *testing.T) {
	root := files{
		"n": "42\n", "neg": "-7", "word": "x", "empty": "", "two": "1\n2\n", "many": "4096 131072 6291456\n", "bad": "1 x 3", "list": "0-2,5\n",
		"down": "3-1\n", "repeats": "0-8191,0-8191\n", "long": strings.Repeat("7", 201), "dir/a": "", "dir/b": "", "loop": "->loop2", "loop2": "->loop",
		"link": "->dir/a", "status": "Name:\tx\nSeccomp:\t2\n", "meminfo": "MemAvailable:   100 kB\nMemBad: 9\n", "escape": "->../..",
	}.write(t)
	require.NoError(t, os.WriteFile(filepath.Join(root, "huge"), nil, 0o644))
	require.NoError(t, os.Truncate(filepath.Join(root, "huge"), 64<<20))
	require.NoError(t, unix.Mkfifo(filepath.Join(root, "pipe"), 0o644))
	require.NoError(t, os.Symlink("/dev/zero", filepath.Join(root, "zero")))
	m := tree{root}

	require.EqualValues(t, 42, m.number(-1, "n"))
	require.EqualValues(t, -7, m.number(0, "neg"))
	require.Equal(t, "x", m.line("word"))
	require.Equal(t, []int64{4096, 131072, 6291456}, m.numbers("many"))
	require.Nil(t, m.numbers("bad"))
	require.Equal(t, []int{0, 1, 2, 5}, m.list("list"))
	require.Equal(t, []string{"a", "b"}, m.dir("dir"))
	require.Equal(t, "dir/a", m.resolved("link"))
	require.Equal(t, "a", m.linkName("link"))
	require.Equal(t, "2", m.field("Seccomp", "status"))
	require.EqualValues(t, 100<<10, m.kib("MemAvailable", "meminfo"))
	require.EqualValues(t, -1, m.kib("MemBad", "meminfo"))
	for _, name := range []string{"neg9", "word", "empty", "two", "long", "huge", "pipe", "zero", "loop", "dir", "escape"} {
		require.EqualValues(t, -2, m.number(-2, name), name)
		require.Nil(t, m.list(name), name)
	}
	for _, name := range []string{"huge", "pipe", "zero", "loop", "dir", "none"} {
		_, err := m.text(name)
		require.Error(t, err, name)
		require.Empty(t, m.line(name), name)
		require.Empty(t, m.field("Name", name), name)
	}
	for _, name := range []string{"down", "repeats"} {
		require.Nil(t, m.list(name), name)
	}
	for _, name := range []string{"loop", "escape", "none"} {
		require.Empty(t, m.resolved(name), name)
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	_, err := m.text("huge")
	runtime.ReadMemStats(&after)
	require.ErrorContains(t, err, "is longer than 64 KiB")
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(1<<20), "no more than that is read")
	require.Nil(t, m.dir("n"))
	require.Nil(t, m.dir("none"))
}

// server is a machine of two sockets with four cores of two threads each, two GPUs and two 100 Gbit/s interfaces, one of each
// on each node. The second of everything has something to mend.
func server() files {
	f := files{}
	f.add("proc", `
		sys/kernel/osrelease: 6.1.0-18-amd64
		sys/kernel/io_uring_disabled: 0
		cpuinfo: model name : Example(R) Server   CPU 1234
		meminfo: MemAvailable:  263000000 kB
		self/cgroup: 0::/user.slice
		sys/net/core/rmem_max: 212992
		sys/net/core/wmem_max: 212992
		sys/net/core/busy_poll: 0
		sys/net/core/busy_read: 50
		sys/net/ipv4/tcp_rmem: 4096 131072 6291456
		sys/net/ipv4/tcp_wmem: 4096 16384 4194304
		sys/net/ipv4/tcp_congestion_control: bbr
		sys/net/ipv4/tcp_available_congestion_control: reno cubic bbr
		sys/net/ipv4/tcp_window_scaling: 1
		sys/net/ipv4/tcp_sack: 0
		sys/net/ipv4/tcp_moderate_rcvbuf: 1
		`)
	f["proc/self/status"] = "Cpus_allowed_list:\t0-15\nSeccomp:\t0\nNoNewPrivs:\t0\nCapEff:\t0000000000000000\n"
	f["proc/self/limits"] = limits("8388608", "8388608", "1048576")
	f["etc/nvme/hostnqn"] = "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-4ef0-9234-56789abcdef0\n"
	f["etc/nvme/hostid"] = "12345678-9abc-4ef0-9234-56789abcdef0\n"
	f.add("sys", `
		fs/cgroup/cgroup.controllers: cpuset cpu memory
		fs/cgroup/user.slice/cpu.max: max 100000
		fs/cgroup/user.slice/memory.max: max
		fs/cgroup/user.slice/cpuset.cpus.effective: 0-15
		devices/system/cpu/online: 0-15
		devices/system/cpu/isolated: 7,15
		devices/system/cpu/smt/control: on
		devices/system/node/online: 0-1
		devices/system/node/node0/cpulist: 0-3,8-11
		devices/system/node/node1/cpulist: 4-7,12-15
		devices/system/node/node0/distance: 10 21
		devices/system/node/node1/distance: 21 10
		kernel/mm/transparent_hugepage/enabled: always madvise [never]
		kernel/mm/hugepages/hugepages-2048kB/nr_hugepages: 16
		kernel/mm/hugepages/hugepages-2048kB/free_hugepages: 16
		kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages: 2
		kernel/mm/hugepages/hugepages-1048576kB/free_hugepages: 1
		`)
	for node := range 2 {
		dir := fmt.Sprintf("sys/devices/system/node/node%d/", node)
		f[dir+"meminfo"] = fmt.Sprintf("Node %d MemTotal:       131072000 kB\nNode %[1]d MemFree:        100000000 kB\n", node)
		f.add(dir+"hugepages/hugepages-2048kB", "nr_hugepages: 8\nfree_hugepages: 8\n")
	}
	for cpu := range 16 {
		core, node := cpu%8, cpu%8/4
		dir := fmt.Sprintf("sys/devices/system/cpu/cpu%d/", cpu)
		f[dir+"topology/thread_siblings_list"] = fmt.Sprintf("%d,%d\n", core, core+8)
		f[dir+"topology/physical_package_id"] = fmt.Sprintf("%d\n", node)
		f[dir+fmt.Sprintf("node%d", node)] = fmt.Sprintf("->sys/devices/system/node/node%d", node)
		f[dir+"cpufreq/scaling_governor"] = []string{"performance\n", "powersave\n"}[node]
	}
	f.nic("eth0", 2, "pci0000:10/0000:10:01.0/0000:11:00.0", "mlx5_core", 0, "100000", "0-3,8-11")
	f.nic("eth1", 3, "pci0000:80/0000:80:01.0/0000:81:00.0", "mlx5_core", 1, "100000", "0-15")
	f.add("sys/class/net/lo", "ifindex: 1\naddress: 00:00:00:00:00:00\n")
	f.add("sys/class/net/veth9", "ifindex: 4\naddress: 02:00:00:00:00:04\n")
	f.gpu("pci0000:10/0000:10:02.0/0000:12:00.0", "0x10de", "0x030200", "nvidia", 0, "32.0 GT/s PCIe", 16)
	f.gpu("pci0000:80/0000:80:02.0/0000:82:00.0", "0x10de", "0x030200", "nouveau", 1, "2.5 GT/s PCIe", 8)
	f["usr/lib/x86_64-linux-gnu/libcuda.so.1"] = elfHeader
	for _, d := range []string{"nvidiactl", "nvidia0", "nvidia-uvm"} {
		f["dev/"+d] = ""
	}
	return f
}

const elfHeader = "\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x03\x00\x3e\x00\x01\x00\x00\x00"

func limits(memlock, hard, nofile string) string {
	return "Limit                     Soft Limit           Hard Limit           Units     \n" +
		fmt.Sprintf("Max open files            %-20s %-20s files     \n", nofile, nofile) +
		fmt.Sprintf("Max locked memory         %-20s %-20s bytes     \n", memlock, hard)
}

func (f files) nic(name string, index int, pci, driver string, node int, speed, irqs string) {
	dir := "sys/devices/" + pci + "/net/" + name
	f["sys/class/net/"+name] = "->" + dir
	f[dir+"/device"] = "->sys/devices/" + pci
	f["sys/devices/"+pci+"/driver"] = "->sys/bus/pci/drivers/" + driver
	f["sys/bus/pci/drivers/"+driver+"/module"] = ""
	f.add(dir, fmt.Sprintf("ifindex: %d\naddress: 02:00:00:00:00:%02x\nspeed: %s\n", index, index, speed))
	f["sys/devices/"+pci+"/numa_node"] = fmt.Sprintf("%d\n", node)
	for i := range 4 {
		f[fmt.Sprintf("%s/queues/rx-%d/rps_cpus", dir, i)] = "0\n"
		f[fmt.Sprintf("%s/queues/tx-%d/xps_cpus", dir, i)] = "0\n"
		f[fmt.Sprintf("sys/devices/%s/msi_irqs/%d", pci, index*100+i)] = "msix\n"
		f[fmt.Sprintf("proc/irq/%d/effective_affinity_list", index*100+i)] = irqs + "\n"
	}
}

func (f files) gpu(pci, vendor, class, driver string, node int, speed string, width int) {
	dir := "sys/devices/" + pci
	f["sys/bus/pci/devices/"+filepath.Base(pci)] = "->" + dir
	f[dir+"/driver"] = "->sys/bus/pci/drivers/" + driver
	f["sys/bus/pci/drivers/"+driver+"/module"] = ""
	f.add(dir, fmt.Sprintf("vendor: %s\nclass: %s\ndevice: 0x2330\nnuma_node: %d\ncurrent_link_speed: %s\nmax_link_speed: 32.0 GT/s PCIe\ncurrent_link_width: %d\nmax_link_width: 16\n",
		vendor, class, node, speed, width))
	f.add(filepath.Dir(dir), "max_link_speed: 32.0 GT/s PCIe\nmax_link_width: 16\n")
}

// wellServer is the server when all is well, with AMD's GPUs.
func wellServer() files {
	f := server()
	for name := range f {
		if strings.HasSuffix(name, "scaling_governor") {
			f[name] = "performance\n"
		}
		if strings.HasPrefix(name, "proc/irq/3") {
			f[name] = "4-7,12-15\n"
		}
		if strings.HasPrefix(name, "dev/nvidia") || strings.HasPrefix(name, "sys/bus/pci/devices") || strings.Contains(name, "libcuda") ||
			strings.Contains(name, ":12:00.0/") || strings.Contains(name, ":82:00.0/") {
			delete(f, name)
		}
	}
	f.gpu("pci0000:10/0000:10:02.0/0000:12:00.0", "0x1002", "0x120000", "amdgpu", 0, "32.0 GT/s PCIe", 16)
	f.gpu("pci0000:80/0000:80:02.0/0000:82:00.0", "0x1002", "0x038000", "amdgpu", 1, "16.0 GT/s PCIe", 16)
	f.add("proc/sys/net/ipv4", "tcp_congestion_control: cubic\ntcp_sack: 1\ntcp_rmem: 4096 131072 33554432\ntcp_wmem: 4096 16384 33554432\n")
	f.add("sys/kernel/mm/hugepages/hugepages-2048kB", "nr_hugepages: 1024\nfree_hugepages: 1000\n")
	f["proc/self/limits"] = limits("unlimited", "unlimited", "1048576")
	f["etc/ld.so.conf.d/rocm.conf"] = "# ROCm\n/opt/rocm-6.3/lib\n"
	f["opt/rocm-6.3/lib/libamdhip64.so.6"] = elfHeader
	f["lib/libamdhip64.so.6"] = "\x7fELF\x01" + elfHeader[5:] // of 32 bits
	f["dev/kfd"], f["dev/dri/renderD128"] = "", ""
	return f
}

// virtual is a virtual machine with two CPUs and no surprises.
func virtual() files {
	f := files{}
	f.add("proc", `
		sys/kernel/osrelease: 6.18.44
		sys/kernel/io_uring_disabled: 0
		meminfo: MemAvailable:  23019104 kB
		sys/net/core/rmem_max: 4194304
		sys/net/core/wmem_max: 4194304
		sys/net/core/busy_poll: 0
		sys/net/core/busy_read: 0
		sys/net/ipv4/tcp_rmem: 4096 131072 33554432
		sys/net/ipv4/tcp_wmem: 4096 16384 4194304
		sys/net/ipv4/tcp_congestion_control: bbr
		sys/net/ipv4/tcp_available_congestion_control: reno bbr
		`)
	f["proc/cpuinfo"] = "processor\t: 0\nmodel name\t: AMD EPYC\nflags\t\t: fpu vme hypervisor lahf_lm\n"
	f["proc/self/cgroup"] = "4:memory:/job\n2:cpu,cpuacct:/\n0::/\n"
	f["proc/self/status"] = "Cpus_allowed_list:\t0-1\nSeccomp:\t0\nNoNewPrivs:\t0\nCapEff:\t000001fffeffffff\n"
	f["proc/self/limits"] = limits("8388608", "8388608", "20000")
	f["proc/self/ns/user"], f["proc/self/ns/pid"] = "->proc/self/ns/user:[4026531837]", "->proc/self/ns/pid:[4026531836]"
	f["proc/irq/37/smp_affinity_list"] = "0-1\n"
	f.add("sys", `
		fs/cgroup/cpu,cpuacct/cpu.cfs_quota_us: -1
		fs/cgroup/cpu,cpuacct/cpu.cfs_period_us: 100000
		fs/cgroup/memory/memory.limit_in_bytes: 9223372036854771712
		fs/cgroup/memory/job/memory.limit_in_bytes: 8589934592
		devices/system/cpu/online: 0-1
		devices/system/cpu/smt/control: notsupported
		devices/system/cpu/cpu0/topology/thread_siblings_list: 0
		devices/system/cpu/cpu1/topology/thread_siblings_list: 1
		devices/system/cpu/cpu0/topology/physical_package_id: 0
		devices/system/cpu/cpu1/topology/physical_package_id: 0
		devices/system/node/online: 0
		devices/system/node/node0/cpulist: 0-1
		devices/system/node/node0/distance: 10
		kernel/mm/transparent_hugepage/enabled: always [madvise] never
		kernel/mm/hugepages/hugepages-2048kB/nr_hugepages: 0
		kernel/mm/hugepages/hugepages-2048kB/free_hugepages: 0
		bus/pci/devices/0000:00:00.0/class: 0x060000
		devices/pci0000:00/0000:00:03.0/numa_node: -1
		devices/pci0000:00/0000:00:03.0/msi_irqs/37: msix
		devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/ifindex: 2
		devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/address: 02:00:00:00:00:02
		devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/speed: -1
		devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/queues/rx-0/rps_cpus: 0
		devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/queues/tx-0/xps_cpus: 0
		`)
	f["sys/class/net/eth0"] = "->sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0"
	f["sys/devices/pci0000:00/0000:00:03.0/virtio2/net/eth0/device"] = "->sys/devices/pci0000:00/0000:00:03.0/virtio2"
	f["sys/devices/pci0000:00/0000:00:03.0/virtio2/driver"] = "->sys/bus/virtio/drivers/virtio_net"
	f["sys/bus/virtio/drivers/virtio_net/module"] = ""
	f["proc/self/ns/user:[4026531837]"], f["proc/self/ns/pid:[4026531836]"] = "", ""
	return f
}

// contained is a container that has no sysfs but its cgroup, a quota and a small memory limit.
func contained() files {
	f := files{}
	f.add("proc", `
		sys/kernel/osrelease: 5.15.0-91-generic
		sys/kernel/io_uring_disabled: 2
		meminfo: MemAvailable:  8000000 kB
		self/cgroup: 0::/
		sys/net/ipv4/tcp_rmem: 4096 131072 6291456
		sys/net/ipv4/tcp_wmem: 4096 16384 4194304
		sys/net/ipv4/tcp_congestion_control: cubic
		`)
	f["proc/cpuinfo"] = "processor\t: 0\nCPU implementer\t: 0x41\nCPU part\t: 0xd40\n"
	f["proc/self/status"] = "Cpus_allowed_list:\t0-3\nSeccomp:\t2\nNoNewPrivs:\t1\nCapEff:\t00000000a80425fb\n"
	f["proc/self/limits"] = limits("65536", "unlimited", "16")
	f["proc/self/ns/user"], f["proc/self/ns/pid"] = "->proc/self/ns/user:[4026532500]", "->proc/self/ns/pid:[4026532501]"
	f["etc/nvme/hostnqn"] = "nqn.2025-01.io.example:server\n"
	f["run/.containerenv"] = ""
	f.add("sys/fs/cgroup", `
		cgroup.controllers: cpuset cpu memory
		cpu.max: 150000 100000
		memory.max: 100663296
		`)
	return f
}
