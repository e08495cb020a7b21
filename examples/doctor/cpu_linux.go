package main

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/internal/topo"
)

const cpuDir = "sys/devices/system/cpu"

func (m *machine) cpus(r *report) {
	t := topic{r: r, name: "CPUs"}
	c := &r.CPU
	*c = cpuFacts{
		Model: m.cpuModel(), Online: list(m.list(cpuDir, "online")), Isolated: list(m.list(cpuDir, "isolated")), SMT: m.line(cpuDir, "smt/control"),
		Governors: []group{}, Cpuset: list(m.cpuset()), Quota: m.cpuQuota(), GOMAXPROCS: m.gomaxprocs,
	}
	affinity, _ := topo.ParseList(m.field("Cpus_allowed_list", "proc/self/status"))
	c.Affinity = list(affinity)
	allowed, err := m.allowed()
	c.Allowed = list(allowed)
	m.cores(c)

	what := []string{"model not known"}
	if c.Model != "" {
		what[0] = c.Model
	}
	if len(c.Online) > 0 {
		what = append(what, count(len(c.Online), "CPU"))
	} else {
		what = append(what, "number of CPUs not known (no sysfs)")
	}
	if c.Cores > 0 {
		what = append(what, count(c.Cores, "core"), count(c.Sockets, "socket"))
	}
	if c.SMT != "" {
		what = append(what, "SMT "+strings.ReplaceAll(c.SMT, "notsupported", "not there"))
	}
	t.note("model", "%s", strings.Join(what, ", "))
	switch {
	case err != nil:
		t.note("allowed", "the CPUs that the process may use are not known: %v", err)
	case len(allowed) == 1:
		t.bad("allowed", "taskset -c 0-1 PROGRAM   # or docker run --cpuset-cpus=0-1, or a larger machine",
			"the process may use only CPU %s: queue threads, callers and decoding share it", topo.FormatList(allowed))
	case len(c.Online) > len(allowed):
		t.good("allowed", "the process may use %d of them: CPUs %s", len(allowed), topo.FormatList(allowed))
	default:
		t.good("allowed", "the process may use CPUs %s", topo.FormatList(allowed))
	}
	if c.Quota > 0 {
		text := fmt.Sprintf("the cgroup allows %s CPUs' worth of time", strconv.FormatFloat(c.Quota, 'g', 4, 64))
		if c.Quota < float64(len(allowed)) {
			t.bad("quota", "docker run --cpuset-cpus=0-3   # instead of --cpus; Kubernetes: whole CPUs and the static CPU manager policy",
				"%s on %d CPUs: when it is used up all threads stand still for up to 0.1 s", text, len(allowed))
		} else {
			t.good("quota", "%s, which is all of them", text)
		}
	}
	t.governor(c.Governors)
	if len(c.Isolated) > 0 {
		t.note("isolated", "CPUs %s are isolated: the scheduler puts nothing there by itself, but threads can be pinned to them (--pin %[1]s)", topo.FormatList(c.Isolated))
	}
}

func (t topic) governor(governors []group) {
	if len(governors) == 0 {
		t.note("governor", "no frequency governor: firmware, hypervisor or hardware choose the clock")
		return
	}
	var slow []string
	for _, g := range governors {
		if g.Value != "performance" {
			slow = append(slow, fmt.Sprintf("%s on CPUs %s", g.Value, topo.FormatList(g.CPUs)))
		}
	}
	if len(slow) == 0 {
		t.good("governor", "frequency governor performance")
		return
	}
	t.bad("governor", "cpupower frequency-set -g performance", "frequency governor %s: the clock rises only when a load has been there for a while", strings.Join(slow, ", "))
}

// cpuModel is the name of the first CPU. Arm's have numbers only.
func (m *machine) cpuModel() string {
	const file = "proc/cpuinfo"
	if name := m.field("model name", file); name != "" {
		return strings.Join(strings.Fields(name), " ")
	}
	implementer, part := m.field("CPU implementer", file), m.field("CPU part", file)
	if implementer == "" {
		return ""
	}
	return fmt.Sprintf("implementer %s part %s", implementer, part)
}

// cores counts cores and sockets, and groups the CPUs by governor.
func (m *machine) cores(c *cpuFacts) {
	seen, sockets := map[int]bool{}, map[int64]bool{}
	known := len(c.Online) > 0
	for _, cpu := range c.Online {
		dir := cpuDir + "/cpu" + strconv.Itoa(cpu)
		siblings := m.list(dir, "topology/thread_siblings_list")
		known = known && len(siblings) > 0
		if !seen[cpu] {
			c.Cores++
		}
		for _, s := range siblings {
			seen[s] = true
		}
		sockets[m.number(-1, dir, "topology/physical_package_id")] = true
		if g := m.line(dir, "cpufreq/scaling_governor"); g != "" {
			i := slices.IndexFunc(c.Governors, func(have group) bool { return have.Value == g })
			if i < 0 {
				i = len(c.Governors)
				c.Governors = append(c.Governors, group{Value: g})
			}
			c.Governors[i].CPUs = append(c.Governors[i].CPUs, cpu)
		}
	}
	c.Sockets = len(sockets)
	if !known {
		c.Cores, c.Sockets = 0, 0
	}
}

// list makes an empty list of none, so that JSON has [].
func list[T any](l []T) []T {
	if l == nil {
		return []T{}
	}
	return l
}
