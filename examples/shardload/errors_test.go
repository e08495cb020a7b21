package main

import (
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func TestUsage(t *testing.T) {
	const nqn = "nqn.2025-01.io.example:models"
	for _, c := range []struct {
		args string
		want string
	}{
		{"lod", `"lod" is not a command`},
		{"--frobnicate", "unknown flag: --frobnicate"},
		{"-x", "unknown shorthand flag: 'x' in -x"},
		{"-i 2 put", `unexpected argument "put"; a command comes before its flags`},
		{"-t rdma", "only tcp is supported"},
		{"-n " + nqn, "--nqn needs --traddr"},
		{"-s 4420", "--trsvcid needs --traddr"},
		{"--nsid 1", "--nsid needs --traddr"},
		{"-a 127.0.0.1", "which subsystem? Give its NQN with --nqn; shardload discover --traddr 127.0.0.1 lists them"},
		{"-a 127.0.0.1 -n nqn", "--nqn: NQN"},
		{"-a 127.0.0.1 -n " + nqn + " -s 0", `--trsvcid "0": want a port`},
		{"-a 127.0.0.1 -n " + nqn + " -s nvme", `--trsvcid "nvme": want a port`},
		{"-a 127.0.0.1 -n " + nqn + " -w localhost", `--host-traddr "localhost": want an IP address`},
		{"-a 127.0.0.1 -n " + nqn + " --size 1G", "--size, --shards and --format are for the made-up model"},
		{"-I 1234", `--hostid "1234": want a UUID`},
		{"-i -1", "--nr-io-queues -1: want 1 to"},
		{"-Q 1", "--queue-size 1: want 2 to"},
		{"-k 4294968", "--keep-alive-tmo 4294968: want at most 4294967"},
		{"--driver dpdk", "want auto, io_uring, epoll or net.Conn"},
		{"--timeout 0", "want seconds, or a duration like 500ms"},
		{"--size 1K", "--size 1024: want 1M to 4T"},
		{"--shards 0", "--shards 0: want 1 to 64"},
		{"--format onnx", "want safetensors or gguf"},
		{"--size 99999999T", "want a number of bytes like 64M or 1G"},
		{"--size x", "want a number of bytes like 64M or 1G"},
		{"--memory 1K", "--memory 1K: want 1 MiB or more"},
		{"--order size", "want layer or file"},
		{"--rank 4/4", "want R/N, like 0/4 for the first of four ranks"},
		{"--rank 1", "want R/N"},
		{"--rank 0/99999999", "want R/N"},
		{"--layers 4-2", "want A-B, like 0-15, or a single layer"},
		{"--layers -1", "want A-B"},
		{"--device gpu", "want host, cuda or rocm, or the N-th GPU like cuda:1"},
		{"--device host:0", "want host, cuda or rocm"},
		{"--device cuda:", "want host, cuda or rocm"},
		{"--device rocm:-1", "want host, cuda or rocm"},
		{"--hugepages yes", "want auto, never or require"},
		{"--numa-node local", "want the number of a node"},
		{"--memory-limit 1K", "--memory-limit 1K: want 1 MiB or more"},
		{"--memory 8M --memory-limit 4M", "--memory 8M is more than --memory-limit 4M"},
		{"--index f", "--index needs --traddr"},
		{"verify --rank 0/2 --sums f -a 127.0.0.1 -n " + nqn, "--rank loads parts of tensors, and --sums is of whole ones: compare with --file"},
		{"put --rank 0/2 f", "unknown flag: --rank"},
		{"--nsid 4-2", `"4-2" is not a namespace, nor a range of them; want a list like 1,2,4-6`},
		{"--nsid 1-9999999", "is not a namespace, nor a range"},
		{"--nsid 1,1-2", "namespace 1 is in the list twice"},
		{"put", "put writes one file, not 0"},
		{"put f", "which target? Give its address with --traddr"},
		{"put f -y -a 127.0.0.1 -n " + nqn, "which namespace? Give one with --nsid"},
		{"put f -a 127.0.0.1 --nsid 1 -n " + nqn, "there is no terminal to ask on: confirm with --yes"},
		{"put f -y --nsid 1,2 -a 127.0.0.1 -n " + nqn, "which namespace? Give one with --nsid"},
		{"verify -a 127.0.0.1 -n " + nqn, "compare with what? Give either --file or --sums"},
		{"verify --file a --sums b -a 127.0.0.1 -n " + nqn, "compare with what? Give either --file or --sums"},
		{"verify --file a", "which target?"},
		{"discover", "which target?"},
		{"discover -i 4 -a 127.0.0.1", "unknown shorthand flag: 'i'"},
		{"sums", "which files?"},
		{"generate", "generate writes to one directory, not 0"},
	} {
		o := shardload(t, strings.Fields(c.args)...)
		require.Equal(t, exitUsage, o.status, c.args)
		require.Contains(t, o.line(t), c.want, c.args)
		require.Contains(t, o.line(t), "--help)", c.args)
		require.Empty(t, o.out, c.args)
	}
}

// TestBadInput has what goes wrong outside of the command line: one line that says what was tried,
// where, and what to do; exit status 1; within the timeout.
func TestBadInput(t *testing.T) {
	good, err := os.ReadFile(generated(t, "1M")[0])
	require.NoError(t, err)
	corrupt := append([]byte{}, good...)
	copy(corrupt[20:], "}}}}}")
	huge := append([]byte{}, good...)
	binary.LittleEndian.PutUint64(huge, 1<<40)
	file := filepath.Join(t.TempDir(), "f")
	write := func(b []byte) string {
		require.NoError(t, os.WriteFile(file, b, 0o600))
		return file
	}
	space := func(b []byte, size int) nvmetest.Namespace {
		m := make([]byte, size)
		copy(m, b)
		return nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.MemoryOf(m)}
	}
	target := startTarget(t, nvmetest.ModeNVMET,
		space(good, 1<<20),   // 1
		space(good, 128<<10), // 2: cut off
		space(nil, 1<<20),    // 3: zeros
		space(corrupt, 1<<20),
		space(huge, 1<<20),
		nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.ReaderAt(strings.NewReader(string(good)), 1<<20)}, // 6
		nvmetest.Namespace{BlockSize: 512, Metadata: 8, Backend: nvmetest.Memory(1 << 20)},
		nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(1 << 20), ANAGroup: 2, ANAState: nvme.ANAInaccessible}, // 8
	)
	refused, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	_, closedPort, _ := net.SplitHostPort(refused.Addr().String())
	require.NoError(t, refused.Close())
	silent, err := net.Listen("tcp", "127.0.0.1:0") // connects, and then says nothing
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, silent.Close()) })
	_, silentPort, _ := net.SplitHostPort(silent.Addr().String())
	host, port, _ := net.SplitHostPort(target.Addr())

	for _, c := range []struct {
		name string
		args []string
		want []string
	}{
		{"no such host", []string{"-a", "no-such-host.invalid", "-n", testNQN}, []string{"connect: ", "no-such-host.invalid:4420", "check the name, or give an IP address"}},
		{"connection refused", []string{"-a", host, "-s", closedPort, "-n", testNQN}, []string{host + ":" + closedPort, "connection refused", "check the address and the port"}},
		{"nobody answers", []string{"-a", host, "-s", silentPort, "-n", testNQN, "--timeout", "300ms"}, []string{host + ":" + silentPort, "300ms", "does an NVMe/TCP controller listen there?"}},
		{"wrong NQN", []string{"-a", host, "-s", port, "-n", testNQN + "-none"}, []string{target.Addr(), "no subsystem \"" + testNQN + "-none\"", "shardload discover lists what is there"}},
		{"host not allowed", []string{"-a", host, "-s", port, "-n", testNQN + "-closed", "-I", "12345678-9abc-def0-1234-56789abcdef0"}, []string{"host NQN \"nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-def0-1234-56789abcdef0\" is not allowed", "allowed_hosts"}},
		{"host NQN without ID", at(target, "", "-q", "nqn.2025-01.io.nvstage:me"), []string{`host NQN "nqn.2025-01.io.nvstage:me"`, "give with --hostid a UUID"}},
		{"source address", at(target, "", "-w", "192.0.2.1"), []string{"--host-traddr 192.0.2.1 is not an address of this machine"}},
		{"namespace absent", at(target, "", "--nsid", "1,9"), []string{"namespace 9 of subsystem", target.Addr(), "not active", "active: 1,2,3,4,5,6,7,8"}},
		{"inaccessible", at(target, "", "--nsid", "8"), []string{"shardload: reading the shard header, 65536 bytes at 0: read of 65536 bytes at 0 of namespace 8: \"" + testNQN + "\" at " + target.Addr(), "Asymmetric Access Inaccessible", "shardload discover lists them"}},
		{"metadata", at(target, "", "--nsid", "7"), []string{"8 bytes of metadata", "format it without"}},
		{"not a shard", at(target, "", "--nsid", "3"), []string{"namespace 3 of", "not a shard", "the first 8 bytes say 0", "write one with shardload put"}},
		{"shard cut off", at(target, "", "--nsid", "2"), []string{"namespace 2 of", "shard is larger than its source", "use a larger namespace"}},
		{"corrupt header", at(target, "", "--nsid", "4"), []string{"namespace 4 of", "corrupt shard header"}},
		{"header too long", at(target, "", "--nsid", "5"), []string{"namespace 5 of", "not a shard", "1099511627776"}},
		{"one tensor twice", at(target, "", "--nsid", "1,6"), []string{"tensor model.embed_tokens.weight is on namespace 1 and on namespace 6", "choose with --nsid"}},
		{"put: no file", at(target, "put", "-y", "--nsid", "1", file+"-none"), []string{file + "-none: no such file"}},
		{"put: directory", at(target, "put", "-y", "--nsid", "1", t.TempDir()), []string{"not a regular file"}},
		{"put: not a shard", at(target, "put", "-y", "--nsid", "1", write([]byte("nothing of that kind"))), []string{file + ": not a shard"}},
		{"put: read-only", at(target, "put", "-y", "--nsid", "6", ""), []string{"write of 512 bytes at 0 of namespace 6", "Write Protected"}},
		{"sums: no file", []string{"sums", file + "-none"}, []string{file + "-none: no such file"}},
		{"verify: no file", at(target, "verify", "--file", file+"-none"), []string{file + "-none: no such file"}},
		{"verify: no sums", at(target, "verify", "--sums", file+"-none"), []string{file + "-none: no such file"}},
		{"verify: not sums", at(target, "verify", "--sums", file), []string{file + ": line 1 is not a SHA-256 in hex, two spaces, and the name of a tensor"}},
		{"discover: refused", []string{"discover", "-a", host, "-s", closedPort}, []string{host + ":" + closedPort, "connection refused"}},
		{"generate: no directory", []string{"generate", "--size", "1M", file + "-none/model"}, []string{file + "-none/model", "no such file"}},
		{"generate: a file", []string{"generate", "--size", "1M", file}, []string{file, "not a directory"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.name == "put: read-only" {
				c.args[len(c.args)-1] = generated(t, "1M")[0]
			}
			begun := time.Now()
			o := shardload(t, c.args...)
			require.Less(t, time.Since(begun), 15*time.Second)
			t.Log(o.line(t))
			require.Equal(t, exitFailed, o.status, o.errors)
			for _, want := range c.want {
				require.Contains(t, o.line(t), want)
			}
			for _, word := range []string{"nvmetcp:", "staging:", "Options.", "Target.", "HostTraddr", "Host.ID"} {
				require.NotContains(t, o.line(t), word, "that is for programmers")
			}
			require.NotContains(t, o.line(t), "holds no shard now")
			require.Empty(t, o.out)
		})
	}
	disconnected(t, target)
}

func TestDigestsRefused(t *testing.T) {
	target, err := nvmetest.Start(nvmetest.Config{
		Subsystems: []nvmetest.Subsystem{{NQN: testNQN}}, RefuseDigests: pdu.Digests{Header: true, Data: true},
	})
	require.NoError(t, err)
	defer target.Close()
	o := shardload(t, at(target, "", "-g")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "leave --hdr-digest and --data-digest out")
}

func TestNoNamespace(t *testing.T) {
	target := startTarget(t, nvmetest.ModeNVMET)
	o := shardload(t, at(target, "")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "has no active namespace")
	o = shardload(t, at(target, "", "--nsid", "1")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "none is")
}

// modelTarget is a target with a made-up model that reads slowly.
func modelTarget(t *testing.T, size int64, delay time.Duration) *nvmetest.Target {
	t.Helper()
	m, err := newModel(modelFlags{size: byteSize(size), shards: 4})
	require.NoError(t, err)
	var spaces []nvmetest.Namespace
	for _, s := range m.shards {
		spaces = append(spaces, nvmetest.Namespace{BlockSize: modelBlock, Backend: nvmetest.ReaderAt(s, s.padded())})
	}
	target := startTarget(t, nvmetest.ModeNVMET, spaces...)
	target.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.QID > 0 && c.SQE.Opcode == nvme.OpRead {
			time.Sleep(delay)
		}
		return nvmetest.Action{}
	}})
	return target
}

func TestTargetGoneHalfWay(t *testing.T) {
	target := modelTarget(t, 64<<20, 20*time.Millisecond)
	go func() {
		for target.Stats().DataSent < 8<<20 {
			time.Sleep(5 * time.Millisecond)
		}
		_ = target.Close()
	}()
	begun := time.Now()
	o := shardload(t, at(target, "", "--memory", "4M")...)
	require.Less(t, time.Since(begun), 10*time.Second)
	require.Equal(t, exitFailed, o.status)
	require.Regexp(t, `^shardload: tensor \S+: read of \d+ bytes at \d+ of namespace \d: "`+testNQN+`" at `+target.Addr()+`, queue \d: .*; loaded [\d.]+ MiB of 64 MiB$`, o.line(t))
	require.Empty(t, o.out)
}

func TestTargetHangsHalfWay(t *testing.T) {
	target := modelTarget(t, 64<<20, 0)
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Nth: 20, Do: nvmetest.Action{Drop: true}}}})
	begun := time.Now()
	o := shardload(t, at(target, "", "--memory", "4M", "--timeout", "1s")...)
	require.Less(t, time.Since(begun), 8*time.Second)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "timed out")
	require.Contains(t, o.line(t), " MiB of 64 MiB")
}

// A put that fails half-way leaves nothing that looks like a shard, and says so.
func TestPutFailsHalfWay(t *testing.T) {
	files := generated(t, "64M")
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(32 << 20)})
	succeeds(t, at(target, "put", "-y", "--nsid", "1", files[0])...)
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpWrite}, Nth: 8, Count: 1, Do: nvmetest.Action{Status: nvme.StatusWriteFault.Status()},
	}}})
	o := shardload(t, at(target, "put", "-y", "--nsid", "1", files[1])...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "write of ")
	require.Contains(t, o.line(t), "; namespace 1 holds no shard now: put it again")

	o = shardload(t, at(target, "")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "not a shard")
}

func TestReadError(t *testing.T) {
	target := modelTarget(t, 8<<20, 0)
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue: nvmetest.IOQueue, Nth: 8, Do: nvmetest.Action{Status: nvme.StatusUnrecoveredReadError.Status()},
	}}})
	o := shardload(t, at(target, "")...)
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.line(t), "nrecovered")
}

func TestDiscover(t *testing.T) {
	other, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: testNQN + "-other"}}})
	require.NoError(t, err)
	defer other.Close()
	target, err := nvmetest.Start(nvmetest.Config{
		Subsystems: []nvmetest.Subsystem{{NQN: testNQN}}, Referrals: []nvmetest.Referral{{Addr: other.Addr()}},
	})
	require.NoError(t, err)
	defer target.Close()
	host, port, _ := net.SplitHostPort(target.Addr())
	args := []string{"discover", "-a", host, "-s", port}

	o := succeeds(t, args...)
	require.Contains(t, o.out, testNQN+"\n")
	require.Contains(t, o.out, "referral")
	require.NotContains(t, o.out, testNQN+"-other")
	require.Contains(t, succeeds(t, append(args, "--follow")...).out, testNQN+"-other")

	o = succeeds(t, append(args, "--json")...)
	log := decode[struct {
		Address string   `json:"address"`
		GENCTR  uint64   `json:"genctr"`
		Records []record `json:"records"`
	}](t, o.out)
	require.Equal(t, target.Addr(), log.Address)
	require.NotZero(t, log.GENCTR)
	var found bool
	for _, r := range log.Records {
		if r.SubNQN == testNQN {
			found = true
			require.Equal(t, record{
				TRTYPE: "tcp", ADRFAM: "ipv4", SUBTYPE: r.SUBTYPE, TREQ: r.TREQ, PORTID: 1, CNTLID: 0xFFFF, TRSVCID: port,
				SubNQN: testNQN, TRADDR: host, EFLAGS: "none", SECTYPE: "none",
			}, r)
		}
	}
	require.True(t, found)

	require.NoError(t, other.Close())
	o = shardload(t, append(args, "--follow")...) // the rest is printed all the same
	require.Equal(t, exitFailed, o.status)
	require.Contains(t, o.out, testNQN+"\n")
	require.Contains(t, o.line(t), other.Addr())
}

func TestSumsList(t *testing.T) {
	file := filepath.Join(t.TempDir(), "sums")
	sum := strings.Repeat("0f", 32)
	for list, want := range map[string]string{
		"":                               "is empty",
		sum + " x\n":                     "line 1 is not a SHA-256 in hex",
		sum + "  x\n" + sum[2:] + "  y":  "line 2 is not a SHA-256 in hex",
		sum + "  x\n" + sum + "  x\n":    "line 2: tensor x is in the list twice",
		strings.Repeat("x", maxSumsLine): "line 1: ",
	} {
		require.NoError(t, os.WriteFile(file, []byte(list), 0o600))
		_, err := readSums(file)
		require.ErrorContains(t, err, want)
	}
	require.NoError(t, os.WriteFile(file, fmt.Appendf(nil, "%s  a b\n%s  c\n", strings.ToUpper(sum), sum), 0o600))
	ref, err := readSums(file)
	require.NoError(t, err)
	require.Equal(t, map[string]string{"a b": sum, "c": sum}, ref.sums)
}

// TestSilentTargets meets targets that stop to answer at one point or another: nothing outlasts the timeout.
func TestSilentTargets(t *testing.T) {
	admin := func(f func(nvmetest.Command) bool) nvmetest.Faults {
		return nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action { return nvmetest.Action{Drop: c.QID == 0 && f(c)} }}
	}
	file := generated(t, "1M")[0]
	for name, faults := range map[string]nvmetest.Faults{
		"no ICResp":       {Conn: nvmetest.ConnFaults{NoICResp: true}},
		"never ready":     {Controller: nvmetest.ControllerFaults{NeverReady: true}},
		"no answers":      admin(func(nvmetest.Command) bool { return true }),
		"no Identify":     admin(func(c nvmetest.Command) bool { return c.SQE.Opcode == nvme.OpIdentify }),
		"no Get Log Page": admin(func(c nvmetest.Command) bool { return c.SQE.Opcode == nvme.OpGetLogPage }),
		"no I/O":          {Rules: []nvmetest.Rule{{Queue: nvmetest.IOQueue, Opcodes: []nvme.Opcode{nvme.OpRead, nvme.OpWrite, nvme.OpFlush}, Do: nvmetest.Action{Drop: true}}}},
		"stalls":          {Conn: nvmetest.ConnFaults{StallAfterSent: 700}},
		"no shutdown":     {Controller: nvmetest.ControllerFaults{NeverShutdown: true}},
	} {
		t.Run(name, func(t *testing.T) {
			target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{Backend: nvmetest.Memory(1 << 20)})
			succeeds(t, at(target, "put", "-y", "--nsid", "1", file)...)
			target.SetFaults(faults)
			host, port, _ := net.SplitHostPort(target.Addr())
			for _, args := range [][]string{
				at(target, ""), at(target, "put", "-y", "--nsid", "1", file), {"discover", "-a", host, "-s", port},
			} {
				begun := time.Now()
				limit := "300ms"
				if name == "no shutdown" {
					limit = "2s" // in which all else is answered
				}
				o := shardload(t, append(args, "--timeout", limit)...)
				require.Less(t, time.Since(begun), 4*time.Second, "%q", args)
				want := exitFailed
				switch {
				case name == "no shutdown":
					want = exitOK
				case name == "no I/O" && args[0] == "discover", name == "no Get Log Page" && args[0] != "discover":
					continue
				}
				require.Equal(t, want, o.status, "%q: %s", args, o.errors)
				t.Log(o.errors)
				if want == exitFailed {
					require.Contains(t, o.errors, "300ms", "%q", args)
				}
			}
		})
	}
}

func TestTooManyOpenFiles(t *testing.T) {
	err := &partial{verb: "loaded", err: fmt.Errorf("connecting: %w", syscall.EMFILE)}
	require.Contains(t, explain(err), "; let this process open more files: ulimit -n 4096")
	require.NotContains(t, explain(syscall.ENOENT), "ulimit")
}
