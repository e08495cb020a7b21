package nvmetcp

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
)

func processCPUs(t *testing.T) []int {
	t.Helper()
	cpus, err := topo.CPUs()
	require.NoError(t, err)
	return cpus
}

// runsOn is where the thread of a queue may run.
func runsOn(t *testing.T, q *queue.Queue) (cpus []int) {
	t.Helper()
	set := unix.NewCPUSet(8192)
	var err error
	require.NoError(t, q.Control(func(uintptr) { err = unix.SchedGetaffinityDynamic(0, set) })) // on the queue's own thread
	require.NoError(t, err)
	for cpu := range 8192 {
		if set.IsSet(cpu) {
			cpus = append(cpus, cpu)
		}
	}
	return cpus
}

func TestPinLocal(t *testing.T) {
	cpus := processCPUs(t)
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	for _, d := range drivers() {
		sub := dial(t, tgt, &Options{NumIOQueues: 1, Driver: d, Pin: PinLocal})
		p := sub.Controller().Pinning
		require.Equal(t, "lo", p.Interface)
		require.Equal(t, -1, p.Node)
		switch {
		case len(cpus) < 2:
			require.Equal(t, []int{-1}, p.CPUs)
			require.Contains(t, p.Reason, "1 I/O queues would leave none of the process's CPUs")
		case d == queue.DriverConn:
			require.Equal(t, []int{-1}, p.CPUs)
			require.Contains(t, strings.Join(sub.Controller().Queues[0].Notes, "\n"), "not pinned to CPU")
		default:
			require.Equal(t, cpus[:1], p.CPUs)
			require.Contains(t, p.Reason, "loopback belongs to no NUMA node")
			require.Equal(t, cpus[:1], runsOn(t, sub.ctrl.io[0].Queue))
			require.Equal(t, cpus, processCPUs(t))
		}
		require.Equal(t, -1, sub.Controller().Admin.CPU)
		require.NoError(t, sub.Close())
	}
}

// With as many queues as CPUs the callers would have to share one with a pinned thread.
func TestPinLocalLeavesCPUsToCallers(t *testing.T) {
	cpus := processCPUs(t)
	if len(cpus) > 64 {
		t.Skip("too many CPUs for so many queues")
	}
	sub := dial(t, start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20))), &Options{NumIOQueues: len(cpus), Pin: PinLocal})
	p := sub.Controller().Pinning
	require.Len(t, p.CPUs, len(cpus))
	for _, cpu := range p.CPUs {
		require.Equal(t, -1, cpu)
	}
	require.Contains(t, p.Reason, "would leave none of the process's CPUs ("+topo.FormatList(cpus)+") to callers")
	require.Equal(t, "lo", p.Interface)
}

func TestPinOff(t *testing.T) {
	sub := dial(t, start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20))), &Options{NumIOQueues: 2})
	require.Equal(t, Pinning{CPUs: []int{-1, -1}, Node: -1, Reason: "not asked for"}, sub.Controller().Pinning)
}

func TestPinListed(t *testing.T) {
	cpus := processCPUs(t)
	last := cpus[len(cpus)-1]
	sub := dial(t, start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20))), &Options{NumIOQueues: 2, CPUs: []int{last}})
	p := sub.Controller().Pinning
	require.Equal(t, []int{last, last}, p.CPUs)
	require.Equal(t, "listed in Options.CPUs; 2 I/O queues share 1 of them, and delay each other", p.Reason)
	require.Equal(t, []int{last}, runsOn(t, sub.ctrl.io[1].Queue))

	sub = dial(t, start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20))), &Options{NumIOQueues: 2, CPUs: []int{8191}})
	require.Equal(t, []int{-1, -1}, sub.Controller().Pinning.CPUs)
	require.Equal(t, "the process may use none of the CPUs listed in Options.CPUs", sub.Controller().Pinning.Reason)
}

// What a child process finds.
type childPinning struct {
	CPUs          []int
	Local, Listed Pinning
	Notes         []string // of the queue with a listed CPU that the process may not use
}

const childVar = "NVSTAGE_TEST_CHILD"

// child is what inChild was given, "" in a test that is not in a child process.
func child() string { return os.Getenv(childVar) }

// inChild runs a test in a process of its own that is set up in some way, and returns what it printed.
func inChild(t *testing.T, test string, how *syscall.SysProcAttr, with string) []byte {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^"+test+"$")
	cmd.Env = append(os.Environ(), childVar+"="+with)
	cmd.SysProcAttr = how
	out, err := cmd.CombinedOutput()
	if how != nil && os.IsPermission(err) {
		t.Skipf("this process may not make a network namespace: %v", err)
	}
	require.NoError(t, err, string(out))
	return out
}

// pinInChild has a process of its own connect.
func pinInChild(t *testing.T, how *syscall.SysProcAttr, listed string) (c childPinning) {
	t.Helper()
	out := inChild(t, "TestPinChild", how, listed)
	line, _, _ := strings.Cut(string(out), "\n")
	require.NoError(t, json.Unmarshal([]byte(line), &c), string(out))
	return c
}

// TestPinChild is the other process.
func TestPinChild(t *testing.T) {
	var listed []int
	if json.Unmarshal([]byte(child()), &listed) != nil {
		t.Skip("only as the child of other tests")
	}
	setLoopback(t, true)
	c := childPinning{CPUs: processCPUs(t)}
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	c.Local = dial(t, tgt, &Options{NumIOQueues: 1, Pin: PinLocal}).Controller().Pinning
	info := dial(t, tgt, &Options{NumIOQueues: len(listed), CPUs: listed}).Controller()
	c.Listed, c.Notes = info.Pinning, info.Queues[0].Notes
	require.NoError(t, json.NewEncoder(os.Stdout).Encode(c))
}

// setLoopback makes loopback of a child's network namespace work, or not.
func setLoopback(t *testing.T, up bool) {
	if lo, err := net.InterfaceByName("lo"); err == nil && lo.Flags&net.FlagUp != 0 == up {
		return
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	ifr, err := unix.NewIfreq("lo")
	require.NoError(t, err)
	if up {
		ifr.SetUint16(unix.IFF_UP)
	}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCSIFFLAGS, uintptr(unsafe.Pointer(ifr)))
	require.Zero(t, errno)
}

// No thread leaves the CPUs that the process was started on, whoever asks for it: the kernel would let it.
func TestPinStaysInAffinity(t *testing.T) {
	cpus := processCPUs(t)
	if len(cpus) < 2 {
		t.Skip("there is only one CPU to begin with")
	}
	out, in := cpus[0], cpus[1]
	list, err := json.Marshal([]int{out, in})
	require.NoError(t, err)
	runtime.LockOSThread()
	restore, err := topo.Pin(in) // what a child inherits
	require.NoError(t, err)
	c := pinInChild(t, nil, string(list))
	restore()
	runtime.UnlockOSThread()
	require.Equal(t, []int{in}, c.CPUs)
	require.Equal(t, []int{-1}, c.Local.CPUs, "its only CPU is for callers too")
	require.Equal(t, []int{-1, in}, c.Listed.CPUs)
	require.Equal(t, "listed in Options.CPUs", c.Listed.Reason, "one queue on one CPU shares nothing")
	require.Contains(t, strings.Join(c.Notes, "\n"), "not pinned to CPU "+topo.FormatList([]int{out})+": the process may use only CPUs "+topo.FormatList([]int{in}))
}

// In a network namespace that has no sysfs of its own any CPUs will do, and the reason is told.
func TestPinInNetworkNamespace(t *testing.T) {
	cpus := processCPUs(t)
	list, err := json.Marshal(cpus[:1])
	require.NoError(t, err)
	c := pinInChild(t, &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET}, string(list))
	require.Equal(t, cpus, c.CPUs)
	require.Equal(t, "lo", c.Local.Interface)
	require.Equal(t, -1, c.Local.Node)
	if len(cpus) > 1 {
		require.Equal(t, cpus[:1], c.Local.CPUs)
		require.Contains(t, c.Local.Reason, "so any CPU of the process")
	}
	require.Equal(t, cpus[:1], c.Listed.CPUs)
}
