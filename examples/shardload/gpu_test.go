//go:build linux && cgo && (cuda || rocm)

package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/gputest"
)

// onStandin runs f for each GPU that this program was built for, with a stand-in as its driver. What f leaves over in the driver is an error.
func onStandin(t *testing.T, f func(t *testing.T, kind string, driver *gputest.Standin)) {
	ran := false
	for kind, lib := range map[string]struct {
		env    string
		driver *gputest.Driver
	}{deviceCUDA: {"NVSTAGE_CUDA_LIBRARY", gputest.CUDA}, deviceROCm: {"NVSTAGE_ROCM_LIBRARY", gputest.HIP}} {
		if notBuilt[kind]() {
			continue
		}
		ran = true
		t.Run(kind, func(t *testing.T) {
			s := gputest.New(t, lib.driver)
			t.Setenv(lib.env, s.Path)
			f(t, kind, s)
		})
	}
	require.True(t, ran)
}

func TestGPU(t *testing.T) {
	onStandin(t, func(t *testing.T, kind string, driver *gputest.Standin) {
		driver.Set("jitter_us=200") // copies end in any order
		for _, args := range [][]string{
			{"--device", kind},
			{"--device", kind + ":1", "--rank", "1/3"},
			{"--device", kind, "--layers", "2-5", "--order", "file", "--format", "gguf"},
		} {
			r := decodeReport(t, succeeds(t, append(args, "--size", "8M", "--memory", "2M", "--json")...).out)
			require.Equal(t, kind, r.Device.Kind)
			g := r.Device.GPU
			require.Equal(t, strings.Count(args[1], ":"), g.Ordinal)
			require.Equal(t, []string{"0000:f0:00.0", "0000:f1:00.0"}[g.Ordinal], g.PCI)
			require.Equal(t, driver.Path, g.Library)
			require.Zero(t, g.UnregisteredBytes, "all copies are from and to the pool")
			require.Len(t, r.Pool.Registered, 1)
			require.True(t, r.Checksums.CopiedBack)
			require.Equal(t, r.Tensors, r.Checksums.Compared)
		}
		o := succeeds(t, "--size", "1M", "--device", kind)
		require.Contains(t, o.out, "device     "+kind+":0, ")
		require.Contains(t, o.out, ", registered with ")
	})
}

// What is compared is what the device has, not what was sent to it.
func TestGPUWithWrongBytes(t *testing.T) {
	onStandin(t, func(t *testing.T, kind string, driver *gputest.Standin) {
		driver.Set("move=0")
		o := shardload(t, "--size", "2M", "--device", kind)
		require.Equal(t, exitFailed, o.status)
		require.Contains(t, o.line(t), "tensors are not as in the generator")
		require.Contains(t, o.out, " WRONG")
	})
}

func TestGPUFails(t *testing.T) {
	onStandin(t, func(t *testing.T, kind string, driver *gputest.Standin) {
		for _, c := range []struct{ setting, want string }{
			{"memory=1048576", "out of memory"}, // bytes
			{"fail_async=3:700", "(700)"},
			{"devices=1", "device 1: no such device: the driver counts 1, from 0"},
		} {
			driver.Set(c.setting)
			o := shardload(t, "--size", "8M", "--memory", "2M", "--device", kind+":1")
			require.Equal(t, exitFailed, o.status, o.errors)
			t.Log(o.errors)
			require.Contains(t, o.errors, c.want)
			require.Contains(t, o.errors, kind)
			require.Empty(t, o.out)
			driver.Set("memory=85899345920")
		}
	})
}

// An interruption when a tensor is there, and others are on their way, frees all of them.
func TestInterruptGPU(t *testing.T) {
	onStandin(t, func(t *testing.T, kind string, driver *gputest.Standin) {
		target := modelTarget(t, 64<<20, 10*time.Millisecond)
		ctx, cancel := context.WithCancelCause(t.Context())
		defer cancel(nil)
		go func() {
			for driver.Count("bytes_in") < 24<<20 && ctx.Err() == nil {
				time.Sleep(time.Millisecond)
			}
			cancel(errInterrupted)
		}()
		var out, errs bytes.Buffer
		status := run(ctx, at(target, "", "--memory", "4M", "--device", kind), console{strings.NewReader(""), &out, &errs})
		require.Equal(t, exitInterrupted, status, errs.String())
		o := outcome{errors: errs.String()}
		require.Regexp(t, `^shardload: interrupted after [\d.]+ MiB of 64 MiB$`, o.line(t))
		require.Empty(t, out.String())
		disconnected(t, target)
	})
}
