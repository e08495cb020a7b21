package main

import (
	"bytes"
	"context"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// runsProgram makes the test binary the program itself, for tests that need a process.
const runsProgram = "SHARDLOAD_TEST_RUNS_PROGRAM"

func TestMain(m *testing.M) {
	if os.Getenv(runsProgram) != "" {
		main()
	}
	dir, err := os.MkdirTemp("", "shardload-test")
	if err != nil {
		panic(err)
	}
	for _, name := range []string{"XDG_CONFIG_HOME", "HOME", "AppData"} { // where a host's identity is kept
		if err := os.Setenv(name, dir); err != nil {
			panic(err)
		}
	}
	code := m.Run()
	_ = os.RemoveAll(dir)
	if code == 0 {
		if err := goleak.Find(); err != nil {
			_, _ = os.Stderr.WriteString(err.Error() + "\n")
			code = 1
		}
	}
	os.Exit(code)
}

// outcome is what a command did.
type outcome struct {
	status      int
	out, errors string
}

// said is the lines on stderr, without those of progress.
func (o outcome) said() (lines []string) {
	for l := range strings.Lines(o.errors) {
		if !strings.Contains(l, "GiB/s") {
			lines = append(lines, l)
		}
	}
	return lines
}

// line is the one line that a failed command leaves on stderr.
func (o outcome) line(t *testing.T) string {
	t.Helper()
	said := o.said()
	require.Len(t, said, 1, "stderr:\n%s", o.errors)
	require.True(t, strings.HasPrefix(said[0], "shardload: "), said[0])
	return strings.TrimSpace(said[0])
}

// shardload runs a command in this process.
func shardload(t *testing.T, args ...string) outcome {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var out, errs bytes.Buffer
	status := run(ctx, args, console{strings.NewReader(""), &out, &errs})
	return outcome{status, out.String(), errs.String()}
}

// succeeds runs a command that must.
func succeeds(t *testing.T, args ...string) outcome {
	t.Helper()
	o := shardload(t, args...)
	require.Equal(t, exitOK, o.status, "%q: %s", args, o.errors)
	return o
}

// program is the program as a process of its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	// A shell's background jobs ignore SIGINT, and so would what they start, unless it is handled here.
	handled := make(chan os.Signal, 1)
	signal.Notify(handled, os.Interrupt)
	t.Cleanup(func() { signal.Stop(handled) })
	cmd := exec.CommandContext(t.Context(), os.Args[0], args...)
	cmd.Env = append(os.Environ(), runsProgram+"=1")
	return cmd
}

const testNQN = "nqn.2025-01.io.nvstage:test"

// startTarget starts a target with a subsystem of namespaces in memory.
func startTarget(t *testing.T, mode nvmetest.Mode, spaces ...nvmetest.Namespace) *nvmetest.Target {
	t.Helper()
	target, err := nvmetest.Start(nvmetest.Config{Mode: mode, Subsystems: []nvmetest.Subsystem{
		{NQN: testNQN, Namespaces: spaces},
		{NQN: testNQN + "-closed", AllowedHosts: []string{"nqn.2025-01.io.nvstage:somebody"}},
	}})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	return target
}

// at is the command line for a target: the command, then the connection's flags, then the rest.
func at(target *nvmetest.Target, command string, rest ...string) []string {
	host, port, _ := net.SplitHostPort(target.Addr())
	args := []string{"-a", host, "-s", port, "-n", testNQN}
	if command != "" {
		args = append([]string{command}, args...)
	}
	return append(args, rest...)
}

// generated makes the shards of a made-up model.
func generated(t *testing.T, size string) []string {
	t.Helper()
	o := succeeds(t, "generate", "--size", size, t.TempDir())
	files := strings.Fields(o.out)
	require.Len(t, files, 4)
	return files
}

func TestWithoutFlags(t *testing.T) {
	o := succeeds(t, "--size", "16M")
	for _, want := range []string{
		"target     " + embeddedNQN + " embedded in this process at 127.0.0.1:",
		"loaded     16 MiB in ", "4 shards on namespaces 1,2,3,4",
		"with that of the embedded target and CRC-32C of every byte",
		"first layer ", "(model.layers.0)", "digests: none",
		"checksums  CRC-32C of 75 tensors compared with the generator: all right",
	} {
		require.Contains(t, o.out, want)
	}
	require.Empty(t, o.said())
}

// A load that shows wrong bytes as right would be worse than none.
func TestWrongBytesAreFound(t *testing.T) {
	files := generated(t, "4M")
	data, err := os.ReadFile(files[1])
	require.NoError(t, err)
	sums := filepath.Join(t.TempDir(), "sums")
	require.NoError(t, os.WriteFile(sums, []byte(succeeds(t, "sums", files[1]).out), 0o600))
	data[len(data)-1] ^= 1
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.MemoryOf(append(data, make([]byte, 4096)...))})

	for _, against := range [][]string{{"--file", files[1]}, {"--sums", sums}} {
		o := shardload(t, at(target, "verify", against...)...)
		require.Equal(t, exitFailed, o.status)
		require.Regexp(t, `^shardload: 1 of \d+ tensors are not as in .*: model\.layers\.\d+\.\S+: SHA-256 is [0-9a-f]{64}, should be [0-9a-f]{64}$`, o.line(t))
		require.Contains(t, o.out, ": 1 WRONG")
	}
	o := shardload(t, at(target, "verify", "--file", files[2])...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.out, ": loaded, but there is nothing to compare it with\n")
	require.NotContains(t, o.out, "WRONG")
	require.Contains(t, o.out, ": NO TENSOR HAS THE SAME NAME, ")
	require.Contains(t, o.line(t), "nothing was compared: no tensor that was loaded has the name of one in "+files[2])
	o = shardload(t, at(target, "verify", "--file", files[1], "--file", files[3])...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.out, "lm_head.weight: not loaded\n")
	require.Regexp(t, `: 1 WRONG, \d+ NOT LOADED\n`, o.out)
}

func TestHelp(t *testing.T) {
	for _, c := range commands() {
		args := []string{"--help"}
		if c.name != "" {
			args = []string{c.name, "--help"}
		}
		o := succeeds(t, args...)
		require.Contains(t, o.out, "Usage: shardload")
		require.Contains(t, o.out, c.about)
		require.Empty(t, o.errors)
	}
}

func TestReportThatCannotBeWritten(t *testing.T) {
	var errs bytes.Buffer
	r, w := io.Pipe()
	require.NoError(t, r.Close())
	require.Equal(t, exitFailed, run(t.Context(), []string{"--size", "1M"}, console{strings.NewReader(""), w, &errs}))
	require.Contains(t, errs.String(), "shardload: writing the report: ")
}
