package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/nvmetvm"
	"github.com/nvstage/nvstage/queue"
)

// shardload is the program as people run it.
var shardload = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "nvstage-e2e-")
	if err != nil {
		return "", err
	}
	bin := filepath.Join(dir, "shardload")
	out, err := exec.Command("go", "build", "-o", bin, "github.com/nvstage/nvstage/examples/shardload").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w\n%s", err, out)
	}
	return bin, nil
})

// run runs shardload and returns its standard output and error.
func run(t *testing.T, args ...string) (stdout, stderr string, err error) {
	t.Helper()
	bin, err := shardload()
	require.NoError(t, err)
	cmd := exec.CommandContext(deadline(t), bin, args...)
	var o, e bytes.Buffer
	cmd.Stdout, cmd.Stderr = &o, &e
	err = cmd.Run()
	return o.String(), e.String(), err
}

// mustRun runs shardload, which must succeed, and returns its report.
func mustRun(t *testing.T, args ...string) report {
	t.Helper()
	stdout, stderr, err := run(t, append(args, "--json")...)
	require.NoError(t, err, "shardload %q\n%s%s", args, stdout, stderr)
	var r report
	require.NoError(t, json.Unmarshal([]byte(stdout), &r), stdout)
	return r
}

// report is what of shardload's --json is looked at here.
type report struct {
	Tensors int   `json:"tensors"`
	Bytes   int64 `json:"bytes"`
	Queues  []struct {
		Driver       queue.Driver `json:"driver"`
		HeaderDigest bool         `json:"header_digest"`
		DataDigest   bool         `json:"data_digest"`
	} `json:"queues"`
	Checksums struct {
		Compared int   `json:"compared"`
		Wrong    []any `json:"wrong"`
	} `json:"checksums"`
}

// flags are those that lead to multi as the host that closed lets in.
func (tg *target) flags(t *testing.T) []string {
	h, p := split(t, tg.addr[0])
	return []string{"-a", h, "-s", p, "-n", tg.multi, "-q", nvmetvm.HostNQNAllowed}
}

// shards are the files to be put: a real model, and a made-up one of 32 MiB.
func shards(t *testing.T) map[string]string {
	dir := t.TempDir()
	_, stderr, err := run(t, "generate", "--size", "32M", "--shards", "1", dir)
	require.NoError(t, err, stderr)
	made, err := filepath.Glob(filepath.Join(dir, "*.safetensors"))
	require.NoError(t, err)
	require.Len(t, made, 1)
	m := map[string]string{"made-up": made[0]}
	const silero = "../../../shared/data/silero_vad_16k.safetensors"
	if _, err := os.Stat(silero); err != nil {
		t.Logf("NOT TESTED with a real model: %v", err)
		return m
	}
	m["silero"] = silero
	return m
}

// The main job: a shard is put on a namespace, the target's own checksum of it is right, and it is loaded
// and verified tensor by tensor over 1, 2 and 4 queues, with every digest setting, by every driver, on both
// block sizes.
func TestShardload(t *testing.T) {
	files := shards(t)
	forTargets(t, func(t *testing.T, tg *target) {
		turn := 0
		for name, file := range files {
			for _, s := range tg.spaces {
				t.Run(fmt.Sprintf("%s on blocks of %d", name, s.blockSize), func(t *testing.T) {
					flags := append(tg.flags(t), "--nsid", fmt.Sprint(s.nsid))
					mustRun(t, append([]string{"put", "--yes", file}, flags...)...)
					b, err := os.ReadFile(file)
					require.NoError(t, err)
					sum := sha256.Sum256(b)
					require.Equal(t, hex.EncodeToString(sum[:]), tg.sha256(t, s.nsid, int64(len(b))), "the target has another file")
					for _, queues := range []int{1, 2, 4} {
						for _, dg := range []struct{ header, data bool }{{}, {header: true}, {data: true}, {true, true}} {
							ds := drivers(t)
							if name != "silero" { // the large one takes its turn
								turn++
								ds = ds[turn%len(ds):][:1]
							}
							for _, d := range ds {
								verify(t, flags, file, queues, dg.header, dg.data, d)
							}
						}
					}
				})
			}
		}
	})
}

func verify(t *testing.T, flags []string, file string, queues int, header, data bool, d queue.Driver) {
	args := append([]string{"verify", "--file", file, "-i", fmt.Sprint(queues), "--driver", string(d)}, flags...)
	if header {
		args = append(args, "-g")
	}
	if data {
		args = append(args, "-G")
	}
	r := mustRun(t, args...)
	require.Positive(t, r.Tensors)
	require.Equal(t, r.Tensors, r.Checksums.Compared)
	require.Empty(t, r.Checksums.Wrong)
	require.Len(t, r.Queues, queues)
	for _, q := range r.Queues {
		require.Equal(t, d, q.Driver)
		require.Equal(t, header, q.HeaderDigest)
		require.Equal(t, data, q.DataDigest)
	}
}

// A byte that is wrong on the device is found, and named.
func TestShardloadFindsDamage(t *testing.T) {
	tg := realTarget(t)
	file := shards(t)["made-up"]
	flags := append(tg.flags(t), "--nsid", "1")
	mustRun(t, append([]string{"put", "--yes", file}, flags...)...)
	vm := nvmetvm.Start(t) // the same machine
	_, err := vm.Run(deadline(t), "printf damagedamage | dd of="+nvmetvm.DevMulti1+" bs=1 seek=5000000 conv=notrunc,fsync")
	require.NoError(t, err)
	_, stderr, err := run(t, append([]string{"verify", "--file", file}, flags...)...)
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, stderr, "1 of")
}

// Bad input against the real thing: one line, status 1.
func TestShardloadRefusals(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		h, p := split(t, tg.addr[0])
		for name, args := range map[string][]string{
			"another NQN":      {"-a", h, "-s", p, "-n", "nqn.2025-01.io.example:absent", "--nsid", "1"},
			"host not allowed": {"-a", h, "-s", p, "-n", tg.closed, "-q", "nqn.2014-08.org.nvmexpress:uuid:22222222-2222-2222-2222-222222222222", "--nsid", "1"},
			"no namespace":     append(tg.flags(t), "--nsid", "9"),
		} {
			t.Run(name, func(t *testing.T) {
				stdout, stderr, err := run(t, args...)
				var exit *exec.ExitError
				require.ErrorAs(t, err, &exit)
				require.Equal(t, 1, exit.ExitCode())
				require.Empty(t, stdout)
				require.Equal(t, 1, bytes.Count([]byte(stderr), []byte("\n")), "not one line: %s", stderr)
				require.Contains(t, stderr, p)
			})
		}
	})
}
