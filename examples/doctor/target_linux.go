package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"

	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
)

// way is how packets get to the target.
type way struct {
	topo.Near
	dst netip.Addr
	err error // there is none
}

// find looks for the way to the target, nil if none is named. The answer goes into the report later, where it belongs.
func (m *machine) find(ctx context.Context, r *report, f *flags) *way {
	if f.traddr == "" {
		return nil
	}
	w := &way{Near: topo.Near{Node: -1}}
	target := f.target()
	r.Target = &targetFacts{Address: target.Addr, IPs: []string{}, NSIDs: []uint32{}, Pinned: []int{}}
	ctx, cancel := context.WithTimeout(ctx, f.timeout)
	defer cancel()
	host, _ := f.hostPort()
	ips, err := m.lookup(ctx, host)
	if err == nil && len(ips) == 0 {
		err = errors.New("it has none")
	}
	if err != nil {
		w.err = fmt.Errorf("the address of %q is not known: %w", host, err)
		return w
	}
	for _, ip := range ips {
		r.Target.IPs = append(r.Target.IPs, ip.Unmap().String())
	}
	w.dst = ips[0].Unmap()
	src, _ := netip.ParseAddr(f.hostTraddr)
	w.Interface = f.hostIface
	if w.Interface == "" {
		if w.Interface, w.err = m.route(src, w.dst); w.err != nil {
			return w
		}
	}
	r.Target.Interface = w.Interface
	r.Target.Loopback = m.isOwn(w.dst)
	w.Near = m.near(r.CPU.Allowed, w.Interface)
	return w
}

// isOwn tells whether an address is this machine's.
func (m *machine) isOwn(ip netip.Addr) bool {
	if ip.IsLoopback() {
		return true
	}
	addrs, _ := m.addrs()
	for _, a := range addrs {
		if n, ok := a.(*net.IPNet); ok && n.IP.Equal(ip.AsSlice()) {
			return true
		}
	}
	return false
}

// near is what the library would find near an interface.
func (m *machine) near(allowed []int, name string) topo.Near {
	all, err := m.interfaces()
	for i := range all {
		if all[i].Name == name {
			return topo.NearInterface(m.path("sys"), allowed, &all[i])
		}
	}
	if err == nil {
		err = errors.New("there is no such interface")
	}
	return topo.Near{Interface: name, Node: -1, CPUs: allowed, Reason: fmt.Sprintf("interface %s: %v; so any CPU of the process", name, err)}
}

// target says what the way to the target is like, and tries it.
func (m *machine) target(ctx context.Context, r *report, f *flags, w *way, queues int) {
	if w == nil {
		return
	}
	t, facts := topic{r: r, name: "Target"}, r.Target
	host, _ := f.hostPort()
	if w.err != nil {
		facts.Error = w.err.Error()
		mend := "ip route get " + host
		if !w.dst.IsValid() {
			mend = "getent ahosts " + host
		}
		t.blocked("route", mend, "%v", w.err)
		return
	}
	t.good("route", "%s is reached through interface %s", w.dst, w.Interface)
	if len(facts.IPs) > 1 {
		t.note("addresses", "%q has %d addresses: %s; this is about the first", host, len(facts.IPs), strings.Join(facts.IPs[:min(8, len(facts.IPs))], " "))
	}
	if f.nqn == "" {
		t.note("connect", "no connection was tried: --nqn says to which subsystem")
		return
	}
	facts.Tried = true
	ctx, cancel := context.WithTimeoutCause(ctx, f.timeout, fmt.Errorf("%w: it took more than %v, which is --timeout", nvmetcp.ErrTimeout, f.timeout))
	defer cancel()
	if err := m.try(ctx, f, queues, facts); err != nil {
		facts.Error = explain(err)
		t.blocked("connect", mendConnect(err, f, m.pingBytes(w)), "%s", facts.Error)
		return
	}
	facts.Connected = true
	spaces := "no active namespace"
	if len(facts.NSIDs) > 0 {
		ids := make([]string, 0, 16)
		for _, n := range facts.NSIDs[:min(16, len(facts.NSIDs))] {
			ids = append(ids, fmt.Sprint(n))
		}
		if len(facts.NSIDs) > len(ids) {
			ids = append(ids, "…")
		}
		spaces = fmt.Sprintf("namespace %s", strings.Join(ids, ","))
	}
	t.good("connect", "connected to %s at %s: %s, %s, %s", f.nqn, facts.Address, facts.Model, count(facts.Queues, "I/O queue"), spaces)
	if facts.Queues < queues {
		t.note("queues", "the controller granted %d of %s", facts.Queues, count(queues, "I/O queue"))
	}
	if facts.RTT > 0 {
		t.note("path", "round trip %.0f µs, path MTU %d", facts.RTT, facts.PathMTU)
	}
	t.note("pinning", "pinned: %s: %s", cpusText(facts.Pinned), facts.Reason)
}

// tryTarget connects as the library does by default but for the pinning, and disconnects.
func tryTarget(ctx context.Context, f *flags, queues int, facts *targetFacts) (err error) {
	host, err := f.host()
	if err != nil {
		return err
	}
	sub, err := host.Connect(ctx, f.target(), &nvmetcp.Options{
		NumIOQueues: queues, Pin: nvmetcp.PinLocal,
		DialTimeout: f.timeout, ICTimeout: f.timeout, ConnectTimeout: f.timeout, CommandTimeout: f.timeout,
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, sub.Close()) }()
	c := sub.Controller()
	facts.Address, facts.Model, facts.Queues = c.Addr, strings.TrimSpace(c.Identify.MN), len(c.Queues)
	facts.Pinned, facts.Reason = c.Pinning.CPUs, c.Pinning.Reason
	spaces, err := sub.Namespaces(ctx)
	if err != nil {
		return err
	}
	facts.NSIDs = list(spaces)
	if info, err := sub.TCPInfo(); err == nil && len(info) > 0 {
		facts.RTT, facts.PathMTU = float64(info[0].RTT.Nanoseconds())/1e3, info[0].PMTU
	}
	return nil
}

// pingBytes is what a ping of the largest packet carries: the MTU of the interface less the IP and ICMP headers.
func (m *machine) pingBytes(w *way) int {
	mtu, headers := 1500, 28
	all, _ := m.interfaces()
	for i := range all {
		if all[i].Name == w.Interface && all[i].MTU > 0 {
			mtu = min(all[i].MTU, 65535) // no IP packet is longer; loopback's MTU is
		}
	}
	if w.dst.Is6() {
		headers = 48
	}
	return max(mtu-headers, 0)
}

// mendConnect says what to run against an error of connecting. ping is what a ping of the largest packet carries.
func mendConnect(err error, f *flags, ping int) string {
	host, port := f.hostPort()
	discover := fmt.Sprintf("shardload discover -a %s -s %s", host, port)
	var refused *fabrics.ConnectError
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return "ss -ltn   # at the target: does anything listen on that port? Another is given with --trsvcid"
	case errors.Is(err, nvmetcp.ErrTimeout), errors.Is(err, context.DeadlineExceeded), errors.Is(err, syscall.EHOSTUNREACH), errors.Is(err, syscall.ENETUNREACH):
		return fmt.Sprintf("ping %s   # then look for a firewall between, and whether large packets get through: ping -M do -s %d %[1]s", host, ping)
	case errors.As(err, &refused):
		return discover + "   # lists the subsystems that this host may see; else allow its NQN at the target"
	case errors.Is(err, nvmetcp.ErrIdentity):
		return "mkdir -p /etc/nvme; nvme gen-hostnqn > /etc/nvme/hostnqn   # or give --hostnqn and --hostid"
	}
	return discover + "   # does the target answer at all?"
}

// explain is the text of err in one line, in the words of this program's flags.
func explain(err error) string {
	return strings.NewReplacer(
		"nvmetcp: ", "", "\n", "; ", "HostTraddr", "--host-traddr", "HostIface", "--host-iface",
		"set Host.NQN and Host.ID, or use UniqueHost", "give --hostnqn and --hostid", "set Host.ID to a UUID", "give with --hostid a UUID",
		"list what is there with discovery", "shardload discover lists what is there", "discovery lists them", "shardload discover lists them",
	).Replace(err.Error())
}
