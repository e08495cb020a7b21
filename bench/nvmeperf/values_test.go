package main

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestByteSize(t *testing.T) {
	for s, want := range map[string]int{"4096": 4096, "4k": 4096, "4K": 4096, "4KiB": 4096, "128k": 128 << 10, "1M": 1 << 20, "1g": 1 << 30} {
		var b byteSize
		require.NoError(t, b.Set(s), s)
		require.Equal(t, want, int(b), s)
	}
	for _, s := range []string{"", "k", "0", "-1", "4x", "2G", "99999999999999999999"} {
		require.Error(t, new(byteSize).Set(s), s)
	}
	require.Equal(t, "4 KiB", sizeText(4096))
	require.Equal(t, "1 MiB", sizeText(1<<20))
	require.Equal(t, "513 B", sizeText(513))
}

func TestSeconds(t *testing.T) {
	for s, want := range map[string]time.Duration{"10": 10 * time.Second, "0.25": 250 * time.Millisecond, "200ms": 200 * time.Millisecond, "0": 0} {
		var d seconds
		require.NoError(t, d.Set(s), s)
		require.Equal(t, want, time.Duration(d), s)
	}
	for _, s := range []string{"", "-1", "x", "1e300"} {
		require.Error(t, new(seconds).Set(s), s)
	}
}

func TestSpin(t *testing.T) {
	for s, want := range map[string]time.Duration{"0": -1, "0s": -1, "20us": 20 * time.Microsecond, "always": spinAlways} {
		var d spin
		require.NoError(t, d.Set(s), s)
		require.Equal(t, want, time.Duration(d), s)
	}
	require.Error(t, new(spin).Set("20"))
}

func TestCPUs(t *testing.T) {
	for s, want := range map[string][]int{
		"1": {1}, "1,2-4": {1, 2, 3, 4}, "[0,2]": {0, 2}, "0x1": {0}, "0xE": {1, 2, 3}, "0x100000000000000001": {0, 68},
	} {
		var l cpuList
		require.NoError(t, l.Set(s), s)
		require.Equal(t, cpuList(want), l, s)
	}
	for _, s := range []string{"", "0x", "0x0", "0xg", "a", "3-1", "-1", "1,1", "9999"} {
		require.Error(t, new(cpuList).Set(s), s)
	}
}

func TestTransportID(t *testing.T) {
	id, err := parseTransportID("trtype:TCP adrfam:IPv4  traddr:192.0.2.1\ttrsvcid:4420 subnqn:nqn.2016-06.io.spdk:cnode1 ns:2")
	require.NoError(t, err)
	require.Equal(t, transportID{traddr: "192.0.2.1", trsvcid: "4420", subnqn: "nqn.2016-06.io.spdk:cnode1", ns: 2}, id)
	require.Equal(t, "trtype:TCP adrfam:IPv4 traddr:192.0.2.1 trsvcid:4420 subnqn:nqn.2016-06.io.spdk:cnode1", id.String())
	target, err := id.target()
	require.NoError(t, err)
	require.Equal(t, "192.0.2.1:4420", target.Addr)

	id, err = parseTransportID("TRTYPE=tcp TRADDR=fd00::1 trsvcid=1 subnqn=nqn.2016-06.io.spdk:cnode1 hostnqn=nqn.2016-06.io.spdk:host hostaddr:fd00::2")
	require.NoError(t, err)
	require.Contains(t, id.String(), "adrfam:IPv6")
	target, err = id.target()
	require.NoError(t, err)
	require.Equal(t, "[fd00::1]:1", target.Addr)
	require.Equal(t, "fd00::2", target.HostTraddr)

	for _, s := range []string{"", "trtype:TCP", "trtype:RDMA traddr:1", "traddr:", "traddr:1 traddr:2", "traddr:1 ns:0", "traddr:1 color:red", "adrfam:IB traddr:1"} {
		_, err := parseTransportID(s)
		require.Error(t, err, s)
	}
}
