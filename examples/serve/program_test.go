package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging"
)

func pcg(seed uint64) *rand.PCG { return rand.NewPCG(seed, 0) }

func jsonTo(text []byte, v any) error { return json.Unmarshal(text, v) }

// Everything that staging opens can be served.
func TestFormats(t *testing.T) {
	half := func(name string, seed uint64) []byte {
		h, err := staging.NewHeader([]staging.TensorInfo{{Name: name, DType: staging.F16, Shape: []int64{300, 5}}}, nil)
		require.NoError(t, err)
		var b bytes.Buffer
		require.NoError(t, staging.WriteShard(&b, h, func(info *staging.TensorInfo) io.Reader {
			return io.LimitReader(weights{pcg(seed)}, info.Bytes())
		}))
		return b.Bytes()
	}
	safetensors, one, two := shard(t, 1<<20, 1), half("one", 1), half("two", 2)
	var compressed bytes.Buffer
	w := lz4.NewWriter(&compressed)
	require.NoError(t, w.Apply(lz4.BlockSizeOption(lz4.Block256Kb), lz4.SizeOption(uint64(len(safetensors)))))
	_, err := w.Write(safetensors)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	g, err := staging.NewGGUF([]staging.TensorInfo{{Name: "token_embd.weight", DType: staging.Q4_0, Shape: []int64{7, 64}}}, nil)
	require.NoError(t, err)
	var gguf bytes.Buffer
	require.NoError(t, staging.WriteGGUF(&gguf, g, func(info *staging.TensorInfo) io.Reader { return io.LimitReader(weights{pcg(3)}, info.Bytes()) }))

	r := start(t, startTarget(t, compressed.Bytes(), one, two, gguf.Bytes()), staging.Host{}, 0, nil)
	models := func() string {
		_, text := r.raw("GET", "/v1/models", "")
		return string(text)
	}
	r.serves(r.loaded(namespaces(1)), of(t, safetensors))
	require.Contains(t, models(), `"format":"safetensors","lz4":true`)
	r.serves(r.loaded(`{"namespaces": [2, 3], "index": {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}}`), of(t, one), of(t, two))
	require.Contains(t, models(), `"format":"safetensors","lz4":false`)
	st := r.ended(r.load(`{"namespaces": [3, 2], "index": {"weight_map": {"one": "a.safetensors", "two": "b.safetensors"}}}`))
	require.Equal(t, failed, st.State)
	require.Contains(t, st.Error, "bad shard index")
	r.serves(r.loaded(namespaces(4)), reference{g.Header, gguf.Bytes()})
	require.Contains(t, models(), `"format":"gguf","lz4":false`)
	code, got := r.infer("token_embd.weight", "[1]")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	require.Contains(t, got.Error, "is of type Q4_0")
	require.Contains(t, got.Hint, "BF16")
}

// Infinities, which JSON does not have, are an error and not half an answer.
func TestInferOverflow(t *testing.T) {
	h, err := staging.NewHeader([]staging.TensorInfo{{Name: "wide", DType: staging.F64, Shape: []int64{1}}, {Name: "scalar", DType: staging.F32}}, nil)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, staging.WriteShard(&b, h, func(info *staging.TensorInfo) io.Reader {
		if info.Name == "scalar" {
			return bytes.NewReader([]byte{0, 0, 0x20, 0xC0}) // -2.5
		}
		return bytes.NewReader([]byte{0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xEF, 0x7F}) // the largest
	}))
	r := start(t, startTarget(t, b.Bytes()), staging.Host{}, 0, nil)
	r.loaded(`{}`)
	code, got := r.infer("wide", "[2]")
	require.Equal(t, http.StatusUnprocessableEntity, code)
	require.Equal(t, "output 0 is +Inf", got.Error)
	code, got = r.infer("wide", "[0.5]")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, []float64{math.MaxFloat64 / 2}, got.Output)
	code, got = r.infer("scalar", "[2]")
	require.Equal(t, http.StatusOK, code)
	require.Equal(t, []float64{-5}, got.Output)
}

func TestHalf(t *testing.T) {
	for bits, want := range map[uint16]float64{
		0x0000: 0, 0x3C00: 1, 0xC000: -2, 0x7BFF: 65504, 0x0001: math.Ldexp(1, -24), 0x83FF: -math.Ldexp(1023, -24), 0x0400: math.Ldexp(1, -14),
		0x3555: 0.333251953125, 0x7C00: math.Inf(1), 0xFC00: math.Inf(-1),
	} {
		require.Equal(t, want, half(bits), "%#x", bits)
	}
	require.True(t, math.IsNaN(half(0x7E00)))
}

func TestUsage(t *testing.T) {
	index := filepath.Join(t.TempDir(), "model.safetensors.index.json")
	require.NoError(t, os.WriteFile(index, []byte(`{"weight_map": {"a": "b"}}`), 0o600))
	there := "-a 127.0.0.1 -n " + testNQN
	for args, want := range map[string]string{
		"-x":                            "unknown shorthand flag",
		"model":                         `unexpected argument "model"`,
		"-t rdma":                       "only tcp is supported",
		"-n " + testNQN:                 "--nqn needs --traddr",
		"--nsid 1":                      "--nsid needs --traddr",
		"-a 127.0.0.1":                  "NQN of the subsystem",
		there + " --nsid 0":             "namespace 0: want 1 to",
		there + " --nsid 99999999999":   "namespace 4294967295: want 1 to",
		there + " --nsid 3,3":           "namespace 3 is there twice",
		there + " --size 1M":            "--size is for made-up models",
		there + " --index " + index:     "the index has 1 files, and there are 0 namespaces",
		there + " --index nothing.json": "nothing.json",
		"-I 1234":                       "--hostid",
		"--timeout 0":                   "want a duration like 30s",
		"--drain -1s":                   "want a duration like 30s",
		"--memory 0":                    "want a number of bytes like 64M or 1G",
		"--memory 99999999T":            "want a number of bytes like 64M or 1G",
		"--memory-limit 1M":             "--memory-limit 1M: it includes --memory, which is 256M",
	} {
		var errs bytes.Buffer
		require.Equal(t, 2, run(t.Context(), strings.Fields(args), io.Discard, &errs), args)
		require.Contains(t, errs.String(), want, args)
		require.Equal(t, 1, strings.Count(errs.String(), "\n"), args)
	}
	var out bytes.Buffer
	require.Zero(t, run(t.Context(), []string{"--help"}, &out, io.Discard))
	require.Contains(t, out.String(), "--memory SIZE")

	// Without a GPU the package says why, and the target in this process is closed.
	for args, want := range map[string]string{
		"--device cuda":                     "cuda",
		"--device rocm":                     "rocm",
		"--device tpu":                      `--device "tpu": want host, cuda or rocm`,
		"--listen nowhere":                  "listen tcp",
		"--memory 99T --listen 127.0.0.1:0": "\nserve: --memory 99T: staging: pool of 108851651149824 bytes",
		"--memory-limit 256M --memory 256M --device host --listen 127.0.0.1:x": "listen tcp",
	} {
		if name := args[len("--device "):min(len(args), len("--device cuda"))]; (name == "cuda" || name == "rocm") && hasDevice(name) {
			continue
		}
		var errs bytes.Buffer
		require.Equal(t, 1, run(t.Context(), append(strings.Fields(args), "--size", "1M"), io.Discard, &errs), args)
		require.Contains(t, errs.String(), want)
	}
}

func hasDevice(name string) bool {
	dev, _, err := openDevice(name, 0)
	if err == nil {
		_ = dev.Close()
	}
	return err == nil
}

// begun reads a log until the server serves, and goes on reading it. It returns the server's URL.
func begun(t *testing.T, log io.Reader) string {
	t.Helper()
	lines := bufio.NewScanner(log)
	for lines.Scan() {
		t.Log(lines.Text())
		if m := regexp.MustCompile(`msg=serving url=(\S+)`).FindStringSubmatch(lines.Text()); m != nil {
			go io.Copy(io.Discard, log)
			return m[1]
		}
	}
	require.Fail(t, "the server did not start")
	return ""
}

// The whole program, as somebody without a target begins with it.
func TestWithoutFlags(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	log, w := io.Pipe()
	status := make(chan int, 1)
	go func() {
		status <- run(ctx, []string{"--listen", "127.0.0.1:0", "--size", "1M", "--memory", "2M"}, io.Discard, w)
		w.Close()
	}()
	r := &rig{T: t, url: begun(t, log), client: &http.Client{Transport: &http.Transport{}}}
	defer r.client.CloseIdleConnections()
	require.Equal(t, done, r.ended(1).State)
	r.serves(1, of(t, shard(t, 1<<20, 1)))
	r.serves(r.loaded(namespaces(2)), of(t, shard(t, 1<<20, 2)))
	cancel()
	require.Zero(t, <-status)
}

func TestSignal(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("Windows has no SIGTERM that one process could send to another")
	}
	cmd := exec.CommandContext(t.Context(), os.Args[0], "--listen", "127.0.0.1:0", "--size", "1M", "--memory", "2M")
	cmd.Env = append(os.Environ(), runsProgram+"=1")
	log, err := cmd.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	r := &rig{T: t, url: begun(t, log), client: &http.Client{Transport: &http.Transport{}}}
	defer r.client.CloseIdleConnections()
	require.Equal(t, done, r.ended(1).State)
	require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
	require.NoError(t, cmd.Wait())
}
