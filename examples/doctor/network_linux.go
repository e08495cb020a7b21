package main

import (
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/internal/topo"
)

const netDir = "sys/class/net"

// ownSysfs reports whether sysfs shows this interface, and not one of the same name in another network namespace.
func (m *machine) ownSysfs(ifi *net.Interface) bool {
	mac := ifi.HardwareAddr.String()
	return m.number(-1, netDir, ifi.Name, "ifindex") == int64(ifi.Index) && (mac == "" || m.line(netDir, ifi.Name, "address") == mac)
}

// lower lists the interfaces that one such as a bond, a VLAN or a bridge is made of.
func (m *machine) lower(name string) (names []string) {
	for _, entry := range m.dir(netDir, name) {
		if l, ok := strings.CutPrefix(entry, "lower_"); ok {
			names = append(names, l)
		}
	}
	return names
}

// network describes the interfaces that lead out of this machine, and what should be mended on those that matter: all, or those
// that the target is behind. It returns those that are up.
func (m *machine) network(r *report, w *way, queues int) (up []net.Interface) {
	t := topic{r: r, name: "Network"}
	r.NICs = []nicFacts{}
	all, err := m.interfaces()
	if err != nil {
		t.note("interfaces", "the network interfaces are not known: %v", err)
		return nil
	}
	matter := map[string]bool{}
	if w != nil {
		m.behind(w.Interface, matter)
	}
	chosen, others := m.choose(all, matter)
	r.Container.SysfsInterfaces = len(chosen) > 0
	for i := range chosen {
		ifi := &chosen[i]
		own := m.ownSysfs(ifi)
		r.Container.SysfsInterfaces = r.Container.SysfsInterfaces && own
		n := m.nic(ifi, own)
		r.NICs = append(r.NICs, n)
		t := t
		t.about = n.Name
		t.describe(&n, own)
		if !n.Up {
			continue
		}
		up = append(up, *ifi)
		if n.Driver != "" && (w == nil || matter[n.Name]) {
			t.advise(&n, queues, len(r.Nodes))
		}
	}
	if len(chosen) == 0 {
		t.note("interfaces", "no interface leads out of this machine")
	}
	if others > 0 {
		t.note("virtual", "%s without a device behind (containers, tunnels) not looked at", count(others, "interface"))
	}
	return up
}

// choose takes those that matter and those with a device or on top of one; if there are none, as in most containers, those
// that are up. others is how many it left.
func (m *machine) choose(all []net.Interface, matter map[string]bool) (chosen []net.Interface, others int) {
	const most = 64
	all = slices.DeleteFunc(slices.Clone(all), func(ifi net.Interface) bool { return ifi.Flags&net.FlagLoopback != 0 })
	pick := func(want func(*net.Interface) bool) {
		for i := range all {
			if len(chosen) < most && want(&all[i]) {
				chosen = append(chosen, all[i])
			}
		}
	}
	pick(func(ifi *net.Interface) bool { return matter[ifi.Name] || m.hasDevice(ifi.Name) })
	if len(chosen) == 0 {
		pick(func(ifi *net.Interface) bool { return ifi.Flags&net.FlagUp != 0 })
	}
	return chosen, len(all) - len(chosen)
}

// hasDevice tells whether there is a device behind an interface.
func (m *machine) hasDevice(name string) bool {
	all := map[string]bool{}
	m.behind(name, all)
	for n := range all {
		if m.exists(netDir, n, "device") {
			return true
		}
	}
	return false
}

// behind collects an interface and what it is made of.
func (m *machine) behind(name string, into map[string]bool) {
	const most = 1024
	if into[name] || len(into) == most {
		return
	}
	into[name] = true
	for _, l := range m.lower(name) {
		m.behind(l, into)
	}
}

func (m *machine) nic(ifi *net.Interface, own bool) nicFacts {
	n := nicFacts{Name: ifi.Name, Up: ifi.Flags&net.FlagUp != 0 && ifi.Flags&net.FlagRunning != 0, Speed: -1, MTU: ifi.MTU, Node: -1, IRQCPUs: []int{}}
	e, err := m.ethtool(ifi.Name)
	if err == nil {
		n.Ethtool = e
	}
	if !own {
		return n
	}
	dir := netDir + "/" + ifi.Name
	n.Speed = max(-1, int(min(m.number(-1, dir, "speed"), 1<<30)))
	n.Driver = m.linkName(dir, "device/driver")
	n.Node = topo.NearInterface(m.path("sys"), nil, ifi).Node
	for _, q := range m.dir(dir, "queues") {
		switch {
		case strings.HasPrefix(q, "rx-"):
			n.RXQueues++
		case strings.HasPrefix(q, "tx-"):
			n.TXQueues++
		}
	}
	device := m.pciOf(dir + "/device")
	if device == "" {
		return n
	}
	n.PCI = pciAddress(device)
	cpus := map[int]bool{}
	for _, irq := range m.dir(device, "msi_irqs") {
		n.Interrupts++
		list := m.list("proc/irq", irq, "effective_affinity_list")
		if list == nil {
			list = m.list("proc/irq", irq, "smp_affinity_list")
		}
		for _, c := range list {
			cpus[c] = true
		}
	}
	for c := range cpus {
		n.IRQCPUs = append(n.IRQCPUs, c)
	}
	slices.Sort(n.IRQCPUs)
	return n
}

// speedText is Mbit/s for people.
func speedText(mbit int) string {
	switch {
	case mbit <= 0:
		return "speed not known"
	case mbit < 1000:
		return fmt.Sprintf("%d Mbit/s", mbit)
	}
	if mbit >= 100000 {
		mbit = mbit / 1000 * 1000
	}
	return strconv.FormatFloat(float64(mbit/100)/10, 'f', -1, 64) + " Gbit/s"
}

func (t topic) describe(n *nicFacts, own bool) {
	what := []string{speedText(n.Speed), "MTU " + strconv.Itoa(n.MTU)}
	if !n.Up {
		t.note("interface", "%s: no link", n.Name)
		return
	}
	if n.Driver != "" {
		what = append(what, n.Driver)
	}
	if n.PCI != "" {
		what = append(what, "PCI "+n.PCI)
	}
	if n.Node >= 0 {
		what = append(what, "node "+strconv.Itoa(n.Node))
	}
	if n.RXQueues > 0 {
		what = append(what, fmt.Sprintf("%d RX and %d TX queues", n.RXQueues, n.TXQueues))
	}
	if n.Interrupts > 0 && len(n.IRQCPUs) > 0 {
		what = append(what, fmt.Sprintf("%s on CPUs %s", count(n.Interrupts, "interrupt"), topo.FormatList(n.IRQCPUs)))
	}
	if !own {
		what = append(what, "sysfs does not show it")
	}
	if n.Ethtool.TSO == nil {
		what = append(what, "offloads not known")
	}
	t.note("interface", "%s: %s", n.Name, strings.Join(what, ", "))
}

// advise says what to mend on an interface that has a device.
func (t topic) advise(n *nicFacts, queues, nodes int) {
	e := n.Ethtool
	var on, off, mend []string
	for _, o := range []struct {
		on         *bool
		name, flag string
	}{{e.TSO, "TSO", "tso"}, {e.GRO, "GRO", "gro"}, {e.RXChecksum, "RX checksum", "rx"}} {
		switch {
		case o.on == nil:
		case *o.on:
			on = append(on, o.name)
		default:
			off, mend = append(off, o.name), append(mend, o.flag+" on")
		}
	}
	if len(off) > 0 {
		t.bad("offloads", "ethtool -K "+n.Name+" "+strings.Join(mend, " "), "%s: off: %s; the CPU does that for every packet", n.Name, strings.Join(off, ", "))
	} else if len(on) > 0 {
		t.good("offloads", "%s: %s on", n.Name, strings.Join(on, ", "))
	}
	const enough = 1024
	if g := e.Ring; g != nil && g.Max > 0 {
		if want := min(enough, g.Max); g.Now < want {
			t.bad("ring", fmt.Sprintf("ethtool -G %s rx %d", n.Name, want), "%s: RX ring of %d entries of %d: a burst of data overflows it", n.Name, g.Now, g.Max)
		} else {
			t.good("ring", "%s: RX ring of %d entries of %d", n.Name, g.Now, g.Max)
		}
	}
	if c := e.Channels; c != nil && c.Max > 0 && c.Now < min(queues, c.Max) {
		kind := "combined"
		if e.separate {
			kind = "rx"
		}
		t.bad("channels", fmt.Sprintf("ethtool -L %s %s %d", n.Name, kind, min(queues, c.Max)), "%s: %s of %d in use, for %s", n.Name, count(c.Now, "RX queue"), c.Max, count(queues, "I/O queue"))
	} else if n.RXQueues > 0 && n.RXQueues < queues {
		t.note("channels", "%s: %s for %s: one CPU handles the packets of several", n.Name, count(n.RXQueues, "RX queue"), count(queues, "I/O queue"))
	}
	t.interrupts(n, nodes)
	const fast = 25000
	if n.Speed >= fast && n.MTU < 9000 {
		t.add(finding{
			ID: "mtu", Mark: neutral, Text: fmt.Sprintf("%s: MTU %d: jumbo frames cost less CPU", n.Name, n.MTU),
			Mend: fmt.Sprintf("ip link set %s mtu 9000   # only if the network and the target do so, too", n.Name),
		})
	}
}

// interrupts says whether they go to the interface's own node.
func (t topic) interrupts(n *nicFacts, nodes int) {
	if n.Node < 0 || nodes < 2 || len(n.IRQCPUs) == 0 {
		return
	}
	var own []int
	for _, node := range t.r.Nodes {
		if node.Node == n.Node {
			own = node.CPUs
		}
	}
	if len(own) == 0 {
		return
	}
	if slices.ContainsFunc(n.IRQCPUs, func(cpu int) bool { return !slices.Contains(own, cpu) }) {
		t.bad("interrupts", fmt.Sprintf("systemctl stop irqbalance; for i in $(ls /sys/class/net/%s/device/msi_irqs); do echo %s > /proc/irq/$i/smp_affinity_list; done", n.Name, topo.FormatList(own)),
			"%s: interrupts go to CPUs %s, not only to those of its node %d", n.Name, topo.FormatList(n.IRQCPUs), n.Node)
		return
	}
	t.good("interrupts", "%s: interrupts stay on its node %d", n.Name, n.Node)
}
