package main

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestUsage(t *testing.T) {
	const nqn = "nqn.2025-01.io.example:models"
	for _, c := range []struct{ args, want string }{
		{"check", `unexpected argument "check"`},
		{"--frobnicate", "unknown flag: --frobnicate"},
		{"-t rdma", "only tcp is supported"},
		{"-n " + nqn, "--nqn needs --traddr"},
		{"-s 4420", "--trsvcid needs --traddr"},
		{"-q " + nqn, "--hostnqn needs --traddr"},
		{"-a 127.0.0.1 -n nqn", "--nqn: NQN"},
		{"-a 127.0.0.1 -s 0", `--trsvcid "0": want a port`},
		{"-a 127.0.0.1 -w localhost", `--host-traddr "localhost": want an IP address`},
		{"-a 127.0.0.1 -I 1234", `--hostid "1234": want a UUID`},
		{"-i -1", "--nr-io-queues -1: want 1 to"},
		{"--memory 1K", "--memory 1K: want 1 MiB or more"},
		{"--memory x", "want a number of bytes like 64M or 1G"},
		{"--timeout 0s", "--timeout 0s: want more than 0"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, exitUsage, run(t.Context(), strings.Fields(c.args), &out, &errs, nil), c.args)
		require.Contains(t, errs.String(), c.want)
		require.Equal(t, 1, strings.Count(errs.String(), "\n"))
		require.Contains(t, errs.String(), "(see doctor --help)")
		require.Empty(t, out.String())
	}
}

func TestHelp(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), []string{"--help"}, &out, &errs, nil))
	require.Contains(t, out.String(), "Exit status: 0 good")
	require.Contains(t, out.String(), "--traddr")
	require.Empty(t, errs.String())
}

// A verdict comes out as an exit status.
func TestExitStatus(t *testing.T) {
	found := func(f ...finding) func(context.Context, *flags) (*report, error) {
		return func(context.Context, *flags) (*report, error) {
			r := &report{Findings: f}
			r.conclude()
			return r, nil
		}
	}
	ok, advice, blocks := finding{Mark: good}, finding{Mark: bad, Mend: "x"}, finding{Mark: bad, Mend: "x", Blocks: true}
	for _, c := range []struct {
		examine        func(context.Context, *flags) (*report, error)
		status, strict int
		says           string
	}{
		{found(ok), exitOK, exitOK, "✔ nvstage works here.\n"},
		{found(ok, finding{Mark: neutral}), exitOK, exitOK, "✔ nvstage works here.\n"},
		{found(ok, advice), exitOK, exitFailed, "✔ nvstage works here; 1 thing could be better.\n"},
		{found(blocks, ok, advice, advice), exitFailed, exitFailed, "✗ 1 thing keeps nvstage from working here, and 2 things could be better.\n"},
		{found(blocks, blocks), exitFailed, exitFailed, "✗ 2 things keep nvstage from working here.\n"},
	} {
		var out, errs bytes.Buffer
		require.Equal(t, c.status, run(t.Context(), nil, &out, &errs, c.examine))
		require.True(t, strings.HasSuffix(out.String(), "\n"+c.says), out.String())
		require.Equal(t, c.strict, run(t.Context(), []string{"--strict"}, &out, &errs, c.examine))
		require.Empty(t, errs.String())
	}
	var out, errs bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), nil, &out, &errs, func(context.Context, *flags) (*report, error) { return nil, errors.New("not Linux") }))
	require.Equal(t, "doctor: not Linux\n", errs.String())
	require.Empty(t, out.String())

	errs.Reset()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.Equal(t, exitInterrupted, run(ctx, nil, &out, &errs, found(ok)))
	require.Equal(t, "doctor: interrupted\n", errs.String())
}

func TestUnits(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1 << 10: "1 KiB", 1536: "1.5 KiB", 1 << 30: "1 GiB", 1 << 50: "1024 TiB"} {
		require.Equal(t, want, bytesText(n))
	}
	for s, want := range map[string]byteSize{"4096": 4096, "64M": 64 << 20, "64MiB": 64 << 20, "2g": 2 << 30} {
		var b byteSize
		require.NoError(t, b.Set(s))
		require.Equal(t, want, b)
	}
	for _, s := range []string{"", "0", "-1", "1X", "99999999T"} {
		require.Error(t, new(byteSize).Set(s), s)
	}
	require.Equal(t, "größe", nameText("größe"))
	require.Equal(t, `"a\x1b[31m"`, nameText("a\x1b[31m"))
	require.Less(t, len(lineText(strings.Repeat("ä", 5000))), 1010)
	require.Equal(t, "1 thing", count(1, "thing"))
	require.Equal(t, "0 things", count(0, "thing"))
}

func TestHostPort(t *testing.T) {
	for _, c := range [][4]string{
		{"192.0.2.10", "", "192.0.2.10", "4420"},
		{"192.0.2.10", "4421", "192.0.2.10", "4421"},
		{"192.0.2.10:4422", "", "192.0.2.10", "4422"},
		{"2001:db8::1", "", "2001:db8::1", "4420"},
		{"[2001:db8::1]", "5", "2001:db8::1", "5"},
		{"[2001:db8::1]:6", "", "2001:db8::1", "6"},
		{"storage.example", "", "storage.example", "4420"},
	} {
		host, port := (&flags{traddr: c[0], trsvcid: c[1]}).hostPort()
		require.Equal(t, c[2:], []string{host, port}, c)
	}
}
