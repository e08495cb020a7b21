//go:build unix

package main

import (
	"bytes"
	"os"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestInterrupt(t *testing.T) {
	for sig, to := range map[syscall.Signal][]string{syscall.SIGINT: nil, syscall.SIGTERM: {"--device", "host"}} {
		target := modelTarget(t, 64<<20, 20*time.Millisecond)
		cmd := program(t, at(target, "", append(to, "--memory", "4M")...)...)
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		require.NoError(t, cmd.Start())
		moved(t, target, 24<<20) // more than the first tensor, and less than all
		begun, sets := time.Now(), target.Stats().Fabrics[fabrics.TypePropertySet]
		require.NoError(t, cmd.Process.Signal(sig))
		require.Error(t, cmd.Wait())
		require.Less(t, time.Since(begun), 5*time.Second)
		require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), errs.String())
		o := outcome{out: out.String(), errors: errs.String()}
		require.Regexp(t, `^shardload: interrupted after [\d.]+ MiB of 64 MiB$`, o.line(t))
		require.Empty(t, o.out)
		disconnected(t, target)
		require.Equal(t, sets+1, target.Stats().Fabrics[fabrics.TypePropertySet], "CC.SHN is not set: no orderly shutdown")
	}
}

// moved waits until a target has sent and received so many bytes of data.
func moved(t *testing.T, target *nvmetest.Target, n uint64) {
	t.Helper()
	require.Eventually(t, func() bool {
		s := target.Stats()
		return s.DataSent+s.DataReceived >= n
	}, 20*time.Second, 5*time.Millisecond)
}

func TestInterruptPut(t *testing.T) {
	files := generated(t, "64M")
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(32 << 20)})
	succeeds(t, at(target, "put", "-y", "--nsid", "1", files[0])...)
	before := target.Stats().DataReceived
	target.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.QID > 0 && c.SQE.Opcode == nvme.OpWrite {
			time.Sleep(50 * time.Millisecond)
		}
		return nvmetest.Action{}
	}})
	cmd := program(t, at(target, "put", "-y", "--nsid", "1", files[1])...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return target.Stats().DataReceived > before+4<<20 }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), errs.String())
	require.Regexp(t, `^shardload: interrupted after [\d.]+ (B|MiB) of [\d.]+ MiB; namespace 1 holds no shard now: put it again$`, outcome{errors: errs.String()}.line(t))
	disconnected(t, target)
	target.SetFaults(nvmetest.Faults{})
	require.Contains(t, shardload(t, at(target, "")...).line(t), "not a shard")
}

// A target that never confirms the shutdown holds nobody up for long, and nobody at all who presses Ctrl-C again.
func TestInterruptTwice(t *testing.T) {
	for _, twice := range []bool{false, true} {
		target := modelTarget(t, 64<<20, 0)
		f := target.Faults()
		f.OnCommand = nil
		f.Rules = []nvmetest.Rule{{Queue: nvmetest.IOQueue, Nth: 20, Do: nvmetest.Action{Drop: true}}}
		f.Controller.NeverShutdown = true
		target.SetFaults(f)
		cmd := program(t, at(target, "", "--memory", "4M")...)
		var errs bytes.Buffer
		cmd.Stderr = &errs
		require.NoError(t, cmd.Start())
		moved(t, target, 8<<20)
		begun := time.Now()
		require.NoError(t, cmd.Process.Signal(os.Interrupt))
		if twice {
			time.Sleep(lingerAfterSignal / 4)
			require.NoError(t, cmd.Process.Signal(os.Interrupt))
		}
		require.Error(t, cmd.Wait())
		require.Less(t, time.Since(begun), 2*lingerAfterSignal)
		status := cmd.ProcessState.Sys().(syscall.WaitStatus)
		require.Equal(t, twice, status.Signaled(), errs.String())
		if !twice {
			require.Equal(t, exitInterrupted, status.ExitStatus())
			require.Contains(t, errs.String(), "disconnecting: the target did not confirm in 2s")
		}
	}
}

func TestInterruptWhileConnecting(t *testing.T) {
	target := startTarget(t, nvmetest.ModeNVMET)
	target.SetFaults(nvmetest.Faults{Conn: nvmetest.ConnFaults{NoICResp: true}})
	cmd := program(t, at(target, "")...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return target.Stats().Connections > 0 }, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), errs.String())
	require.Equal(t, "shardload: interrupted\n", errs.String())
}
