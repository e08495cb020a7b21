package topo

import (
	"net"
	"net/netip"
)

// RouteInterface is the name of the network interface by which packets from src (which may be the zero Addr) to dst leave.
func RouteInterface(src, dst netip.Addr) (string, error) { return routeInterface(src, dst) }

// NearInterface is what NearRoute says once it knows the interface; sys is where sysfs is mounted.
func NearInterface(sys string, allowed []int, ifi *net.Interface) Near {
	return near(sys, allowed, ifi)
}
