package topo

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// NearRoute chooses of the allowed CPUs those on the NUMA node of the interface by which packets from src to dst
// leave, or of the interface ifname if that is not "". It chooses all of them when no node is known, and when none of
// them is on the node.
func NearRoute(allowed []int, ifname string, src, dst netip.Addr) Near {
	if ifname == "" {
		var err error
		if ifname, err = routeInterface(src, dst); err != nil {
			return anywhere(sysfs, allowed, "", -1, err.Error())
		}
	}
	ifi, err := net.InterfaceByName(ifname)
	if err != nil {
		return anywhere(sysfs, allowed, ifname, -1, fmt.Sprintf("interface %s: %v", ifname, err))
	}
	return near(sysfs, allowed, ifi)
}

func near(sys string, allowed []int, ifi *net.Interface) Near {
	if ifi.Flags&net.FlagLoopback != 0 {
		return anywhere(sys, allowed, ifi.Name, -1, "loopback belongs to no NUMA node")
	}
	if err := sameNamespace(sys, ifi); err != nil {
		return anywhere(sys, allowed, ifi.Name, -1, err.Error())
	}
	node, err := nodeOfNetdev(sys, ifi.Name)
	if err != nil {
		return anywhere(sys, allowed, ifi.Name, -1, err.Error())
	}
	if node < 0 {
		return anywhere(sys, allowed, ifi.Name, -1, fmt.Sprintf("interface %s belongs to no NUMA node: it is virtual, or the machine has only one", ifi.Name))
	}
	var cpus []int
	for _, cpu := range allowed {
		if nodeOfCPU(sys, cpu) == node {
			cpus = append(cpus, cpu)
		}
	}
	if len(cpus) == 0 {
		return anywhere(sys, allowed, ifi.Name, node, fmt.Sprintf("interface %s is on NUMA node %d, of which the process may use no CPU", ifi.Name, node))
	}
	return Near{ifi.Name, node, coresFirst(sys, cpus), fmt.Sprintf("interface %s is on NUMA node %d", ifi.Name, node)}
}

func anywhere(sys string, allowed []int, ifname string, node int, why string) Near {
	return Near{ifname, node, coresFirst(sys, allowed), why + "; so any CPU of the process"}
}

// sameNamespace is an error unless sysfs shows the interface. A sysfs shows the interfaces of the network namespace
// that it was mounted in, where another one may have the same name.
func sameNamespace(sys string, ifi *net.Interface) error {
	dir := filepath.Join(sys, "class/net", ifi.Name)
	index, err := os.ReadFile(filepath.Join(dir, "ifindex"))
	if err != nil {
		return fmt.Errorf("sysfs does not have interface %s, as in a network namespace without a sysfs of its own: %w", ifi.Name, err)
	}
	address, err := os.ReadFile(filepath.Join(dir, "address"))
	if err != nil {
		return fmt.Errorf("interface %s: %w", ifi.Name, err)
	}
	mac := ifi.HardwareAddr.String()
	if strings.TrimSpace(string(index)) != strconv.Itoa(ifi.Index) || mac != "" && strings.TrimSpace(string(address)) != mac {
		return fmt.Errorf("sysfs is about another network namespace's %s: this one has no sysfs of its own", ifi.Name)
	}
	return nil
}

// coresFirst puts one CPU of each core before the other hardware threads of the cores.
func coresFirst(sys string, cpus []int) []int {
	var first, siblings []int
	taken := map[int]bool{}
	for _, cpu := range cpus {
		if taken[cpu] {
			siblings = append(siblings, cpu)
			continue
		}
		first = append(first, cpu)
		text, _ := os.ReadFile(filepath.Join(sys, "devices/system/cpu", "cpu"+strconv.Itoa(cpu), "topology/thread_siblings_list"))
		core, _ := parseList(strings.TrimSpace(string(text))) // where it is not known each CPU counts as a core
		for _, c := range core {
			taken[c] = true
		}
	}
	return append(first, siblings...)
}
