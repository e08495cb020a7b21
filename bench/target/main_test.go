package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
)

// asProgram in the environment makes the test's executable the program itself.
const asProgram = "NVSTAGE_TEST_AS_TARGET"

func TestMain(m *testing.M) {
	if os.Getenv(asProgram) != "" {
		main()
	}
	os.Exit(m.Run())
}

var testHost = nvmetcp.Host{NQN: "nqn.2014-08.org.nvmexpress:uuid:6a1c2b3d-0000-4000-8000-000000000001", ID: nvmetcp.HostID{0x6a, 0x1c, 15: 1}}

// start runs the program as a process of its own until the test ends, and returns its first line.
func start(t *testing.T, args ...string) (string, *exec.Cmd) {
	t.Helper()
	exe, err := os.Executable()
	require.NoError(t, err)
	cmd := exec.Command(exe, append([]string{"--listen", "127.0.0.1:0"}, args...)...)
	cmd.Env = append(os.Environ(), asProgram+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		if cmd.ProcessState == nil {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	return line, cmd
}

func connect(t *testing.T, addr, nqn string, o *nvmetcp.Options) *nvmetcp.Namespace {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	t.Cleanup(cancel)
	sub, err := testHost.Connect(ctx, nvmetcp.Target{Addr: addr, NQN: nqn}, o)
	require.NoError(t, err)
	t.Cleanup(func() { sub.Close() })
	ns, err := sub.Namespace(ctx, 1)
	require.NoError(t, err)
	return ns
}

func TestNullOnItsOwnCPU(t *testing.T) {
	args := []string{"--json", "--block-size", "4096", "--size", "1T"}
	cpu := -1
	if runtime.GOOS == "linux" {
		cpu = 0
		args = append(args, "--cpu", "0")
	}
	line, cmd := start(t, args...)
	var r ready
	require.NoError(t, json.Unmarshal([]byte(line), &r))
	require.Equal(t, ready{r.Addr, r.NQN, 1 << 40, 4096, "null", "nvmet", cpu, cmd.Process.Pid}, r)
	ns := connect(t, r.Addr, r.NQN, nil)
	require.EqualValues(t, 1<<40, ns.Size())
	b := make([]byte, 8192)
	_, err := ns.ReadAt(b, 1<<39)
	require.NoError(t, err)
	for i := range 4096 {
		require.Equal(t, byte(i%251), b[i])
	}
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}

func TestPinned(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("threads can be pinned on Linux only")
	}
	_, cmd := start(t, "--cpu", "0")
	tasks, err := filepath.Glob(filepath.Join("/proc", strconv.Itoa(cmd.Process.Pid), "task/*/status"))
	require.NoError(t, err)
	require.NotEmpty(t, tasks)
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		require.NoError(t, err)
		require.Contains(t, string(b), "Cpus_allowed_list:\t0\n", f)
	}
}

func TestFileAndDigests(t *testing.T) {
	path := filepath.Join(t.TempDir(), "blocks")
	want := bytes.Repeat([]byte("nvstage "), 1<<13)
	require.NoError(t, os.WriteFile(path, want, 0o600))
	line, cmd := start(t, "--backend", "file:"+path, "--mode", "strict", "--digests", "header")
	addr, nqn, ok := strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	require.True(t, ok, line)
	ns := connect(t, addr, nqn, &nvmetcp.Options{HeaderDigest: true})
	got := make([]byte, ns.Size())
	_, err := ns.ReadAt(got, 0)
	require.NoError(t, err)
	require.Equal(t, want, got)
	copy(want[512:], make([]byte, 512))
	_, err = ns.WriteAt(want[512:1024], 512)
	require.NoError(t, err)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.NoError(t, cmd.Wait())
	after, err := os.ReadFile(path)
	require.NoError(t, err)
	require.Equal(t, want, after)

	line, _ = start(t, "--digests", "header")
	addr, nqn, _ = strings.Cut(strings.TrimSuffix(line, "\n"), " ")
	_, err = testHost.Connect(t.Context(), nvmetcp.Target{Addr: addr, NQN: nqn}, &nvmetcp.Options{DataDigest: true})
	require.ErrorIs(t, err, nvmetcp.ErrDigestsRefused)
}

func TestWrongUsage(t *testing.T) {
	for args, want := range map[string]string{
		"--mode scsi":                `--mode "scsi": want nvmet, spdk or strict`,
		"--digests some":             `--digests "some"`,
		"--backend disk":             `--backend "disk": want null, memory or file:PATH`,
		"--backend file:":            `--backend "file:"`,
		"--size 0":                   `--size "0": want a number of bytes greater than 0`,
		"--size 8388608T":            `--size "8388608T"`,
		"--size 9223372036854775807": "",
		"--block-size 1000":          `--block-size "1000": want a power of two from 512 to 1M`,
		"extra":                      `unexpected argument "extra"`,
		"--nosuch":                   "nosuch",
	} {
		_, err := parse(strings.Fields(args))
		if want == "" {
			require.NoError(t, err, args)
			continue
		}
		require.ErrorContains(t, err, want, args)
		var stderr bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), strings.Fields(args), io.Discard, &stderr))
		require.Contains(t, stderr.String(), "--help lists the flags")
	}
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"--help"}, &stdout, &stderr))
	require.Contains(t, stdout.String(), "--block-size")
	require.Equal(t, exitFailed, run(t.Context(), []string{"--backend", "file:/nonexistent/x"}, &stdout, &stderr))
	require.Contains(t, stderr.String(), "/nonexistent/x")
}
