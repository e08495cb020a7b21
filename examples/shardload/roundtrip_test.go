package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/pierrec/lz4/v4"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// TestRoundTrip puts shards, and verifies and loads them, in all the ways that there are.
func TestRoundTrip(t *testing.T) {
	files := generated(t, "6M")
	digests := []struct {
		name  string
		flags []string
	}{{"none", nil}, {"header", []string{"-g"}}, {"data", []string{"--data-digest"}}, {"both", []string{"-g", "-G"}}}
	i := 0
	for _, mode := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		for _, d := range digests {
			// Each combination gets another number of queues, block size and driver.
			queues, block, driver := []string{"1", "2", "4"}[i%3], []int{512, 4096}[i%2], availableDrivers[(i+i/3)%len(availableDrivers)]
			i++
			t.Run(fmt.Sprintf("%v/%s/%s/%s", mode, d.name, queues, driver), func(t *testing.T) {
				flags := append([]string{"-i", queues, "--driver", driver}, d.flags...)
				roundTrip(t, mode, block, files, flags)
			})
		}
	}
}

func roundTrip(t *testing.T, mode nvmetest.Mode, block int, files, flags []string) {
	const size = 4 << 20
	var spaces []nvmetest.Namespace
	for range files {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: block, Backend: nvmetest.MemoryOf(bytes.Repeat([]byte{0xA5}, size))})
	}
	target := startTarget(t, mode, spaces...)
	var compare []string
	for i, f := range files {
		o := succeeds(t, at(target, "put", append(flags, "--yes", "--nsid", fmt.Sprint(i+1), f)...)...)
		require.Contains(t, o.out, fmt.Sprintf("namespace %d\n", i+1))
		want, err := os.ReadFile(f)
		require.NoError(t, err)
		want = append(want, make([]byte, (block-len(want)%block)%block)...)
		got := contentOf(t, spaces[i])
		require.True(t, bytes.Equal(want, got[:len(want)]), "what is on the namespace is not the file, filled up with zeros to a block")
		require.True(t, bytes.Equal(got[len(want):], bytes.Repeat([]byte{0xA5}, size-len(want))), "put wrote behind the file")
		compare = append(compare, "--file", f)
	}
	o := succeeds(t, at(target, "verify", append(flags, compare...)...)...)
	require.Contains(t, o.out, "checksums  SHA-256 of ")
	require.Contains(t, o.out, ": all right")
	require.Contains(t, o.out, "4 shards on namespaces 1,2,3,4")

	list := filepath.Join(t.TempDir(), "sums")
	require.NoError(t, os.WriteFile(list, []byte(succeeds(t, "sums", files[1], files[2]).out), 0o600))
	succeeds(t, at(target, "verify", append(flags, "--sums", list, "--nsid", "2-3")...)...)

	o = succeeds(t, at(target, "", append(flags, "--nsid", "4,1", "--json")...)...)
	r := decodeReport(t, o.out)
	require.Len(t, r.Shards, 2)
	require.Equal(t, []uint32{4, 1}, []uint32{r.Shards[0].NSID, r.Shards[1].NSID})
	require.Nil(t, r.Checksums)
	require.False(t, r.Target.Embedded)
	require.Equal(t, target.Addr(), r.Target.Address)
	require.Empty(t, target.Stats().TermReqs)
	disconnected(t, target)
}

// TestGGUF does it with a split GGUF model, as made up here, and with one part of it in an LZ4 frame.
func TestGGUF(t *testing.T) {
	dir := t.TempDir()
	var files []string
	for line := range strings.Lines(succeeds(t, "generate", "--size", "3M", "--shards", "3", "--format", "gguf", dir).out) {
		files = append(files, strings.TrimSpace(line))
	}
	require.Len(t, files, 3)
	require.Equal(t, "model-00002-of-00003.gguf", filepath.Base(files[1]))
	plain, err := os.ReadFile(files[1])
	require.NoError(t, err)
	packed := files[1] + ".lz4"
	require.NoError(t, os.WriteFile(packed, lz4Frame(t, plain), 0o600))

	var spaces []nvmetest.Namespace
	for range files {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.MemoryOf(bytes.Repeat([]byte{0xA5}, 4<<20))})
	}
	target := startTarget(t, nvmetest.ModeNVMET, spaces...)
	sums := filepath.Join(dir, "sums")
	require.NoError(t, os.WriteFile(sums, []byte(succeeds(t, append([]string{"sums"}, files...)...).out), 0o600))
	for _, second := range []string{files[1], packed} {
		var compare []string
		for i, f := range []string{files[0], second, files[2]} {
			succeeds(t, at(target, "put", "--yes", "--nsid", fmt.Sprint(i+1), f)...)
			want, err := os.ReadFile(f)
			require.NoError(t, err)
			require.True(t, bytes.Equal(want, contentOf(t, spaces[i])[:len(want)]), "what is on the namespace is not the file")
			compare = append(compare, "--file", f)
		}
		for _, how := range [][]string{compare, {"--sums", sums}} {
			o := succeeds(t, at(target, "verify", how...)...)
			require.Contains(t, o.out, ": all right")
		}
		o := succeeds(t, at(target, "")...)
		require.Contains(t, o.out, "first layer ")
		require.Contains(t, o.out, "blk.0")
	}
	for nsids, text := range map[string]string{"1-2": "3 parts, and there are 2 shards", "1,3,2": "split.no 2, want 1"} {
		o := shardload(t, at(target, "", "--nsid", nsids)...)
		require.Equal(t, exitFailed, o.status)
		require.Contains(t, o.line(t), text)
		require.Contains(t, o.line(t), "in the order of the parts")
	}
	require.Empty(t, target.Stats().TermReqs)
	succeeds(t, "--size", "1M", "--shards", "64", "--format", "gguf") // some parts have no tensors
}

// lz4Frame is content as an LZ4 frame.
func lz4Frame(t *testing.T, content []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	w := lz4.NewWriter(&b)
	_, err := w.Write(content)
	require.NoError(t, err)
	require.NoError(t, w.Close())
	return b.Bytes()
}

// contentOf is what is on a namespace.
func contentOf(t *testing.T, ns nvmetest.Namespace) []byte {
	t.Helper()
	b := make([]byte, ns.Backend.Size())
	_, err := ns.Backend.ReadAt(b, 0)
	require.NoError(t, err)
	return b
}

// disconnected waits for a target to notice that the host has gone.
func disconnected(t *testing.T, target *nvmetest.Target) {
	t.Helper()
	require.Eventually(t, func() bool { return target.Stats().Open == 0 }, 5*time.Second, 5*time.Millisecond)
}

// decodeReport reads the JSON of a report.
func decodeReport(t *testing.T, s string) *report {
	t.Helper()
	r := decode[report](t, s)
	return &r
}

// decode reads one JSON object, which must not have fields that T has not.
func decode[T any](t *testing.T, s string) (v T) {
	t.Helper()
	d := json.NewDecoder(strings.NewReader(s))
	d.DisallowUnknownFields()
	require.NoError(t, d.Decode(&v))
	require.False(t, d.More())
	return v
}

// A shard that fills its namespace to the last block, and one that does not fit by a byte.
func TestPutFits(t *testing.T) {
	file := generated(t, "1M")[0]
	info, err := os.Stat(file)
	require.NoError(t, err)
	blocks := (info.Size() + 511) / 512
	target := startTarget(t, nvmetest.ModeNVMET,
		nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(blocks * 512)},
		nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory((blocks - 1) * 512)})
	succeeds(t, at(target, "put", "--yes", "--nsid", "1", file)...)
	succeeds(t, at(target, "verify", "--nsid", "1", "--file", file)...)

	o := shardload(t, at(target, "put", "--yes", "--nsid", "2", file)...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), fmt.Sprintf("has %d bytes, more than namespace 2", info.Size()))
	require.Zero(t, target.Stats().DataReceived%512, "nothing but whole blocks")
}

// The buffer of the last block has been used before: what was in it must not be written.
func TestPutFillsUpWithZeros(t *testing.T) {
	dir := t.TempDir()
	file := strings.TrimSpace(succeeds(t, "generate", "--size", "4M", "--shards", "1", dir).out)
	want, err := os.ReadFile(file)
	require.NoError(t, err)
	ns := nvmetest.Namespace{BlockSize: 4096, Backend: nvmetest.MemoryOf(bytes.Repeat([]byte{0xA5}, 8<<20))}
	target := startTarget(t, nvmetest.ModeNVMET, ns)
	succeeds(t, at(target, "put", "-y", "--memory", "1M", "--nsid", "1", file)...)
	rest := 4096 - len(want)%4096
	require.NotEqual(t, 4096, rest, "this shard needs none")
	got := contentOf(t, ns)
	require.True(t, bytes.Equal(want, got[:len(want)]))
	require.True(t, bytes.Equal(make([]byte, rest), got[len(want):][:rest]))
	require.EqualValues(t, 0xA5, got[len(want)+rest])
}

// TestRealModel does it with a model that somebody uses, whose length is no multiple of a block.
func TestRealModel(t *testing.T) {
	file := filepath.Join("..", "..", "..", "shared", "data", "silero_vad_16k.safetensors")
	if _, err := os.Stat(file); err != nil {
		t.Skipf("no real model here: %v", err)
	}
	target := startTarget(t, nvmetest.ModeNVMET,
		nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(2 << 20)}, nvmetest.Namespace{BlockSize: 4096, Backend: nvmetest.Memory(2 << 20)})
	for _, nsid := range []string{"1", "2"} {
		succeeds(t, at(target, "put", "--yes", "--nsid", nsid, file)...)
		for _, queues := range []string{"1", "2", "4"} {
			o := succeeds(t, at(target, "verify", "-i", queues, "--nsid", nsid, "--file", file)...)
			require.Contains(t, o.out, ": all right")
		}
	}
}
