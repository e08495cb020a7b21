package main

import (
	"errors"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging/cuda"
	"github.com/nvstage/nvstage/staging/rocm"
)

func TestHostDevice(t *testing.T) {
	r := decodeReport(t, succeeds(t, "--size", "16M", "--memory", "2M", "--device", "host", "--json").out)
	require.Equal(t, &deviceReport{Kind: "host"}, r.Device)
	require.True(t, r.Checksums.CopiedBack)
	require.Equal(t, r.Tensors, r.Checksums.Compared)
	require.Empty(t, r.Checksums.Wrong)
	require.Empty(t, r.CPU.IncludesHash, "that is computed after the load")
	require.Empty(t, r.Pool.Registered)
	o := succeeds(t, "--size", "4M", "--device", "host")
	require.Contains(t, o.out, "device     the host's memory\n")
	require.Contains(t, o.out, "tensors copied back from the device and compared with the generator: all right\n")
	require.Nil(t, decodeReport(t, succeeds(t, "--size", "1M", "--json").out).Device)
}

// notBuilt is the error of a program that was built without the tag of a GPU.
var notBuilt = map[string]func() bool{
	deviceCUDA: func() bool { _, err := cuda.Devices(""); return errors.Is(err, cuda.ErrNotBuilt) },
	deviceROCm: func() bool { _, err := rocm.Devices(""); return errors.Is(err, rocm.ErrNotBuilt) },
}

func TestNoGPU(t *testing.T) {
	none := filepath.Join(t.TempDir(), "none.so")
	t.Setenv("NVSTAGE_CUDA_LIBRARY", none)
	t.Setenv("NVSTAGE_ROCM_LIBRARY", none)
	for kind, missing := range notBuilt {
		for _, device := range []string{kind, kind + ":1"} {
			o := shardload(t, "--size", "1M", "--device", device)
			require.Equal(t, exitFailed, o.status)
			if missing() {
				require.Contains(t, o.line(t), kind+": not built in: build the program with -tags "+kind)
			} else {
				require.Contains(t, o.line(t), kind+": no driver library: tried "+none)
				require.NotContains(t, o.line(t), "Config.")
			}
			require.Empty(t, o.out)
		}
	}
}
