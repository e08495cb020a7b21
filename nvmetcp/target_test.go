package nvmetcp

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTargetAddr(t *testing.T) {
	for in, want := range map[string]string{
		"192.0.2.1":              "192.0.2.1:4420",
		"192.0.2.1:8009":         "192.0.2.1:8009",
		"storage.example":        "storage.example:4420",
		"storage.example:1":      "storage.example:1",
		"2001:db8::1":            "[2001:db8::1]:4420",
		"[2001:db8::1]":          "[2001:db8::1]:4420",
		"[2001:db8::1]:5":        "[2001:db8::1]:5",
		"fe80::1%eth0":           "[fe80::1%eth0]:4420",
		"[fe80::1%eth0]:8009":    "[fe80::1%eth0]:8009",
		"":                       "",
		":4420":                  "",
		"host:0":                 "",
		"host:70000":             "",
		"host:http":              "",
		"1:2:3":                  "",
		"[::1]x":                 "",
		"[::1]]":                 "",
		"tcp://192.0.2.1:4420/x": "",
	} {
		got, err := withPort(in, DefaultPort)
		if want == "" {
			require.ErrorContains(t, err, "Target.Addr", in)
			continue
		}
		require.NoError(t, err, in)
		require.Equal(t, want, got)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	for name, o := range map[string]Options{
		"NumIOQueues": {NumIOQueues: -1},
		"QueueSize":   {QueueSize: 1},
		"MaxIO":       {MaxIO: 100},
		"KeepAlive":   {KeepAlive: 1},
		"DialTimeout": {DialTimeout: -1},
	} {
		_, err := o.resolve()
		require.ErrorContains(t, err, "Options."+name)
	}
	o, err := (*Options)(nil).resolve()
	require.NoError(t, err)
	require.Equal(t, DefaultMaxIO, o.MaxIO)
	require.Equal(t, DefaultKeepAlive, o.KeepAlive)
	require.NotNil(t, o.Logger)
}
