package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/internal/topo"
)

// place says where the library's threads and staging memory go. It asks the same code as the library.
func (m *machine) place(r *report, f *flags, w *way, up []net.Interface, queues int) {
	t := topic{r: r, name: "Placement"}
	p := &r.Placement
	*p = placementFacts{Queues: queues, GOMAXPROCS: queues + 1, Ways: []wayFacts{}, Pools: []placedFacts{}}
	allowed := r.CPU.Allowed
	if len(allowed) == 0 {
		t.note("cpus", "the CPUs are not known, so the library pins nothing")
	}
	switch {
	case f.ioQueues > 0:
		t.note("queues", "%s, as asked for", count(queues, "I/O queue"))
	case len(allowed) <= queues:
		t.note("queues", "%s: there is no CPU to leave to callers", count(queues, "I/O queue"))
	case min(m.numCPU, defaultQueues) != queues:
		t.note("queues", "with %s (-i %d, Options.NumIOQueues) a CPU is left to callers; by default it would be %d", count(queues, "I/O queue"), queues, min(m.numCPU, defaultQueues))
	default:
		t.good("queues", "with %s, the default, CPUs are left to callers", count(queues, "I/O queue"))
	}
	var ways []topo.Near
	switch {
	case w != nil && w.err == nil:
		ways = append(ways, w.Near)
	case w == nil:
		for _, ifi := range up {
			ways = append(ways, topo.NearInterface(m.path("sys"), allowed, &ifi))
		}
	}
	for _, near := range ways {
		t := t
		t.about = near.Interface
		t.way(near, queues, allowed)
	}
	m.pools(t, ways)
	switch {
	case len(allowed) > 0 && len(allowed) < p.GOMAXPROCS:
		p.GOMAXPROCS = len(allowed)
		t.note("gomaxprocs", "GOMAXPROCS is %d: more is of no use on %s", m.gomaxprocs, count(len(allowed), "CPU"))
	case m.gomaxprocs < p.GOMAXPROCS:
		t.bad("gomaxprocs", fmt.Sprintf("export GOMAXPROCS=%d", p.GOMAXPROCS), "GOMAXPROCS is %d: each busy queue keeps one of these, and with %s none is left to callers", m.gomaxprocs, count(queues, "I/O queue"))
	default:
		t.good("gomaxprocs", "GOMAXPROCS is %d: one for each I/O queue, and more", m.gomaxprocs)
	}
}

// way says where the threads of the queues to targets behind an interface go.
func (t topic) way(near topo.Near, queues int, allowed []int) {
	cpus, reason := near.Place(queues, allowed)
	t.r.Placement.Ways = append(t.r.Placement.Ways, wayFacts{near.Interface, near.Node, cpus, reason})
	pinned := !slices.Contains(cpus, -1)
	switch {
	case !pinned && len(allowed) > 1:
		t.bad("threads", fmt.Sprintf("shardload -i %d --pin local", len(allowed)-1), "targets behind %s: no thread is pinned: %s", near.Interface, reason)
	case !pinned:
		t.note("threads", "targets behind %s: no thread is pinned: %s", near.Interface, reason)
	case near.Node >= 0 && strings.Contains(reason, "may use no CPU"):
		t.bad("threads", fmt.Sprintf("numactl --cpunodebind=%d PROGRAM", near.Node), "targets behind %s: with --pin local (Options.Pin) on CPUs %s: %s", near.Interface, cpusText(cpus), reason)
	default:
		t.good("threads", "targets behind %s: with --pin local (Options.Pin) on CPUs %s: %s", near.Interface, cpusText(cpus), reason)
	}
}

// pools says on which node the staging memory of each GPU belongs, and which interface feeds it best.
func (m *machine) pools(t topic, ways []topo.Near) {
	add := func(what string, gpu int, near topo.Near) {
		node, reason := near.PoolNode(gpu)
		t.about = what
		t.r.Placement.Pools = append(t.r.Placement.Pools, placedFacts{what, node, reason})
		switch {
		case len(t.r.Nodes) == 1:
			t.good("pool", "staging memory for %s: anywhere, there is one node", what)
		case node < 0:
			t.note("pool", "staging memory for %s: on any node: %s", what, reason)
		default:
			t.good("pool", "staging memory for %s: on node %d (PoolConfig.Node): %s", what, node, reason)
		}
	}
	for _, g := range t.r.GPUs {
		near := topo.Near{Node: -1}
		if len(ways) > 0 {
			near = ways[max(0, slices.IndexFunc(ways, func(w topo.Near) bool { return w.Node == g.Node }))]
		}
		what := "GPU " + g.PCI
		if near.Interface != "" && len(ways) > 1 {
			what += " through " + near.Interface
		}
		add(what, g.Node, near)
	}
	if len(t.r.GPUs) == 0 {
		for _, w := range ways {
			add("targets behind "+w.Interface, -1, w)
		}
	}
}

// cpusText lists CPUs in the order of their queues.
func cpusText(cpus []int) string {
	s := make([]string, len(cpus))
	for i, cpu := range cpus {
		s[i] = strconv.Itoa(cpu)
		if cpu < 0 {
			s[i] = "none"
		}
	}
	return strings.Join(s, ",")
}
