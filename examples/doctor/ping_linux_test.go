package main

import (
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp"
)

func TestPingIsAsLargeAsTheInterface(t *testing.T) {
	m := madeUp(t, wellServer(), 16).withNICs(true)
	over := func(name, dst string) int {
		return m.pingBytes(&way{Near: topo.Near{Interface: name}, dst: netip.MustParseAddr(dst)})
	}
	require.Equal(t, 9000-28, over("eth0", "192.0.2.10"))
	require.Equal(t, 9000-48, over("eth0", "2001:db8::10"))
	require.Equal(t, 1500-28, over("eth1", "192.0.2.10"))
	require.Contains(t, mendConnect(nvmetcp.ErrTimeout, &flags{traddr: "192.0.2.10"}, 8972), "ping -M do -s 8972 192.0.2.10")
}
