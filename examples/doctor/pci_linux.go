package main

import (
	"path"
	"regexp"
	"strings"
)

var pciName = regexp.MustCompile(`^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$`)

// pciOf is the directory of the PCI device that a link in sysfs leads to, or of the one above, which a virtio device has;
// "" if there is none.
func (t tree) pciOf(link string) string {
	dir := t.resolved(link)
	for ; dir != "" && dir != "." && dir != "/"; dir = path.Dir(dir) {
		if pciName.MatchString(path.Base(dir)) {
			return dir
		}
	}
	return ""
}

// pciAddress is the address of the device in a directory of sysfs.
func pciAddress(dir string) string { return path.Base(dir) }

// pciRoot is the root port above the device in a directory of sysfs, and the host bridge; "" where they are not known.
func pciRoot(dir string) (port, bridge string) {
	parts := strings.Split(dir, "/")
	for i, p := range parts {
		if !strings.HasPrefix(p, "pci") {
			continue
		}
		bridge = p
		if i+2 < len(parts) { // else the device is on the root bus itself
			port = parts[i+1]
		}
		break
	}
	return port, bridge
}
