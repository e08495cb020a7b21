package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
)

func TestTexts(t *testing.T) {
	for n, want := range map[int64]string{
		0: "0 B", 1023: "1023 B", 1024: "1 KiB", 1536: "1.5 KiB", 1<<20 - 1: "1 MiB", 512 << 20: "512 MiB", 1 << 30: "1 GiB", 5 << 50: "5120 TiB",
	} {
		require.Equal(t, want, bytesText(n))
	}
	for d, want := range map[time.Duration]string{
		0: "0s", 12 * time.Nanosecond: "12ns", 1234 * time.Nanosecond: "1.23µs", 123456 * time.Nanosecond: "123.5µs",
		12345 * time.Microsecond: "12.35ms", 1234567 * time.Microsecond: "1.23s", 2*time.Minute + 1234*time.Millisecond: "2m1.2s",
	} {
		require.Equal(t, want, durationText(d))
	}
	for v, want := range map[float64]string{0: "0", 0.02345: "0.0234", 1.2: "1.2", 12.345: "12.3", 99.96: "100", 1234.5: "1234"} {
		require.Equal(t, want, digits3(v))
	}
	require.Equal(t, "model.norm.weight", nameText("model.norm.weight"))
	require.Equal(t, "größe", nameText("größe"))
	require.Equal(t, `"a\x1b[31mb"`, nameText("a\x1b[31mb"))
	require.Equal(t, `"a\nb"`, nameText("a\nb"))
	require.Equal(t, `"a\xff"`, nameText("a\xff"))
}

func TestByteSize(t *testing.T) {
	for s, want := range map[string]int64{"1": 1, "4096": 4096, "64M": 64 << 20, "64m": 64 << 20, "64MiB": 64 << 20, "2K": 2048, "3G": 3 << 30, "1TB": 1 << 40} {
		var b byteSize
		require.NoError(t, b.Set(s), s)
		require.EqualValues(t, want, b, s)
		var again byteSize
		require.NoError(t, again.Set(b.String()))
		require.Equal(t, b, again)
	}
	for _, s := range []string{"", "M", "-1", "0", "1.5G", "1X", "9999999T", "1KK"} {
		require.Error(t, new(byteSize).Set(s), s)
	}
}

func TestSeconds(t *testing.T) {
	for s, want := range map[string]time.Duration{"30": 30 * time.Second, "30s": 30 * time.Second, "500ms": 500 * time.Millisecond, "2m": 2 * time.Minute} {
		var d seconds
		require.NoError(t, d.Set(s), s)
		require.Equal(t, want, time.Duration(d), s)
	}
	for _, s := range []string{"", "0", "-1", "-1s", "1x", "99999999999"} {
		require.Error(t, new(seconds).Set(s), s)
	}
}

func TestNSIDList(t *testing.T) {
	for s, want := range map[string]nsidList{"1": {1}, "1,2,4-6": {1, 2, 4, 5, 6}, "7,1": {7, 1}, "3-3": {3}, "4294967294": {4294967294}} {
		var l nsidList
		require.NoError(t, l.Set(s), s)
		require.Equal(t, want, l, s)
	}
	for _, s := range []string{"", "0", "-1", "1-", "-", "1,", "1,,2", "a", "1 2", "5-4", "1,1", "4294967295", "4294967296", "1-5000", "0-4"} {
		require.Error(t, new(nsidList).Set(s), s)
	}
}

func TestPinFlag(t *testing.T) {
	for s, want := range map[string]pin{
		"off": {}, "local": {how: nvmetcp.PinLocal}, "0": {cpus: []int{0}}, "0,2-3": {cpus: []int{0, 2, 3}}, "8191,7": {cpus: []int{8191, 7}},
	} {
		p := pin{how: nvmetcp.PinLocal, cpus: []int{1}}
		require.NoError(t, p.Set(s), s)
		require.Equal(t, want, p)
	}
	for _, s := range []string{"", "near", "0,", "-1", "3-2", "8192", "0-99999999999", "1,0-1", "0 1"} {
		require.Error(t, new(pin).Set(s), s)
	}
	for want, p := range map[string]pin{"off": {}, "local": {how: nvmetcp.PinLocal}, "0,2,3": {cpus: []int{0, 2, 3}}} {
		require.Equal(t, want, p.String())
	}
}

func TestCount(t *testing.T) {
	require.Equal(t, "1 shard, 0 shards", count(1, "shard")+", "+count(0, "shard"))
}
