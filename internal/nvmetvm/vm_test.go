//go:build linux

package nvmetvm

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { os.Exit(Main(m)) }

func TestRunReturnsOutput(t *testing.T) {
	vm := Start(t)
	out, err := vm.Run(t.Context(), "uname -s; echo to standard error >&2; printf 'several\nlines, no newline at the end'")
	require.NoError(t, err)
	require.Equal(t, "Linux\nto standard error\nseveral\nlines, no newline at the end", out)

	out, err = vm.Run(t.Context(), "head -c 300000 /dev/zero") // more than a socket or a pipe holds, and not text
	require.NoError(t, err)
	require.Equal(t, strings.Repeat("\x00", 300000), out)
}

func TestRunFailure(t *testing.T) {
	vm := Start(t)
	out, err := vm.Run(t.Context(), "echo first\nfalse\necho never")
	require.Equal(t, "first\n", out)
	var exit *ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, ExitError{Command: "echo first\nfalse\necho never", Status: 1, Output: "first\n"}, *exit)
	require.ErrorContains(t, err, "first")

	_, err = vm.Run(t.Context(), "exit 42")
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 42, exit.Status)

	_, err = vm.Run(t.Context(), "unlink 1 no-such-subsystem")
	require.ErrorAs(t, err, &exit)
}

// A command that hangs, or that its caller gives up, must not take the channel with it, nor answer for another.
func TestRunOutlivesHangingCommand(t *testing.T) {
	vm := Start(t)
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	_, err := vm.Run(ctx, "echo stale; sleep 600")
	require.Error(t, err)
	out, err := vm.Run(t.Context(), "echo fresh")
	require.NoError(t, err)
	require.Equal(t, "fresh\n", out)
}

// dial connects to the target and sends an ICReq without digests; the connection has a deadline in a minute.
func dial(t *testing.T, addr string) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	t.Cleanup(func() { conn.Close() })
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
	icreq := make([]byte, 128)
	copy(icreq, []byte{0x00, 0x00, 128, 0, 128, 0, 0, 0})
	_, err = conn.Write(icreq)
	require.NoError(t, err)
	return conn
}

// readICResp reads one ICResp and checks it, field by field, against what nvmet sends.
func readICResp(t *testing.T, conn net.Conn) {
	t.Helper()
	icresp := make([]byte, 128)
	_, err := io.ReadFull(conn, icresp)
	require.NoError(t, err)
	require.Equal(t, []byte{0x01, 0x00, 128, 0, 128, 0, 0, 0}, icresp[:8], "common header")
	require.Zero(t, binary.LittleEndian.Uint16(icresp[8:]), "PFV")
	require.Zero(t, icresp[10], "CPDA")
	require.Zero(t, icresp[11], "DGST")
	require.EqualValues(t, 0x400000, binary.LittleEndian.Uint32(icresp[12:]), "MAXH2CDATA")
	require.Equal(t, make([]byte, 112), icresp[16:], "reserved")
}

// requireSilence checks that nothing arrives, not even the end of the connection.
func requireSilence(t *testing.T, conn net.Conn) {
	t.Helper()
	require.NoError(t, conn.SetReadDeadline(time.Now().Add(time.Second)))
	n, err := conn.Read(make([]byte, 1))
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
	require.Zero(t, n)
	require.NoError(t, conn.SetDeadline(time.Now().Add(time.Minute)))
}

// requireClosed checks that the target ends the connection.
func requireClosed(t *testing.T, conn net.Conn) {
	t.Helper()
	_, err := io.ReadAll(conn)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
}

func TestICResp(t *testing.T) {
	vm := Start(t)
	require.True(t, strings.HasPrefix(vm.Addr(1), "127.0.1.1:"), vm.Addr(1))
	require.True(t, strings.HasPrefix(vm.Addr(2), "127.0.2.1:"), vm.Addr(2))
	readICResp(t, dial(t, vm.Addr(1)))
	readICResp(t, dial(t, vm.Addr(2)))
}

func TestLinkDownAndUp(t *testing.T) {
	vm := Start(t)
	require.NoError(t, vm.SetLink(t.Context(), false))
	conn := dial(t, vm.Addr(1))
	requireSilence(t, conn)
	require.NoError(t, vm.SetLink(t.Context(), true))
	readICResp(t, conn)
}

func TestPauseAndResume(t *testing.T) {
	vm := Start(t)
	require.NoError(t, vm.Pause(t.Context()))
	conn := dial(t, vm.Addr(1))
	requireSilence(t, conn)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	_, err := vm.Run(ctx, "true")
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.NoError(t, vm.Resume(t.Context()))
	readICResp(t, conn)
}

func TestQMPError(t *testing.T) {
	vm := Start(t)
	_, err := vm.QMP(t.Context(), "no-such-command", nil)
	require.ErrorContains(t, err, "CommandNotFound")
	status, err := vm.QMP(t.Context(), "query-status", nil)
	require.NoError(t, err)
	require.Contains(t, string(status), `"running"`)
}

func TestSHA256(t *testing.T) {
	vm := Start(t)
	const off, n = 4096, 1 << 20
	for _, dev := range []string{DevMulti1, DevMulti2, DevMulti3, DevFile1, DevClosed1} {
		for _, line := range []string{"nvstage\n", "a second time, past what the guest has cached\n"} {
			want := bytes.Repeat([]byte(line), n/len(line)+1)[:n]
			direct := "oflag=direct"
			if dev == DevFile1 {
				direct = "conv=notrunc"
			}
			// Written as a host's write arrives: on the device, behind the back of the guest's page cache.
			_, err := vm.Run(t.Context(), "yes '"+strings.TrimSpace(line)+"' | head -c 1048576 >/tmp/data; dd if=/tmp/data of="+dev+" bs=4096 seek=1 "+direct)
			require.NoError(t, err)

			got, err := vm.SHA256(t.Context(), dev, off, n)
			require.NoError(t, err)
			sum := sha256.Sum256(want)
			require.Equal(t, hex.EncodeToString(sum[:]), got, dev)

			got, err = vm.SHA256(t.Context(), dev, off+3, 1001)
			require.NoError(t, err)
			sum = sha256.Sum256(want[3:][:1001])
			require.Equal(t, hex.EncodeToString(sum[:]), got, "%s, unaligned", dev)
		}
	}
	_, err := vm.SHA256(t.Context(), "/dev/none", 0, 1)
	require.ErrorContains(t, err, "No such file")
	for dev, size := range map[string]int64{DevMulti1: 64 << 20, DevFile1: 32 << 20} {
		_, err = vm.SHA256(t.Context(), dev, size-1, 1)
		require.NoError(t, err)
		_, err = vm.SHA256(t.Context(), dev, size-1, 2)
		require.ErrorContains(t, err, "ends before")
	}
}

func TestReset(t *testing.T) {
	vm := Start(t)
	want, err := vm.Run(t.Context(), "state")
	require.NoError(t, err)
	require.Contains(t, want, "ports/1/subsystems/"+NQNMulti)
	require.Contains(t, want, "ports/2/ana_groups/2/ana_state=inaccessible")
	require.Contains(t, want, "allowed_hosts/"+HostNQNAllowed)
	_, err = vm.Run(t.Context(), "yes data | head -c 4096 | dd of="+DevMulti1+" bs=4096 iflag=fullblock conv=fsync")
	require.NoError(t, err)
	data, err := vm.SHA256(t.Context(), DevMulti1, 0, 4096)
	require.NoError(t, err)

	conn := dial(t, vm.Addr(2))
	readICResp(t, conn)
	_, err = vm.Run(t.Context(), `
		unlink 1 $NQN:multi
		for s in multi file zns closed; do unlink 2 $NQN:$s; done
		disallow $NQN:closed $HOSTNQN
		allow $NQN:closed nqn.2025-01.io.nvmetvm:somebody
		ana 1 1 inaccessible
		ana 2 7 change
		disable $NQN:multi 2
		echo 0 >$C/subsystems/$NQN:zns/attr_allow_any_host
		echo 2 >$C/subsystems/$NQN:multi/attr_qid_max
		echo 0 >$C/ports/2/param_inline_data_size
		rmdir $C/ports/1/referrals/other
		nullblk extra 16 512
		subsystem $NQN:extra 1 EXTRA
		namespace $NQN:extra 5 /dev/extra bbbbbbbb-0000-0000-0000-000000000001
		link 2 $NQN:extra
		truncate -s 1M /file.img
		echo 1 >$C/subsystems/$NQN:file/namespaces/1/revalidate_size`)
	require.NoError(t, err)
	require.NoError(t, vm.SetLink(t.Context(), false))
	require.NoError(t, vm.Pause(t.Context()))

	require.NoError(t, vm.Reset(t.Context()))

	got, err := vm.Run(t.Context(), "state")
	require.NoError(t, err)
	require.Equal(t, want, got)
	_, err = vm.Run(t.Context(), "[ ! -e /dev/extra ] && [ $(stat -c %s /file.img) = 33554432 ]")
	require.NoError(t, err)
	requireClosed(t, conn)
	readICResp(t, dial(t, vm.Addr(1)))
	readICResp(t, dial(t, vm.Addr(2)))
	kept, err := vm.SHA256(t.Context(), DevMulti1, 0, 4096)
	require.NoError(t, err)
	require.Equal(t, data, kept, "Reset changed what a namespace holds")
}

// A machine of its own beside the shared one: other ports, nothing left when it is closed, and calls on it say so.
func TestBootAndClose(t *testing.T) {
	first := Start(t)
	before := goleak.IgnoreCurrent()
	img, err := Prepare(t.Context(), Config{})
	require.NoError(t, err)
	vm, err := Boot(t.Context(), img)
	require.NoError(t, err)
	require.NotEqual(t, first.Addr(1), vm.Addr(1))
	require.NotEqual(t, first.Addr(2), vm.Addr(2))
	readICResp(t, dial(t, vm.Addr(1)))

	waiting := make(chan error)
	go func() {
		_, err := vm.Run(t.Context(), "sleep 600")
		waiting <- err
	}()
	time.Sleep(100 * time.Millisecond)
	pid := vm.cmd.Process.Pid
	require.NoError(t, vm.Close())
	require.ErrorContains(t, <-waiting, "QEMU has ended")
	require.NoError(t, vm.Close(), "a second Close")
	require.False(t, running(pid), "QEMU still runs")
	_, err = net.Dial("tcp", vm.Addr(1))
	require.Error(t, err, "its port still listens")
	_, err = vm.Run(t.Context(), "true")
	require.Error(t, err)
	_, err = vm.QMP(t.Context(), "query-status", nil)
	require.Error(t, err)
	goleak.VerifyNone(t, before)
}

// running says whether there is such a process; one that only waits to be reaped does not count.
func running(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && !bytes.Contains(stat, []byte(") Z "))
}

// QEMU ends with the process that booted it, even if that is killed, but not with any of its threads.
func TestDiesWithItsProcess(t *testing.T) {
	const childEnv = "NVMETVM_TEST_CHILD"
	if os.Getenv(childEnv) != "" {
		vm := Start(t)
		for range 100 {
			ended := make(chan struct{})
			go func() {
				runtime.LockOSThread() // and so the thread ends with the goroutine
				close(ended)
			}()
			<-ended
		}
		time.Sleep(100 * time.Millisecond)
		_, err := vm.Run(t.Context(), "true")
		require.NoError(t, err)
		fmt.Printf("QEMU %d\n", vm.cmd.Process.Pid)
		time.Sleep(time.Minute)
		return
	}
	Start(t)
	child := exec.Command(os.Args[0], "-test.run=^TestDiesWithItsProcess$", "-test.v")
	child.Env = append(os.Environ(), childEnv+"=1")
	child.Stderr = os.Stderr
	stdout, err := child.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, child.Start())
	var said strings.Builder
	pid := 0
	for lines := bufio.NewScanner(stdout); pid == 0 && lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		_, _ = fmt.Sscanf(lines.Text(), "QEMU %d", &pid)
	}
	require.NotZero(t, pid, said.String())
	require.True(t, running(pid))
	require.NoError(t, child.Process.Kill())
	require.Error(t, child.Wait())
	require.Eventually(t, func() bool { return !running(pid) }, 10*time.Second, 10*time.Millisecond)
}

// What fails while it boots must say what the guest printed, and leave nothing.
func TestBootFailureShowsConsole(t *testing.T) {
	Start(t)
	img, err := Prepare(t.Context(), Config{})
	require.NoError(t, err)
	img.Initramfs = t.TempDir() + "/initramfs"
	var broken cpio
	broken.add("init", 0o100755, []byte("not a program"))
	require.NoError(t, os.WriteFile(img.Initramfs, broken.close(), 0o600))
	before := goleak.IgnoreCurrent()
	_, err = Boot(t.Context(), img)
	require.ErrorContains(t, err, "Kernel panic")
	require.ErrorContains(t, err, "QEMU has ended")

	img.Vmlinux = "/nonexistent/vmlinux"
	_, err = Boot(t.Context(), img)
	require.ErrorContains(t, err, "/nonexistent/vmlinux")

	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = Boot(ctx, img)
	require.Error(t, err)
	goleak.VerifyNone(t, before)
}
