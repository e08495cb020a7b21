package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/internal/topo"
)

var update = flag.Bool("update", false, "rewrite the golden files")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// golden compares with a file in testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(file, []byte(got), 0o644))
	}
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	require.Equal(t, string(want), got, "%s: if it is meant to be so, run the test with -update", file)
}

// madeUp is a machine of made-up files, that has no network yet and io_uring as on Linux 6.6.
func madeUp(t *testing.T, f files, cpus int) *machine {
	t.Helper()
	var allowed []int
	for cpu := range cpus {
		allowed = append(allowed, cpu)
	}
	return &machine{
		tree:       tree{f.write(t)},
		allowed:    func() ([]int, error) { return allowed, nil },
		interfaces: func() ([]net.Interface, error) { return []net.Interface{madeUpNIC("lo", 1)}, nil },
		addrs:      func() ([]net.Addr, error) { return nil, nil },
		ethtool:    func(string) (ethtoolFacts, error) { return ethtoolFacts{}, errors.New("no such device") },
		route:      func(netip.Addr, netip.Addr) (string, error) { return "", errors.New("no route") },
		lookup: func(_ context.Context, host string) ([]netip.Addr, error) {
			ip, err := netip.ParseAddr(host)
			return []netip.Addr{ip}, err
		},
		uring: func() uringFacts {
			return uringFacts{Works: true, Flags: []string{"DEFER_TASKRUN", "SINGLE_ISSUER"}, Notes: []string{"NO_SQARRAY refused: invalid argument (it needs Linux 6.6)"}, Ops: 49, ops: slices.Repeat([]bool{true}, 49)}
		},
		try:        func(context.Context, *flags, int, *targetFacts) error { return errors.New("no target") },
		env:        func(name string) string { return map[string]string{"HOME": "/home/somebody"}[name] },
		gomaxprocs: cpus,
		numCPU:     cpus,
		arch:       "amd64",
	}
}

func madeUpNIC(name string, index int) net.Interface {
	i := net.Interface{Index: index, MTU: 1500, Name: name, Flags: net.FlagUp | net.FlagRunning, HardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, byte(index)}}
	if name == "lo" {
		i.Flags |= net.FlagLoopback
	}
	return i
}

func yes(b bool) *bool { return &b }

// withNICs gives the server its interfaces. The second is badly set up unless all is well.
func (m *machine) withNICs(well bool) *machine {
	m.interfaces = func() ([]net.Interface, error) {
		first, second := madeUpNIC("eth0", 2), madeUpNIC("eth1", 3)
		first.MTU = 9000
		down := madeUpNIC("veth9", 4)
		down.Flags = 0
		return []net.Interface{madeUpNIC("lo", 1), first, second, down}, nil
	}
	m.ethtool = func(name string) (ethtoolFacts, error) {
		e := ethtoolFacts{yes(true), yes(true), yes(true), &of{1024, 8192}, &of{1024, 8192}, &of{8, 16}, false}
		if name == "eth1" && !well {
			e = ethtoolFacts{yes(false), yes(true), yes(false), &of{256, 8192}, &of{1024, 8192}, &of{2, 16}, false}
		}
		return e, nil
	}
	m.route = func(_, dst netip.Addr) (string, error) {
		if dst == netip.MustParseAddr("192.0.2.10") {
			return "eth1", nil
		}
		return "", fmt.Errorf("the interface that leads to %v is not known: network is unreachable", dst)
	}
	return m
}

// doctor runs the program on a machine.
func doctor(t *testing.T, m *machine, args ...string) (status int, out, errs string) {
	t.Helper()
	var o, e bytes.Buffer
	status = run(t.Context(), args, &o, &e, func(ctx context.Context, f *flags) (*report, error) {
		r := m.examine(ctx, f)
		check(t, r)
		return r, nil
	})
	return status, strings.ReplaceAll(o.String(), m.root, ""), e.String()
}

// check is what must be so of any report.
func check(t *testing.T, r *report) {
	t.Helper()
	ids := map[string]bool{}
	topics := []string{}
	for _, f := range r.Findings {
		require.NotEmpty(t, f.ID)
		require.NotEmpty(t, f.Text, f.ID)
		key := f.Topic + "/" + f.ID + "/" + f.About
		require.False(t, ids[key], key)
		ids[key] = true
		if n := len(topics); n == 0 || topics[n-1] != f.Topic {
			topics = append(topics, f.Topic)
		}
		if f.Mark == bad {
			require.NotEmpty(t, f.Mend, f.Text)
		} else {
			require.False(t, f.Blocks)
			require.Contains(t, []mark{good, neutral}, f.Mark)
		}
		for _, s := range []string{f.Text, f.Mend} {
			require.Equal(t, s, nameText(s))
			require.NotContains(t, s, "%!")
			require.Less(t, len(s), 4096, f.ID)
			require.True(t, utf8.ValidString(s))
		}
	}
	slices.Sort(topics)
	require.Equal(t, slices.Compact(slices.Clone(topics)), topics, "a topic comes once")
	noNilSlices(t, "report", reflect.ValueOf(r))
}

// noNilSlices: a list that is empty is [] in JSON, not null.
func noNilSlices(t *testing.T, at string, v reflect.Value) {
	t.Helper()
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noNilSlices(t, at, v.Elem())
		}
	case reflect.Slice:
		require.False(t, v.IsNil(), at)
		for i := range v.Len() {
			noNilSlices(t, at+"[]", v.Index(i))
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if f := v.Type().Field(i); f.IsExported() {
				noNilSlices(t, at+"."+f.Name, v.Field(i))
			}
		}
	}
}

func TestServer(t *testing.T) {
	m := madeUp(t, server(), 16).withNICs(false)
	status, out, errs := doctor(t, m)
	require.Equal(t, exitOK, status)
	require.Empty(t, errs)
	golden(t, "server.txt", out)
	status, out, _ = doctor(t, m, "--json")
	require.Equal(t, exitOK, status)
	golden(t, "server.json", out)
	status, _, _ = doctor(t, m, "--strict")
	require.Equal(t, exitFailed, status)
}

func TestAllIsWell(t *testing.T) {
	m := madeUp(t, wellServer(), 16).withNICs(true)
	status, out, _ := doctor(t, m, "--strict")
	golden(t, "well.txt", out)
	require.Equal(t, exitOK, status)
	require.NotContains(t, out, "✗")
}

func TestVirtualMachine(t *testing.T) {
	m := madeUp(t, virtual(), 2)
	m.interfaces = func() ([]net.Interface, error) {
		return []net.Interface{madeUpNIC("lo", 1), madeUpNIC("eth0", 2)}, nil
	}
	m.ethtool = func(string) (ethtoolFacts, error) {
		return ethtoolFacts{yes(true), yes(true), yes(true), &of{256, 256}, &of{256, 256}, &of{1, 1}, false}, nil
	}
	status, out, _ := doctor(t, m)
	golden(t, "virtual.txt", out)
	require.Equal(t, exitOK, status)
}

func TestContainer(t *testing.T) {
	m := madeUp(t, contained(), 4)
	m.interfaces = func() ([]net.Interface, error) {
		return []net.Interface{madeUpNIC("lo", 1), madeUpNIC("eth0", 2)}, nil
	}
	m.uring = func() uringFacts {
		return uringFacts{Error: "io_uring_setup: operation not permitted: sysctl kernel.io_uring_disabled is 2, which forbids it to everyone: set it to 0"}
	}
	m.gomaxprocs = 2
	m.env = func(string) string { return "" }
	status, out, _ := doctor(t, m)
	golden(t, "container.txt", out)
	require.Equal(t, exitFailed, status)
}

// Nothing at all is known, and nothing fails.
func TestNothing(t *testing.T) {
	m := madeUp(t, files{}, 0)
	m.allowed = func() ([]int, error) { return nil, errors.New("not known") }
	m.interfaces = func() ([]net.Interface, error) { return nil, errors.New("not known") }
	m.uring = func() uringFacts { return uringFacts{Error: "io_uring_setup: function not implemented"} }
	m.gomaxprocs, m.numCPU = 1, 1
	require.NoError(t, os.Chmod(m.root, 0o755))
	status, out, _ := doctor(t, m)
	golden(t, "nothing.txt", out)
	require.Equal(t, exitOK, status)
}

func TestTarget(t *testing.T) {
	const nqn = "nqn.2025-01.io.example:models"
	m := madeUp(t, wellServer(), 16).withNICs(true)
	status, out, _ := doctor(t, m, "-a", "192.0.2.10")
	require.Equal(t, exitOK, status)
	require.Contains(t, out, "✔ 192.0.2.10 is reached through interface eth1\n")
	require.Contains(t, out, "targets behind eth1: with --pin local (Options.Pin) on CPUs 4,5,6,7: interface eth1 is on NUMA node 1\n")
	require.NotContains(t, out, "behind eth0")
	require.NotContains(t, out, "eth0: TSO", "it does not matter")

	status, out, _ = doctor(t, m, "-a", "198.51.100.1")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "✗ the interface that leads to 198.51.100.1 is not known: network is unreachable\n      → ip route get 198.51.100.1\n")

	m.lookup = func(context.Context, string) ([]netip.Addr, error) { return nil, errors.New("no such host") }
	status, out, _ = doctor(t, m, "-a", "storage.example")
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "✗ the address of \"storage.example\" is not known: no such host\n      → getent ahosts storage.example\n")

	m.lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("::ffff:192.0.2.10"), netip.MustParseAddr("192.0.2.11")}, nil
	}
	status, out, _ = doctor(t, m, "-a", "storage.example", "-n", nqn)
	require.Equal(t, exitFailed, status)
	require.Contains(t, out, "has 2 addresses: 192.0.2.10 192.0.2.11")
	require.Contains(t, out, "✗ no target\n      → shardload discover -a storage.example -s 4420")

	m.try = func(_ context.Context, _ *flags, queues int, facts *targetFacts) error {
		require.Equal(t, 4, queues)
		facts.Model, facts.Queues, facts.NSIDs, facts.RTT, facts.PathMTU, facts.Pinned, facts.Reason = "Linux", 2, []uint32{1, 2}, 55.4, 1500, []int{4, -1}, "why"
		return nil
	}
	status, out, _ = doctor(t, m, "-a", "storage.example", "-n", nqn)
	require.Equal(t, exitOK, status)
	require.Contains(t, out, "✔ connected to "+nqn+" at storage.example:4420: Linux, 2 I/O queues, namespace 1,2\n")
	require.Contains(t, out, "– the controller granted 2 of 4 I/O queues\n")
	require.Contains(t, out, "– round trip 55 µs, path MTU 1500\n")
	require.Contains(t, out, "– pinned: 4,none: why\n")

	m.addrs = func() ([]net.Addr, error) {
		return []net.Addr{&net.IPNet{IP: net.IPv4(192, 0, 2, 10), Mask: net.CIDRMask(24, 32)}}, nil
	}
	put(t, m.root, "proc/sys/net/ipv4/tcp_congestion_control", "bbr\n")
	_, out, _ = doctor(t, m, "-a", "192.0.2.10")
	require.Contains(t, out, "✗ congestion control bbr paces loopback, where the target is")
	require.Contains(t, out, "→ sysctl -w net.ipv4.tcp_congestion_control=cubic\n")
}

// One thing at a time is different from the server where all is well.
func TestOneThing(t *testing.T) {
	change := func(name, content string) func(*machine) {
		return func(m *machine) { put(t, m.root, name, content) }
	}
	const gpu = "sys/devices/pci0000:10/0000:10:02.0/"
	_, before, _ := doctor(t, madeUp(t, wellServer(), 16).withNICs(true))
	for name, c := range map[string]struct {
		how     func(*machine)
		want    string // line that is there then
		blocked bool
	}{
		"queues asked for": {func(m *machine) { m.allowed = func() ([]int, error) { return []int{0}, nil } }, "✗ the process may use only CPU 0", false},
		"off the node":     {func(m *machine) { m.allowed = func() ([]int, error) { return []int{0, 1, 2}, nil } }, "→ numactl --cpunodebind=1 PROGRAM", false},
		"GOMAXPROCS":       {func(m *machine) { m.gomaxprocs = 2 }, "→ export GOMAXPROCS=5", false},
		"node without RAM": {change("sys/devices/system/node/node1/meminfo", "Node 1 MemTotal: 0 kB\nNode 1 MemFree: 0 kB\n"), "✗ node 1: CPUs 4-7,12-15, 0 B of memory", false},
		"quota":            {change("sys/fs/cgroup/user.slice/cpu.max", "250000 100000\n"), "✗ the cgroup allows 2.5 CPUs' worth of time on 16 CPUs", false},
		"quota above":      {change("sys/fs/cgroup/cpu.max", "50000 100000\n"), "✗ the cgroup allows 0.5 CPUs' worth of time on 16 CPUs", false},
		"quota below": {func(m *machine) {
			put(t, m.root, "sys/fs/cgroup/cpu.max", "800000 100000\n")
			put(t, m.root, "sys/fs/cgroup/user.slice/cpu.max", "700000 100000\n")
		}, "✗ the cgroup allows 7 CPUs' worth of time on 16 CPUs", false},
		"quota of both": {func(m *machine) {
			put(t, m.root, "sys/fs/cgroup/cpu.max", "600000 100000\n")
			put(t, m.root, "sys/fs/cgroup/user.slice/cpu.max", "700000 100000\n")
		}, "✗ the cgroup allows 6 CPUs' worth of time on 16 CPUs", false},
		"cgroup v1, no limit": {func(m *machine) {
			put(t, m.root, "proc/self/cgroup", "3:memory:/job\n")
			put(t, m.root, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
		}, "✔ 250.8 GiB of memory is available, for a pool", false},
		"cgroup v1": {func(m *machine) {
			put(t, m.root, "proc/self/cgroup", "3:memory:/job\n")
			put(t, m.root, "sys/fs/cgroup/memory/job/memory.limit_in_bytes", "120000000\n")
		}, "✗ the cgroup allows 114.4 MiB, less than a pool of 64 MiB and 64 MiB for the rest", true},
		"some pages in use": {change("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "30\n"), "→ sysctl -w vm.nr_hugepages=1026 ", false},
		"CAP_IPC_LOCK in a user namespace": {func(m *machine) {
			put(t, m.root, "proc/self/limits", limits("65536", "65536", "1024"))
			put(t, m.root, "proc/self/status", "CapEff:\t000001ffffffffff\n")
			put(t, m.root, "proc/self/ns/user", "->proc/self/ns/user:[4026532500]")
		}, "✗ 64 KiB of memory may be locked", false},
		"CAP_IPC_LOCK": {func(m *machine) {
			put(t, m.root, "proc/self/limits", limits("65536", "65536", "1024"))
			put(t, m.root, "proc/self/status", "CapEff:\t000001ffffffffff\n")
		}, "✔ memory may be locked without limit (CAP_IPC_LOCK)", false},
		"just enough files": {change("proc/self/limits", limits("unlimited", "unlimited", "36")), "✔ open files: 36 ", false},
		"memory limit":      {change("sys/fs/cgroup/user.slice/memory.max", "100000000\n"), "→ docker run --memory=134217728 ", true},
		"little memory": {func(m *machine) {
			put(t, m.root, "proc/meminfo", "MemAvailable: 1000 kB\n")
			put(t, m.root, "sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", "31\n")
		}, "✗ 1000 KiB of memory is available, less than a pool of 64 MiB", true},
		"few files":    {change("proc/self/limits", limits("unlimited", "unlimited", "30")), "✗ open files: 30 (RLIMIT_NOFILE); a connection of 4 I/O queues needs up to 36\n      → ulimit -n 1024", true},
		"soft memlock": {change("proc/self/limits", limits("65536", "unlimited", "1024")), "→ ulimit -S -l 65536 ", false},
		"memlock":      {change("proc/self/limits", limits("65536", "65536", "1024")), "→ ulimit -l unlimited ", false},
		"slot":         {change(gpu+"max_link_width", "8\n"), "✗ 0000:12:00.0: the slot has 8 of the card's 16 lanes", false},
		"slow slot": {func(m *machine) {
			put(t, m.root, gpu+"max_link_speed", "16.0 GT/s PCIe\n")
			put(t, m.root, gpu+"0000:12:00.0/current_link_speed", "16.0 GT/s PCIe\n")
		}, "✔ 0000:12:00.0: PCIe link x16 at 16.0 GT/s PCIe", false},
		"promised pages":    {change("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", "990\n"), "✗ reserved huge pages: 1024 of 2 MiB (10 free)", false},
		"library by name":   {func(m *machine) { m.env = func(string) string { return "/elsewhere.so" } }, "✗ libamdhip64.so.7 is not where libraries", false},
		"memory in use":     {change("sys/fs/cgroup/user.slice/memory.current", "9\n"), "✔ 250.8 GiB of memory is available", false},
		"lanes":             {change(gpu+"0000:12:00.0/current_link_width", "4\n"), "✗ 0000:12:00.0: the PCIe link has 4 of 16 lanes", false},
		"no driver":         {func(m *machine) { require.NoError(t, os.Remove(m.path(gpu, "0000:12:00.0/driver"))) }, "→ modprobe amdgpu\n", false},
		"no library":        {func(m *machine) { require.NoError(t, os.Remove(m.path("opt/rocm-6.3/lib/libamdhip64.so.6"))) }, "✗ libamdhip64.so.7 is not where libraries", false},
		"wrong library":     {change("opt/rocm-6.3/lib/libamdhip64.so.6", "no library, but long enough"), "✗ libamdhip64.so.7 is not where libraries", false},
		"no device file":    {func(m *machine) { require.NoError(t, os.Remove(m.path("dev/kfd"))) }, "✗ device files are missing: have /dev/dri/renderD128", false},
		"window scaling":    {change("proc/sys/net/ipv4/tcp_window_scaling", "0\n"), "→ sysctl -w net.ipv4.tcp_window_scaling=1", false},
		"zero host ID":      {change("etc/nvme/hostid", "00000000-0000-0000-0000-000000000000\n"), "✗ in /etc/nvme: hostid is zero", true},
		"broken host ID":    {change("etc/nvme/hostid", "1234\n"), "✗ in /etc/nvme: ", true},
		"broken NQN":        {change("etc/nvme/hostnqn", "nqn.x\n"), "✗ in /etc/nvme: NQN", true},
		"ID without NQN":    {change("etc/nvme/hostnqn", "\n"), "✔ nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-4ef0-9234-56789abcdef0, ID 12345678", false},
		"only one RX queue": {func(m *machine) { m.ethtool = oneQueue(4) }, "→ ethtool -L eth0 rx 4\n", false},
		"combined queue":    {func(m *machine) { m.ethtool = oneQueue(1) }, "✔ eth0: TSO, GRO, RX checksum on\n", false},
		"old kernel":        {change("proc/sys/kernel/osrelease", "4.19.0\n"), "– Linux 4.19.0 on amd64: older than 5.19", false},
		"another namespace": {change("sys/class/net/eth1/ifindex", "9\n"), "eth1: speed not known, MTU 1500, sysfs does not show it", false},
		"no home": {func(m *machine) {
			require.NoError(t, os.RemoveAll(m.path("etc/nvme")))
			m.env = func(string) string { return "" }
		}, "✗ there is no identity in /etc/nvme, and none can be kept: neither $XDG_CONFIG_HOME nor $HOME is set", true},
		"identity of the user": {func(m *machine) {
			require.NoError(t, os.RemoveAll(m.path("etc/nvme")))
			put(t, m.root, "home/somebody/.config/nvstage/hostid", "12345678-9abc-4ef0-9234-56789abcdef0\n")
		}, "ID 12345678-9abc-4ef0-9234-56789abcdef0, from /home/somebody/.config/nvstage\n", false},
	} {
		t.Run(name, func(t *testing.T) {
			m := madeUp(t, wellServer(), 16).withNICs(true)
			c.how(m)
			status, out, _ := doctor(t, m)
			require.Contains(t, out, c.want)
			require.Equal(t, map[bool]int{true: exitFailed, false: exitOK}[c.blocked], status)
			if strings.HasPrefix(c.want, "✗") || strings.HasPrefix(c.want, "→") {
				require.NotContains(t, before, c.want)
			}
		})
	}
}

func oneQueue(most int) func(string) (ethtoolFacts, error) {
	return func(string) (ethtoolFacts, error) {
		return ethtoolFacts{yes(true), yes(true), yes(true), nil, nil, &of{1, most}, most > 1}, nil
	}
}

// Whatever a file holds, there is a report, of a reasonable size, that a terminal can show.
func TestHostileFiles(t *testing.T) {
	all := server()
	maps.Copy(all, files{"sys/fs/cgroup/cpu.max": "1 1\n", "etc/ld.so.conf.d/x.conf": "/x\n"})
	m := madeUp(t, all, 16).withNICs(false)
	kinds := map[string]string{
		"empty": "", "word": "word", "minus": "-1", "zero": "0\n", "large": "99999999999999999999999\n", "int64": "9223372036854775807\n", "long": strings.Repeat("A", 1<<20),
		"list": strings.Repeat("0-8191,", 1<<10), "lines": strings.Repeat("x: 1 kB\n0::/../../..\n", 1<<12), "control": "\x1b[31m\x00\xff", "wide": "0-8191", "two": "9223372036854775807 9223372036854775807 9223372036854775807",
		"loop": "->loop", "out": "->../../../..", "dir": "",
	}
	replace := func(name, kind string) {
		file := filepath.Join(m.root, name)
		require.NoError(t, os.RemoveAll(file))
		switch kind {
		case "loop":
			require.NoError(t, os.Symlink(filepath.Base(file), file))
		case "dir":
			require.NoError(t, os.Mkdir(file, 0o755))
		default:
			put(t, m.root, name, kinds[kind])
		}
	}
	names := slices.Sorted(maps.Keys(all))
	seen := func(what string) {
		_, out, errs := doctor(t, m)
		require.Empty(t, errs, what)
		require.Less(t, len(out), 64<<10, what)
		for _, r := range out {
			require.True(t, r == '\n' || r >= ' ', what)
		}
	}
	for i, name := range names {
		if strings.HasPrefix(name, "proc/irq/") || strings.Contains(name, "queues/") || strings.Contains(name, "msi_irqs/") || strings.Contains(name, "cpu1") {
			continue // there are many alike
		}
		for j, kind := range slices.Sorted(maps.Keys(kinds)) {
			if (i+j)%6 == 0 || testing.Verbose() {
				replace(name, kind)
				seen(name + " " + kind)
			}
		}
		require.NoError(t, os.RemoveAll(filepath.Join(m.root, name)))
		put(t, m.root, name, all[name])
	}
	for kind := range kinds {
		m.root = t.TempDir()
		for _, name := range names {
			if !strings.HasPrefix(all[name], "->") {
				put(t, m.root, name, "")
				replace(name, kind)
			}
		}
		for _, name := range names {
			if strings.HasPrefix(all[name], "->") {
				put(t, m.root, name, all[name])
			}
		}
		seen("all " + kind)
	}
}

// schemaOf lists the fields of a type as JSON has them.
func schemaOf(at string, ty reflect.Type, into *[]string) {
	switch ty.Kind() {
	case reflect.Pointer:
		schemaOf(at, ty.Elem(), into)
	case reflect.Slice:
		schemaOf(at+"[]", ty.Elem(), into)
	case reflect.Struct:
		for i := range ty.NumField() {
			if f := ty.Field(i); f.IsExported() {
				name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
				schemaOf(at+"."+name, f.Type, into)
			}
		}
	default:
		*into = append(*into, fmt.Sprintf("%s %s", strings.TrimPrefix(at, "."), ty.Kind()))
	}
}

// Programs read the JSON: a field that goes or changes its type is another schema.
func TestSchema(t *testing.T) {
	fields := []string{fmt.Sprintf("schema %d", schema)}
	schemaOf("", reflect.TypeFor[report](), &fields)
	golden(t, "schema.txt", strings.Join(fields, "\n")+"\n")
	readme, err := os.ReadFile("README.md")
	require.NoError(t, err)
	for i := range reflect.TypeFor[report]().NumField() {
		name, _, _ := strings.Cut(reflect.TypeFor[report]().Field(i).Tag.Get("json"), ",")
		require.Contains(t, string(readme), "`"+name+"`", "README.md explains it")
	}
}

// The advice is what the library chooses: both ask the same code.
func TestSameChoice(t *testing.T) {
	m := madeUp(t, server(), 16).withNICs(false)
	for queues := 1; queues <= 17; queues++ {
		f := &flags{ioQueues: queues, memory: 1 << 20}
		r := m.examine(t.Context(), f)
		for _, w := range r.Placement.Ways {
			ifi := madeUpNIC(w.Interface, map[string]int{"eth0": 2, "eth1": 3}[w.Interface])
			cpus, reason := topo.NearInterface(m.path("sys"), r.CPU.Allowed, &ifi).Place(queues, r.CPU.Allowed)
			require.Equal(t, wayFacts{w.Interface, w.Node, cpus, reason}, w)
		}
		require.Len(t, r.Placement.Ways, 2)
	}
}
