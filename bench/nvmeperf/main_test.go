package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// childEnv makes the tests' binary be the program, for the children of a comparison.
const childEnv = "NVMEPERF_TEST_CHILD"

func TestMain(m *testing.M) {
	if os.Getenv(childEnv) != "" {
		os.Exit(mainStatus())
	}
	os.Setenv(childEnv, "1")
	os.Setenv("XDG_CONFIG_HOME", os.TempDir()) // for a host identity, where /etc/nvme has none
	goleak.VerifyTestMain(m)
}

// start runs a target that only measures.
func start(t *testing.T) *nvmetest.Target {
	t.Helper()
	tgt, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
		NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{BlockSize: 512, Backend: nvmetest.Null(1 << 30)}},
	}}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tgt.Close())
		require.Empty(t, tgt.Violations())
	})
	return tgt
}

// at is the flag that says where a target is.
func at(tgt *nvmetest.Target) []string {
	host, port, _ := strings.Cut(tgt.Addr(), ":")
	return []string{"-r", "trtype:TCP adrfam:IPv4 traddr:" + host + " trsvcid:" + port + " subnqn:" + tgt.NQN()}
}

// call runs the program.
func call(ctx context.Context, args ...string) (status int, stdout, stderr string) {
	var out, err bytes.Buffer
	status = run(ctx, args, console{strings.NewReader(""), &out, &err})
	return status, out.String(), err.String()
}

// report runs the program with --json.
func report(t *testing.T, args ...string) measure.Report {
	t.Helper()
	status, out, stderr := call(t.Context(), append(args, "--json")...)
	require.Equal(t, exitOK, status, stderr)
	var r measure.Report
	d := json.NewDecoder(strings.NewReader(out))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&r))
	_, err := d.Token()
	require.ErrorIs(t, err, io.EOF, "one object")
	return r
}

func TestUsage(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"raw"}, `"raw" is not a command`},
		{[]string{"-q", "1", "more"}, `unexpected argument "more"`},
		{[]string{"--nonsense"}, "unknown flag"},
		{nil, "which target?"},
		{[]string{"-a", "127.0.0.1"}, "which subsystem?"},
		{[]string{"-a", "127.0.0.1", "-n", "nonsense"}, "NQN"},
		{[]string{"-a", "127.0.0.1", "-n", nvmetest.DefaultNQN, "-s", "0"}, "port"},
		{[]string{"-r", "traddr:127.0.0.1", "-a", "127.0.0.1"}, "leave out"},
		{[]string{"-r", "traddr"}, "key:value"},
		{[]string{"-o", "0"}, "want bytes"},
		{[]string{"-c", "1,1"}, "twice"},
		{[]string{"-t", "x"}, "want seconds"},
		{[]string{"--spin", "-5s"}, "want a duration"},
		{[]string{"--driver", "dpdk"}, "want auto"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-w", "trim"}, "workload"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-w", "read", "-M", "50"}, "no mix"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-w", "rw", "-M", "101"}, "101 %"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-q", "4096"}, "-q 4096"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-P", "0"}, "-P 0"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "-t", "0"}, "longer than 0"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "--api", "aio"}, "--api"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "--api", "batch", "-w", "write"}, "only reads"},
		{[]string{"-r", "traddr:127.0.0.1 subnqn:" + nvmetest.DefaultNQN, "--api", "readat", "--threads", "0"}, "--threads 0"},
		{[]string{"raw", "stream", "-w", "rw"}, "want read or write"},
		{[]string{"raw", "stream", "-c", "0,1"}, "one thread"},
		{[]string{"raw", "pingpong", "-o", "1G"}, "at most"},
	} {
		status, out, stderr := call(t.Context(), c.args...)
		require.Equal(t, exitUsage, status, c.args)
		require.Contains(t, stderr, c.want, c.args)
		require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %s", stderr)
		require.Empty(t, out)
	}
}

func TestHelp(t *testing.T) {
	for _, c := range commands() {
		status, out, stderr := call(t.Context(), append(strings.Fields(c.name), "--help")...)
		require.Equal(t, exitOK, status)
		require.Contains(t, out, c.about)
		require.Empty(t, stderr)
	}
}

func TestNobodyThere(t *testing.T) {
	tgt, err := nvmetest.Start(nvmetest.Config{})
	require.NoError(t, err)
	require.NoError(t, tgt.Close())
	status, _, stderr := call(t.Context(), at(tgt)...)
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, tgt.Addr())
	status, _, stderr = call(t.Context(), "raw", "stream", "-a", tgt.Addr())
	require.Equal(t, exitFailed, status)
	require.Contains(t, stderr, tgt.Addr())
}

func TestInterrupted(t *testing.T) {
	tgt := start(t)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errInterrupted)
	status, _, stderr := call(ctx, append(at(tgt), "-t", "1h")...)
	require.Equal(t, exitInterrupted, status)
	require.Contains(t, stderr, "interrupted")
}
