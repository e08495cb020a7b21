package gpu

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// parsePCI brings an address into the form that sysfs uses. Drivers and tools write the domain with 4 digits, with 8, or not at all, and hexadecimal
// digits in either case.
func parsePCI(s string) (string, error) {
	bad := fmt.Errorf("PCI address %q: want one such as 0000:c1:00.0", s)
	rest, function, ok := strings.Cut(s, ".")
	if !ok {
		return "", bad
	}
	parts := strings.Split(rest, ":")
	if len(parts) == 2 {
		parts = append([]string{"0"}, parts...)
	}
	if len(parts) != 3 {
		return "", bad
	}
	var n [4]uint64
	for i, bits := range []int{32, 8, 5, 3} {
		var err error
		if n[i], err = strconv.ParseUint(append(parts, function)[i], 16, bits); err != nil {
			return "", bad
		}
	}
	return fmt.Sprintf("%04x:%02x:%02x.%x", n[0], n[1], n[2], n[3]), nil
}

// node is the NUMA node of a PCI device, -1 when it is not known.
func node(sys, pci string) int {
	text, err := os.ReadFile(filepath.Join(sys, "bus/pci/devices", pci, "numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil || n < 0 {
		return -1
	}
	return n
}
