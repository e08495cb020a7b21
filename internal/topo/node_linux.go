package topo

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const sysfs = "/sys"

// NodeOfCPU is the NUMA node of a CPU, or -1 where the kernel names none.
func NodeOfCPU(cpu int) int { return nodeOfCPU(sysfs, cpu) }

// NodeOfNetdev is the NUMA node of a network device, or -1 where the kernel names none (virtual machines, loopback).
// A device on top of others (VLAN, bond, bridge) is on their node, if they agree.
func NodeOfNetdev(ifname string) (int, error) { return nodeOfNetdev(sysfs, ifname) }

func nodeOfCPU(sys string, cpu int) int {
	links, _ := filepath.Glob(filepath.Join(sys, "devices/system/cpu", "cpu"+strconv.Itoa(cpu), "node[0-9]*"))
	for _, link := range links {
		if node, err := strconv.Atoi(strings.TrimPrefix(filepath.Base(link), "node")); err == nil {
			return node
		}
	}
	return -1
}

func nodeOfNetdev(sys, ifname string) (int, error) {
	if ifname == "" || ifname == "." || ifname == ".." || strings.ContainsRune(ifname, '/') {
		return -1, fmt.Errorf("topo: %q is not the name of a network device", ifname)
	}
	dir := filepath.Join(sys, "class/net", ifname)
	if _, err := os.Stat(dir); err != nil {
		return -1, fmt.Errorf("topo: network device %q: %w", ifname, err)
	}
	if device, err := filepath.EvalSymlinks(filepath.Join(dir, "device")); err == nil {
		return nodeOfDevice(sys, device)
	}
	lower, _ := filepath.Glob(filepath.Join(dir, "lower_*"))
	common := -1
	for i, link := range lower {
		node, err := nodeOfNetdev(sys, strings.TrimPrefix(filepath.Base(link), "lower_"))
		if err != nil {
			return -1, err
		}
		if i > 0 && node != common {
			return -1, nil
		}
		common = node
	}
	return common, nil
}

// nodeOfDevice looks for the file numa_node, which a device on a bus of its own (virtio) has only above it.
func nodeOfDevice(sys, device string) (int, error) {
	root, err := filepath.EvalSymlinks(sys)
	if err != nil {
		return -1, fmt.Errorf("topo: %w", err)
	}
	for ; strings.HasPrefix(device, root+"/"); device = filepath.Dir(device) {
		text, err := os.ReadFile(filepath.Join(device, "numa_node"))
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return -1, fmt.Errorf("topo: %w", err)
		}
		node, err := strconv.Atoi(strings.TrimSpace(string(text)))
		if err != nil || node < -1 {
			return -1, fmt.Errorf("topo: %s: %q is no NUMA node", filepath.Join(device, "numa_node"), text)
		}
		return node, nil
	}
	return -1, nil
}
