package staging

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
)

// status reads a line of /proc/self/status that is in kB, in bytes.
func status(t testing.TB, key string) int64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	require.NoError(t, err)
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == key+":" && f[2] == "kB" {
			n, err := strconv.ParseInt(f[1], 10, 64)
			require.NoError(t, err)
			return n << 10
		}
	}
	t.Fatalf("no %s in /proc/self/status", key)
	return 0
}

// mapEntry is the entry of /proc/self/smaps or numa_maps that begins at mem, as one text; empty if there is none.
func mapEntry(t testing.TB, file string, mem []byte) string {
	t.Helper()
	text, err := os.ReadFile("/proc/self/" + file)
	require.NoError(t, err)
	head := fmt.Sprintf("%08x", uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	var entry strings.Builder
	for line := range strings.Lines(string(text)) {
		isHead := line[0] >= '0' && line[0] <= '9' || line[0] >= 'a' && line[0] <= 'f'
		switch {
		case isHead && entry.Len() > 0:
			return entry.String()
		case entry.Len() > 0 || strings.HasPrefix(line, head):
			entry.WriteString(line)
		}
	}
	return entry.String()
}

// hugePool makes a pool of hugepages that it reserves for the test, or skips it.
func hugePool(t *testing.T, cfg PoolConfig, page int64) *Pool {
	t.Helper()
	path := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/nr_hugepages", page>>10)
	count := func() int64 {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Skipf("NOT TESTED: pages of %s: this machine has none: %v", sizeText(page), err)
		}
		n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
		require.NoError(t, err)
		return n
	}
	reserve := func(n int64) {
		if err := os.WriteFile(path, fmt.Append(nil, n), 0o644); err != nil {
			t.Skipf("NOT TESTED: pages of %s: reserving some: %v", sizeText(page), err)
		}
	}
	want := (cfg.Bytes + page - 1) / page
	var got int64
	t.Cleanup(func() { reserve(count() - got) })
	for try := 0; ; try++ {
		p, err := NewPool(cfg)
		if err == nil {
			return p
		}
		// Pools of other programs take what is free, so what was enough may not be; and to find pages in one piece takes time.
		if try == 8 {
			t.Skipf("NOT TESTED: pages of %s: %v", sizeText(page), err)
		}
		before := count()
		reserve(before + want)
		got += count() - before
		time.Sleep(time.Duration(try) * 20 * time.Millisecond)
	}
}

func TestPoolHugePages(t *testing.T) {
	for _, page := range []int64{2 << 20, 1 << 30} {
		for _, debug := range []bool{false, true} {
			if page == 1<<30 && debug {
				continue // nothing else than with smaller pages
			}
			t.Run(fmt.Sprintf("%s/debug=%v", sizeText(page), debug), func(t *testing.T) {
				if page == 1<<30 && os.Getenv("NVSTAGE_TEST_1GIB") == "" {
					t.Skip("NOT TESTED: a page of 1 GiB, for which the kernel moves others about for half a minute: set NVSTAGE_TEST_1GIB=1")
				}
				before := status(t, "HugetlbPages")
				l := &Limit{}
				// Not a whole page, so that it is rounded up.
				p := hugePool(t, PoolConfig{Bytes: 3 << 20, HugePages: Require, HugePageSize: page, Limit: l, Debug: debug}, page)
				info := p.Info()
				t.Log(info)
				whole := (info.Bytes + page - 1) / page * page
				require.True(t, info.HugePages)
				require.Empty(t, info.HugePagesNote)
				require.Equal(t, page, info.PageSize)
				require.Contains(t, info.String(), sizeText(page)+" pages")
				require.Equal(t, whole, info.MemoryBytes)
				require.Equal(t, whole, l.Used())
				require.Equal(t, info.Bytes, info.LockedBytes)
				require.Equal(t, before+whole, status(t, "HugetlbPages"), "all of it is there, and no more")
				require.Contains(t, strings.Join(strings.Fields(mapEntry(t, "smaps", p.mem)), " "), fmt.Sprintf("KernelPageSize: %d kB", page>>10))
				require.Equal(t, debug, info.GuardNote != "")
				require.Zero(t, info.Guards)
				b, ok := p.TryGet()
				require.True(t, ok)
				b.Bytes()[info.BufferSize-1] = 1
				b.Release()
				require.NoError(t, p.Close())
				require.Equal(t, before, status(t, "HugetlbPages"))
				require.Zero(t, l.Used())
			})
		}
	}
}

// The size of the pages follows from that of the pool, and what is not to be had says how to have it.
func TestPoolHugePageSize(t *testing.T) {
	lack := func(bytes int64, cfg PoolConfig) string {
		cfg.Limit = &Limit{Bytes: 1} // so that there is none to be had
		p := &Pool{info: PoolInfo{Bytes: bytes, BufferSize: 1 << 20, Buffers: int(bytes >> 20)}}
		err := p.mapHuge(t.Context(), cfg, -1)
		require.Error(t, err)
		require.Empty(t, p.undo)
		return err.Error()
	}
	require.Regexp(t, "^2 GiB asked for.*; 2 GiB asked for", lack(2<<30, PoolConfig{}), "1 GiB pages, then 2 MiB pages")
	require.Regexp(t, "^1026 MiB asked for[^;]*$", lack(1025<<20, PoolConfig{}), "2 MiB pages only, rounded up")
	require.Regexp(t, "^2 GiB asked for[^;]*$", lack(1025<<20, PoolConfig{HugePageSize: 1 << 30}), "rounded up")
	require.Equal(t, "not asked for", lack(1<<20, PoolConfig{HugePages: Never}))
	require.Contains(t, lack(1<<20, PoolConfig{Debug: true}), "guard pages")

	require.Regexp(t, `^, \d+ are free: reserve more with .echo \d+ > /sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages`, reserveHint(2<<20, 5))
	require.Equal(t, ", which this machine does not have", reserveHint(3<<20, 5))
	for _, size := range []int64{-1, 4096, 4 << 20} {
		_, err := NewPool(PoolConfig{HugePageSize: size})
		require.ErrorContains(t, err, "want 2 MiB, 1 GiB, or 0")
	}
}

// Where there is no page to be had, it is an error rather than a signal.
func TestPopulateNone(t *testing.T) {
	fd, err := unix.MemfdCreate("empty", unix.MFD_CLOEXEC)
	require.NoError(t, err)
	defer unix.Close(fd)
	m, err := unix.Mmap(fd, 0, 8192, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED) // beyond the end of the file: as with hugepages
	require.NoError(t, err)
	defer func() { require.NoError(t, unix.Munmap(m)) }()
	require.ErrorIs(t, populate(t.Context(), m), unix.EFAULT)
	require.ErrorContains(t, touch(m), "no page to be had")

	p, unmap, err := mapMemory(1 << 20)
	require.NoError(t, err)
	defer unmap()
	require.NoError(t, populate(t.Context(), p))
	require.NoError(t, touch(p))
}

// A pool that the machine cannot hold is an error, not the end of some process.
func TestPoolTooLarge(t *testing.T) {
	free, err := topo.Available()
	require.NoError(t, err)
	l := &Limit{}
	for _, debug := range []bool{false, true} {
		_, err = NewPool(PoolConfig{Bytes: free + 4<<30, BufferSize: 1 << 30, HugePages: Never, Limit: l, Debug: debug})
		require.ErrorContains(t, err, "the machine, or the cgroup, has only")
		require.Zero(t, l.Used())
	}
}

// Pinned and resident memory are back to where they were after Close, in every mode.
func TestPoolGivesBack(t *testing.T) {
	const size = 64 << 20
	for _, cfg := range []PoolConfig{
		{},
		{HugePages: Never},
		{Debug: true},
		{Node: new(0)},
		{Devices: []Device{&pinner{name: "gpu"}}},
	} {
		cfg.Bytes = size
		runtime.GC()
		debug.FreeOSMemory()
		locked, resident := status(t, "VmLck"), status(t, "VmRSS")
		p, err := NewPool(cfg)
		require.NoError(t, err)
		info := p.Info()
		t.Log(info)
		if !info.HugePages {
			require.Equal(t, locked+info.LockedBytes, status(t, "VmLck"))
			require.Greater(t, status(t, "VmRSS"), resident+size*15/16)
		}
		require.NoError(t, p.Close())
		require.Equal(t, locked, status(t, "VmLck"))
		debug.FreeOSMemory()
		require.Less(t, status(t, "VmRSS"), resident+size/4)
	}
}

// A pool whose making fails leaves nothing behind.
func TestPoolFailureGivesBack(t *testing.T) {
	runtime.GC()
	debug.FreeOSMemory()
	locked, resident := status(t, "VmLck"), status(t, "VmRSS")
	for range 8 {
		_, err := NewPool(PoolConfig{Bytes: 32 << 20, Devices: []Device{&pinner{name: "gpu", failAt: 1}}, Register: Require})
		require.ErrorIs(t, err, errPin)
	}
	require.Equal(t, locked, status(t, "VmLck"))
	require.Less(t, status(t, "VmRSS"), resident+64<<20)
}

func TestPoolNode(t *testing.T) {
	nodes := topo.Nodes()
	cfg := PoolConfig{Bytes: 4 << 20, HugePages: Never, Bind: Require}
	if len(nodes) == 0 {
		cfg.Node = new(0)
		_, err := NewPool(cfg)
		require.ErrorContains(t, err, "no NUMA nodes")
	}
	for _, node := range nodes {
		cfg.Node = &node
		for _, debug := range []bool{false, true} {
			cfg.Debug = debug
			p := newPoolOf(t, cfg)
			info := p.Info()
			t.Log(info)
			require.Equal(t, node, info.Node)
			require.Equal(t, len(nodes) == 1, info.NodeNote != "", "that there is no other")
			require.Contains(t, info.String(), fmt.Sprintf("NUMA node %d", node))
			require.Contains(t, mapEntry(t, "numa_maps", p.areas()[0]), fmt.Sprintf(" bind:%d ", node))
			require.Contains(t, mapEntry(t, "numa_maps", p.areas()[len(p.areas())-1]), fmt.Sprintf(" bind:%d ", node))
		}
		cfg.Bind, cfg.Debug = Never, false
		p := newPoolOf(t, cfg)
		require.Contains(t, mapEntry(t, "numa_maps", p.mem), " default ")
		require.Empty(t, p.Info().NodeNote)
		cfg.Bind = Require
	}
	for _, node := range []int{-1, 8000} {
		cfg.Node = &node
		_, err := NewPool(cfg)
		require.ErrorContains(t, err, "a NUMA node is required: ")
		auto := cfg
		auto.Bind = Auto
		p := newPoolOf(t, auto)
		require.NotEmpty(t, p.Info().NodeNote)
		require.Contains(t, p.Info().String(), p.Info().NodeNote)
	}
}

// Hugepages are bound, too.
func TestPoolNodeHugePages(t *testing.T) {
	nodes := topo.Nodes()
	if len(nodes) == 0 {
		t.Skip("NOT TESTED: this system knows of no NUMA nodes")
	}
	p := hugePool(t, PoolConfig{Bytes: 4 << 20, HugePages: Require, HugePageSize: 2 << 20, Node: &nodes[0], Bind: Require}, 2<<20)
	require.Contains(t, mapEntry(t, "numa_maps", p.mem), fmt.Sprintf(" bind:%d ", nodes[0]))
	require.Equal(t, nodes[0], p.Info().Node)
	require.NoError(t, p.Close())
}

func TestWhichNode(t *testing.T) {
	for _, c := range []struct {
		node  int
		nodes []int
		want  int
		note  string
	}{
		{0, []int{0}, 0, "the machine's only node"},
		{0, []int{0, 1}, 0, ""},
		{1, []int{0, 1}, 1, ""},
		{2, []int{0, 1, 3}, -1, "there is no node 2 with memory, only 0-1,3"},
		{-1, []int{0, 1}, -1, "the device's node is not known"},
		{0, nil, -1, "this system knows of no NUMA nodes"},
	} {
		node, note := whichNode(c.node, c.nodes)
		require.Equal(t, c.want, node)
		require.Equal(t, c.note, note)
	}
	m, unmap, err := mapMemory(4096)
	require.NoError(t, err)
	defer unmap()
	require.Error(t, bind(m, 8000))
	require.Equal(t, -1, nodeOf([][]byte{m}), "no page yet")
	p := &Pool{info: PoolInfo{Bytes: 1 << 60}}
	if len(topo.Nodes()) > 0 {
		require.ErrorContains(t, p.bindNormal(m, topo.Nodes()[0]), "to give")
	}
}

// What lies behind a buffer, and before the first one, cannot be written to: not by us, and not by the kernel for us.
func TestPoolGuardPages(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	p := debugPool(t, 4, 8192)
	require.Equal(t, 4, p.Info().Guards)
	r, w, err := os.Pipe()
	require.NoError(t, err)
	defer r.Close()
	defer w.Close()
	_, err = w.WriteString("x")
	require.NoError(t, err)
	var all []Buffer
	for range 4 {
		b, _ := p.TryGet()
		all = append(all, b)
		mem := b.Bytes()
		mem[0], mem[8191] = 1, 1
		for _, beyond := range []unsafe.Pointer{unsafe.Add(unsafe.Pointer(&mem[8191]), 1), unsafe.Add(unsafe.Pointer(&mem[0]), -1)} {
			var fault interface{ Addr() uintptr }
			func() {
				defer func() { fault, _ = recover().(interface{ Addr() uintptr }) }()
				*(*byte)(beyond) = 1
			}()
			require.NotNil(t, fault, "no fault")
			require.Equal(t, uintptr(beyond), fault.Addr())
			_, err := unix.Read(int(r.Fd()), unsafe.Slice((*byte)(beyond), 1))
			require.ErrorIs(t, err, unix.EFAULT)
		}
	}
	for _, b := range all {
		b.Release()
	}
	require.NoError(t, p.Close())

	require.Contains(t, noGuards(PoolInfo{BufferSize: 4096, Buffers: 1}, 16384), "pages of 16 KiB")
	require.Contains(t, noGuards(PoolInfo{BufferSize: 4096, Buffers: 1 << 30}, 4096), "vm.max_map_count")
	require.Empty(t, noGuards(PoolInfo{BufferSize: 16384, Buffers: 100}, 16384))
}

// How much is on transparent hugepages is what the kernel counts itself.
func TestTransparent(t *testing.T) {
	m, unmap, err := mapMemory(8 << 20)
	require.NoError(t, err)
	defer unmap()
	require.NoError(t, unix.Madvise(m, unix.MADV_DONTFORK)) // an entry of its own
	require.NoError(t, populate(t.Context(), m[:4096]))     // the first page is an ordinary one
	_ = unix.Madvise(m, unix.MADV_HUGEPAGE)
	require.NoError(t, populate(t.Context(), m))
	n, err := transparent(m)
	if errors.Is(err, unix.ENOTTY) {
		t.Skip("NOT TESTED: PAGEMAP_SCAN is of Linux 6.7")
	}
	require.NoError(t, err)
	t.Log(sizeText(n))
	require.Contains(t, strings.Join(strings.Fields(mapEntry(t, "smaps", m)), " "), fmt.Sprintf("AnonHugePages: %d kB", n>>10))
}

// With a limit on locked memory, in a process of its own.
func TestPoolLockLimit(t *testing.T) {
	self, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.CommandContext(t.Context(), self)
	cmd.Env = append(os.Environ(), poolChildEnv+"=1")
	out, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	require.Equal(t, "all is well\n", string(out))
}

func init() { poolChild = lockLimitChild }

func lockLimitChild() {
	runtime.LockOSThread() // capabilities are of a thread
	var t child
	const limit = 1 << 20
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	require.NoError(t, unix.Capget(&header, &data[0]))
	data[0].Effective &^= 1 << unix.CAP_IPC_LOCK // root may lock all it wants
	require.NoError(t, unix.Capset(&header, &data[0]))
	require.NoError(t, unix.Setrlimit(unix.RLIMIT_MEMLOCK, &unix.Rlimit{Cur: limit, Max: limit}))

	for _, debug := range []bool{false, true} {
		cfg := PoolConfig{Bytes: 4 << 20, BufferSize: 64 << 10, HugePages: Never, Debug: debug}
		p, err := NewPool(cfg)
		require.NoError(t, err)
		info := p.Info()
		require.EqualValues(t, limit, info.LockedBytes, "%s", info)
		require.Contains(t, info.LockNote, "RLIMIT_MEMLOCK is 1048576 bytes (raise it with ulimit -l or LimitMEMLOCK=)")
		require.Contains(t, info.String(), "1 MiB of 4 MiB locked")
		b, _ := p.TryGet()
		text, err := os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		require.Contains(t, string(text), "VmLck:	    1024 kB")
		b.Release()

		// The second pool finds nothing left.
		second, err := NewPool(cfg)
		require.NoError(t, err)
		require.Zero(t, second.Info().LockedBytes)
		require.NoError(t, second.Close())
		require.NoError(t, p.Close())

		cfg.Lock = Require
		_, err = NewPool(cfg)
		require.ErrorContains(t, err, "locked memory is required, got ")
		require.ErrorContains(t, err, "RLIMIT_MEMLOCK is")
		text, err = os.ReadFile("/proc/self/status")
		require.NoError(t, err)
		require.Contains(t, string(text), "VmLck:	       0 kB", "given back")

		cfg.Lock = Never
		p, err = NewPool(cfg)
		require.NoError(t, err)
		require.Zero(t, p.Info().LockedBytes)
		require.Equal(t, "not asked for", p.Info().LockNote)
		require.NoError(t, p.Close())

		cfg.Bytes, cfg.Lock = limit, Require
		p, err = NewPool(cfg)
		require.NoError(t, err)
		require.EqualValues(t, limit, p.Info().LockedBytes)
		require.NoError(t, p.Close())
	}
	fmt.Println("all is well")
}

// child is a test without a testing.T.
type child struct{}

func (child) Errorf(format string, args ...any) { fmt.Printf(format, args...) }
func (child) FailNow()                          { os.Exit(1) }
