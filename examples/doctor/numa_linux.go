package main

import (
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/internal/topo"
)

const nodeDir = "sys/devices/system/node"

func (m *machine) nodes(r *report) {
	t := topic{r: r, name: "NUMA"}
	r.Nodes = []nodeFacts{}
	const most = 1024 // that a kernel can be built for
	online := m.list(nodeDir, "online")
	for _, n := range online[:min(most, len(online))] {
		dir := nodeDir + "/node" + strconv.Itoa(n)
		node := nodeFacts{
			Node: n, CPUs: list(m.list(dir, "cpulist")), Distances: []int{}, HugePages: m.hugePages(dir + "/hugepages"),
			Memory: m.kib("Node "+strconv.Itoa(n)+" MemTotal", dir, "meminfo"), Free: m.kib("Node "+strconv.Itoa(n)+" MemFree", dir, "meminfo"),
		}
		for _, d := range m.numbers(dir, "distance") {
			node.Distances = append(node.Distances, int(d))
		}
		r.Nodes = append(r.Nodes, node)
	}
	switch len(r.Nodes) {
	case 0:
		t.note("nodes", "NUMA nodes are not known: sysfs does not say")
		return
	case 1:
		t.note("nodes", "one node: all memory is equally near")
		return
	}
	const shown = 16
	if more := len(r.Nodes) - shown; more > 0 {
		defer t.note("more", "and %s (--json has all)", count(more, "node"))
	}
	for _, n := range r.Nodes[:min(shown, len(r.Nodes))] {
		t := t
		t.about = "node " + strconv.Itoa(n.Node)
		cpus := "no CPUs"
		if len(n.CPUs) > 0 {
			cpus = "CPUs " + topo.FormatList(n.CPUs)
		}
		text := t.about + ": " + cpus + ", " + sizeText(n.Memory) + " of memory, " + sizeText(n.Free) + " free"
		if len(n.Distances) > 0 {
			d := make([]string, len(n.Distances))
			for i, v := range n.Distances {
				d[i] = strconv.Itoa(v)
			}
			text += ", distances " + strings.Join(d, " ")
		}
		if huge := reservedText(n.HugePages); huge != "" {
			text += ", huge pages: " + huge
		}
		if n.Memory == 0 && len(n.CPUs) > 0 {
			t.bad("nodes", "dmidecode -t memory   # then put memory into the slots of this socket", "%s: its CPUs always use another node's", text)
			continue
		}
		t.good("nodes", "%s", text)
	}
}

// sizeText is a number of bytes that may not be known.
func sizeText(n int64) string {
	if n < 0 {
		return "an unknown amount"
	}
	return bytesText(n)
}
