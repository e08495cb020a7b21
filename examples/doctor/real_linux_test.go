package main

import (
	"bytes"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/uring"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// ownIdentity keeps the identity that a connection makes out of the user's home.
func ownIdentity(t *testing.T) {
	for _, name := range []string{"XDG_CONFIG_HOME", "HOME"} {
		t.Setenv(name, t.TempDir())
	}
}

// thisOne examines the machine that the test runs on.
func thisOne(t *testing.T, args ...string) (status int, r report) {
	t.Helper()
	var out, errs bytes.Buffer
	status = run(t.Context(), append(args, "--json"), &out, &errs, examine)
	require.Empty(t, errs.String())
	d := json.NewDecoder(&out)
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	check(t, &r)
	return status, r
}

// What is found is what others find.
func TestThisMachine(t *testing.T) {
	ownIdentity(t)
	status, r := thisOne(t)
	require.Equal(t, map[verdict]int{verdictGood: exitOK, verdictAdvice: exitOK, verdictBlocked: exitFailed}[r.Verdict], status)

	var u unix.Utsname
	require.NoError(t, unix.Uname(&u))
	require.Equal(t, unix.ByteSliceToString(u.Release[:]), r.Kernel.Release)
	require.Equal(t, runtime.GOMAXPROCS(0), r.CPU.GOMAXPROCS)
	if nproc, err := exec.LookPath("nproc"); err == nil {
		said := func(args ...string) int {
			cmd := exec.Command(nproc, args...)
			cmd.Env = []string{} // without OMP_NUM_THREADS
			b, err := cmd.Output()
			require.NoError(t, err)
			n, err := strconv.Atoi(strings.TrimSpace(string(b)))
			require.NoError(t, err)
			return n
		}
		require.Len(t, r.CPU.Affinity, said())
		require.LessOrEqual(t, len(r.CPU.Allowed), said())
		require.GreaterOrEqual(t, said("--all"), len(r.CPU.Online))
	}
	info, err := os.ReadFile("/proc/cpuinfo")
	require.NoError(t, err)
	if len(r.CPU.Online) > 0 {
		require.Equal(t, strings.Count("\n"+string(info), "\nprocessor\t:"), len(r.CPU.Online))
	}
	for _, l := range []struct {
		resource int
		got      limitFacts
	}{{unix.RLIMIT_MEMLOCK, r.Memory.Lock}, {unix.RLIMIT_NOFILE, r.Files}} {
		var want unix.Rlimit
		require.NoError(t, unix.Getrlimit(l.resource, &want))
		require.Equal(t, [2]int64{int64(want.Cur), int64(want.Max)}, [2]int64{l.got.Soft, l.got.Hard})
	}
	require.Equal(t, uring.Probe() == nil, r.URing.Works)
	if r.URing.Works {
		require.NotZero(t, r.URing.Ops)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer unix.Close(fd)
	congestion, err := unix.GetsockoptString(fd, unix.IPPROTO_TCP, unix.TCP_CONGESTION)
	require.NoError(t, err)
	require.Equal(t, congestion, r.Sockets.Congestion)
	require.Positive(t, r.Memory.Available)
}

// The interfaces are those that ip shows.
func TestThisMachinesInterfaces(t *testing.T) {
	ip, err := exec.LookPath("ip")
	if err != nil {
		t.Skip("there is no ip(8) to compare with")
	}
	out, err := exec.Command(ip, "-json", "link").Output()
	if err != nil {
		t.Skipf("ip -json link: %v", err)
	}
	var links []struct {
		Name  string   `json:"ifname"`
		MTU   int      `json:"mtu"`
		Flags []string `json:"flags"`
	}
	require.NoError(t, json.Unmarshal(out, &links))
	ownIdentity(t)
	_, r := thisOne(t)
	for _, n := range r.NICs {
		found := false
		for _, l := range links {
			if l.Name != n.Name {
				continue
			}
			found = true
			require.Equal(t, l.MTU, n.MTU)
			require.Equal(t, slices.Contains(l.Flags, "LOWER_UP") && slices.Contains(l.Flags, "UP"), n.Up)
		}
		require.True(t, found, n.Name)
	}
	e, err := askEthtool("lo") // which any network namespace has
	require.NoError(t, err)
	require.True(t, *e.TSO)
	require.True(t, *e.GRO)
	if ethtool, err := exec.LookPath("ethtool"); err == nil {
		for _, n := range r.NICs {
			out, err := exec.Command(ethtool, "-k", n.Name).Output()
			require.NoError(t, err)
			for feature, on := range map[string]*bool{"tcp-segmentation-offload": n.Ethtool.TSO, "generic-receive-offload": n.Ethtool.GRO, "rx-checksumming": n.Ethtool.RXChecksum} {
				require.Contains(t, string(out), feature+": "+map[bool]string{true: "on", false: "off"}[*on])
			}
		}
	}
	_, err = askEthtool("none0")
	require.ErrorIs(t, err, unix.ENODEV)
	_, err = askEthtool("a-name-that-is-too-long")
	require.ErrorContains(t, err, "too long")
}

const testNQN = "nqn.2025-01.io.nvstage:test"

func startTarget(t *testing.T) (host, port string) {
	t.Helper()
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{
		{NQN: testNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: nvmetest.Memory(1 << 20)}}},
		{NQN: testNQN + "-closed", AllowedHosts: []string{"nqn.2025-01.io.nvstage:somebody"}},
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	host, port, err = net.SplitHostPort(target.Addr())
	require.NoError(t, err)
	return host, port
}

// The library does what was advised.
func TestConnect(t *testing.T) {
	ownIdentity(t)
	host, port := startTarget(t)
	for _, queues := range []int{0, 1, 2} {
		_, r := thisOne(t, "-a", host, "-s", port, "-n", testNQN, "-i", strconv.Itoa(queues))
		require.True(t, r.Target.Tried)
		require.True(t, r.Target.Connected, r.Target.Error)
		require.Empty(t, r.Target.Error)
		require.Equal(t, []uint32{1}, r.Target.NSIDs)
		require.Equal(t, "lo", r.Target.Interface)
		require.True(t, r.Target.Loopback)
		require.Positive(t, r.Target.RTT)
		require.Equal(t, r.Placement.Queues, r.Target.Queues)
		require.Len(t, r.Placement.Ways, 1)
		require.Equal(t, r.Placement.Ways[0].CPUs, r.Target.Pinned)
		require.Equal(t, r.Placement.Ways[0].Reason, r.Target.Reason)
		require.Equal(t, "lo", r.Placement.Ways[0].Interface)
	}
	require.Eventually(t, func() bool { return runtime.NumGoroutine() < 50 }, 5*time.Second, 10*time.Millisecond)
}

// The library's default is what the advice takes it for.
func TestDefaultQueues(t *testing.T) {
	host, port := startTarget(t)
	sub, err := nvmetcp.UniqueHost().Connect(t.Context(), nvmetcp.Target{Addr: net.JoinHostPort(host, port), NQN: testNQN}, nil)
	require.NoError(t, err)
	defer sub.Close()
	require.Len(t, sub.Controller().Queues, min(runtime.NumCPU(), defaultQueues))
}

func TestConnectFails(t *testing.T) {
	ownIdentity(t)
	host, port := startTarget(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, closed, _ := net.SplitHostPort(l.Addr().String())
	require.NoError(t, l.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connects, and then says nothing
	require.NoError(t, err)
	defer silent.Close()
	_, mute, _ := net.SplitHostPort(silent.Addr().String())
	for name, c := range map[string]struct {
		args       []string
		text, mend string
	}{
		"refused":     {[]string{"-s", closed, "-n", testNQN}, "connection refused", "ss -ltn"},
		"silent":      {[]string{"-s", mute, "-n", testNQN, "--timeout", "200ms"}, "200ms", "ping 127.0.0.1"},
		"not allowed": {[]string{"-s", port, "-n", testNQN + "-closed"}, testNQN + "-closed", "shardload discover -a 127.0.0.1 -s " + port},
		"not there":   {[]string{"-s", port, "-n", testNQN + "-none"}, testNQN + "-none", "shardload discover -a 127.0.0.1 -s " + port},
	} {
		status, r := thisOne(t, append([]string{"-a", host}, c.args...)...)
		require.Equal(t, exitFailed, status, name)
		require.Equal(t, verdictBlocked, r.Verdict)
		require.False(t, r.Target.Connected)
		require.Contains(t, r.Target.Error, c.text, name)
		i := slices.IndexFunc(r.Findings, func(f finding) bool { return f.Topic == "Target" && f.ID == "connect" })
		require.Contains(t, r.Findings[i].Mend, c.mend, name)
		require.NotContains(t, r.Findings[i].Text, "nvmetcp:", "that is for programmers")
	}
}
