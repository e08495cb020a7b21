package main

import (
	"debug/elf"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

const pciDir = "sys/bus/pci/devices"

// vendor is a maker of GPUs, and what its driver comes with.
type vendor struct {
	id, name  string
	env       string   // names the library instead
	libraries []string // names that staging's devices try
	module    string   // of the kernel
	install   string   // what to run if there is no library
	devices   []string // patterns of device files that the library opens
	expose    string   // what to run if they are not there
	permit    string   // what to run if they may not be used
}

var vendors = []vendor{
	{
		id: "0x10de", name: "NVIDIA", env: "NVSTAGE_CUDA_LIBRARY", libraries: []string{"libcuda.so.1", "libcuda.so"}, module: "nvidia",
		install: "apt install libcuda1   # Debian's name; in a container: docker run --gpus all",
		devices: []string{"dev/nvidiactl", "dev/nvidia[0-9]*", "dev/nvidia-uvm"},
		expose:  "nvidia-modprobe -c 0 -u   # in a container: docker run --gpus all",
		permit:  "chmod a+rw /dev/nvidia*   # or NVreg_DeviceFileMode=0666",
	},
	{
		id: "0x1002", name: "AMD", env: "NVSTAGE_ROCM_LIBRARY", module: "amdgpu",
		libraries: []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so"},
		install:   "apt install libamdhip64-5   # Debian's name; AMD's own is hip-runtime-amd",
		devices:   []string{"dev/kfd", "dev/dri/renderD*"},
		expose:    "modprobe amdgpu   # in a container: docker run --device=/dev/kfd --device=/dev/dri",
		permit:    "usermod -aG render,video $USER   # and log in again",
	},
}

// isGPU tells by PCI's class: VGA, 3D and other display controllers, and AMD's processing accelerators.
func isGPU(class, vendor string) bool {
	return strings.HasPrefix(class, "0x03") || vendor == "0x1002" && strings.HasPrefix(class, "0x12")
}

func (m *machine) gpus(r *report) {
	t := topic{r: r, name: "GPUs"}
	r.GPUs, r.GPULibraries = []gpuFacts{}, []libraryFacts{}
	for _, address := range m.dir(pciDir) {
		id := m.line(pciDir, address, "vendor")
		i := slices.IndexFunc(vendors, func(v vendor) bool { return v.id == id })
		if i < 0 || !isGPU(m.line(pciDir, address, "class"), id) {
			continue
		}
		g := m.gpu(address, vendors[i].name)
		r.GPUs = append(r.GPUs, g)
		t := t
		t.about = address
		t.gpu(&g, &vendors[i])
	}
	for i := range vendors {
		v := &vendors[i]
		l := libraryFacts{Vendor: v.name, Library: m.library(v), Devices: m.devices(v)}
		has := slices.ContainsFunc(r.GPUs, func(g gpuFacts) bool { return g.Vendor == v.name })
		if !has && l.Library == "" {
			continue
		}
		r.GPULibraries = append(r.GPULibraries, l)
		t := t
		t.about = v.name
		m.gpuLibrary(t, v, &l, has)
	}
	if len(r.GPUs) == 0 {
		if m.exists(pciDir) {
			t.note("none", "no GPU of NVIDIA or AMD on PCI: tensors stay in host memory")
		} else {
			t.note("none", "GPUs are not known: sysfs does not show PCI")
		}
	}
}

func (m *machine) gpu(address, vendor string) gpuFacts {
	dir := pciDir + "/" + address
	g := gpuFacts{
		PCI: address, Vendor: vendor, Device: m.line(dir, "device"), Node: int(max(-1, min(m.number(-1, dir, "numa_node"), 1<<16))),
		Width: m.lanes(dir, "current_link_width"), MaxWidth: m.lanes(dir, "max_link_width"),
		Speed: m.line(dir, "current_link_speed"), MaxSpeed: m.line(dir, "max_link_speed"), Driver: m.linkName(dir, "driver"),
	}
	at := m.resolved(dir)
	g.RootPort, g.HostBridge = pciRoot(at)
	if g.RootPort != "" {
		g.SlotWidth, g.SlotSpeed = m.lanes(path.Dir(at), "max_link_width"), m.line(path.Dir(at), "max_link_speed")
	}
	return g
}

// lanes is a link's width, 0 if it is not known.
func (m *machine) lanes(dir, file string) int {
	n := m.number(0, dir, file)
	if n < 1 || n > 32 { // an unknown one is 0 or 255
		return 0
	}
	return int(n)
}

// transfers is the first number of a link's speed such as "16.0 GT/s PCIe", 0 if it is not known.
func transfers(speed string) float64 {
	n, _, _ := strings.Cut(speed, " ")
	v, err := strconv.ParseFloat(n, 64)
	if err != nil || v < 0 {
		return 0
	}
	return v
}

func (t topic) gpu(g *gpuFacts, v *vendor) {
	text := fmt.Sprintf("%s %s at PCI %s", g.Vendor, g.Device, g.PCI)
	if g.RootPort != "" {
		text += ", root port " + g.RootPort
	}
	if g.HostBridge != "" {
		text += ", host bridge " + g.HostBridge
	}
	if g.Node >= 0 {
		text += ", node " + strconv.Itoa(g.Node)
	} else if len(t.r.Nodes) > 1 {
		text += ", node not known"
	}
	t.note("gpu", "%s", text)
	t.link(g)
	switch {
	case g.Driver == v.module:
		t.good("driver", "%s: kernel driver %s", g.PCI, g.Driver)
	case g.Driver == "vfio-pci":
		t.note("driver", "%s: given to a virtual machine (vfio-pci)", g.PCI)
	case g.Driver == "":
		t.bad("driver", "modprobe "+v.module, "%s: no kernel driver", g.PCI)
	default:
		t.bad("driver", fmt.Sprintf("modprobe -r %s; modprobe %s", g.Driver, v.module), "%s: kernel driver %s, which %s does not work with", g.PCI, g.Driver, v.libraries[0])
	}
}

// link says whether the PCIe link is what card and slot can do.
func (t topic) link(g *gpuFacts) {
	fastest := g.MaxSpeed
	if s := transfers(g.SlotSpeed); s > 0 && s < transfers(fastest) {
		fastest = g.SlotSpeed
	}
	look := "lspci -vv -s " + g.PCI
	switch {
	case g.Width == 0 || g.MaxWidth == 0:
		t.note("link", "%s: PCIe link not known", g.PCI)
	case g.SlotWidth > 0 && g.SlotWidth < g.MaxWidth:
		t.bad("link", look+"   # LnkCap; put the card into a slot with all lanes", "%s: the slot has %d of the card's %d lanes: copies run at that rate", g.PCI, g.SlotWidth, g.MaxWidth)
	case g.Width < g.MaxWidth:
		t.bad("link", look+"   # LnkSta; reseat the card", "%s: the PCIe link has %d of %d lanes: copies run at that rate", g.PCI, g.Width, g.MaxWidth)
	case transfers(g.Speed) < transfers(fastest):
		t.note("link", "%s: PCIe link x%d at %s, of %s: idle GPUs slow it down; look again under load", g.PCI, g.Width, g.Speed, fastest)
	default:
		t.good("link", "%s: PCIe link x%d at %s, the most that card and slot can do", g.PCI, g.Width, g.Speed)
	}
}

func (m *machine) gpuLibrary(t topic, v *vendor, l *libraryFacts, has bool) {
	switch {
	case !has && m.exists(pciDir):
		t.note("library", "%s is there, a GPU for it is not", l.Library)
		return
	case !has:
		t.note("library", "%s is there, with device files: %s", l.Library, orNone(l.Devices))
		return
	case l.Library == "":
		t.bad("library", v.install, "%s is not where libraries are looked for: the GPU cannot be used", v.libraries[0])
	default:
		t.good("library", "%s", l.Library)
	}
	if len(l.Devices) < len(v.devices) {
		t.bad("devices", v.expose, "device files are missing: have %s, want %s", orNone(l.Devices), "/"+strings.Join(v.devices, " /"))
		return
	}
	for _, d := range l.Devices {
		if err := unix.Access(m.path(d), unix.R_OK|unix.W_OK); err != nil {
			t.bad("devices", v.permit, "%s may not be used: %v", d, err)
			return
		}
	}
	t.good("devices", "device files %s", strings.Join(l.Devices, " "))
}

// devices lists one device file for each of the patterns that has one.
func (m *machine) devices(v *vendor) []string {
	found := []string{}
	for _, pattern := range v.devices {
		if names, _ := filepath.Glob(m.path(pattern)); len(names) > 0 {
			rel, _ := filepath.Rel(m.root, names[0])
			found = append(found, "/"+rel)
		}
	}
	return found
}

// library looks for a vendor's shared library where the dynamic linker does, by and large; "" if there is none for this
// architecture.
func (m *machine) library(v *vendor) string {
	if file := m.env(v.env); strings.Contains(file, "/") {
		if m.isLibrary(file) {
			return file
		}
		return ""
	}
	dirs := m.libraryDirs()
	for _, name := range v.libraries {
		for _, dir := range dirs {
			if file := filepath.Join("/", dir, name); m.isLibrary(file) {
				return file
			}
		}
	}
	return ""
}

// multiarch is Debian's name of a system, by Go's.
var multiarch = map[string]string{"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}

func (m *machine) libraryDirs() []string {
	dirs := filepath.SplitList(m.env("LD_LIBRARY_PATH"))
	if triplet := multiarch[m.arch]; triplet != "" {
		dirs = append(dirs, "/lib/"+triplet, "/usr/lib/"+triplet)
	}
	dirs = append(dirs, "/lib64", "/usr/lib64", "/lib", "/usr/lib", "/usr/local/lib")
	for _, conf := range m.dir("etc/ld.so.conf.d") {
		text, err := m.text("etc/ld.so.conf.d", conf)
		if err != nil {
			continue
		}
		for l := range strings.Lines(text) {
			if l = strings.TrimSpace(l); path.IsAbs(l) {
				dirs = append(dirs, l)
			}
		}
	}
	dirs = append(dirs, "/usr/local/nvidia/lib64", "/usr/local/cuda/compat", "/usr/lib/wsl/lib", "/opt/rocm/lib")
	return dirs
}

// isLibrary tells whether a file begins as a shared library of this architecture does.
func (m *machine) isLibrary(file string) bool {
	head, _, err := m.head(20, file)
	if err != nil || len(head) < 20 || head[:4] != elf.ELFMAG || elf.Class(head[4]) != elf.ELFCLASS64 {
		return false
	}
	machines := map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}
	want, known := machines[m.arch]
	return !known || elf.Machine(head[18])|elf.Machine(head[19])<<8 == want
}
