package topo

import (
	"net"
	"net/netip"
	"path/filepath"
)

// RouteInterface is the name of the network interface by which packets from src (which may be the zero Addr) to dst leave.
func RouteInterface(src, dst netip.Addr) (string, error) { return routeInterface(src, dst) }

// NearInterface is what NearRoute says once it knows the interface; sys is where sysfs is mounted.
func NearInterface(sys string, allowed []int, ifi *net.Interface) Near {
	return near(sys, allowed, ifi)
}

// AvailableBelow is what Available says of the /proc and /sys below a root directory.
func AvailableBelow(root string) (int64, error) {
	return available(filepath.Join(root, "proc/meminfo"), filepath.Join(root, "proc/self/cgroup"), filepath.Join(root, "sys/fs/cgroup"))
}
