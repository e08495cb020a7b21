package main

import (
	"context"
	"net"
	"net/netip"
	"os"
	"runtime"

	"github.com/nvstage/nvstage/internal/topo"
)

// machine is what is examined: the files below a root directory, and what only a system call tells. Tests make both up.
type machine struct {
	tree
	allowed    func() ([]int, error)                     // CPUs of the process
	interfaces func() ([]net.Interface, error)           // network interfaces of the network namespace
	addrs      func() ([]net.Addr, error)                // addresses of this machine
	ethtool    func(ifname string) (ethtoolFacts, error) // nothing of it is an error too
	route      func(src, dst netip.Addr) (string, error)
	lookup     func(ctx context.Context, host string) ([]netip.Addr, error)
	uring      func() uringFacts
	try        func(ctx context.Context, f *flags, queues int, t *targetFacts) error
	env        func(string) string
	gomaxprocs int
	numCPU     int
	arch       string
}

// thisMachine is the one that the program runs on.
func thisMachine() *machine {
	return &machine{
		tree:       tree{"/"},
		allowed:    topo.CPUs,
		interfaces: net.Interfaces,
		addrs:      net.InterfaceAddrs,
		ethtool:    askEthtool,
		route:      topo.RouteInterface,
		lookup: func(ctx context.Context, host string) ([]netip.Addr, error) {
			return net.DefaultResolver.LookupNetIP(ctx, "ip", host)
		},
		uring:      askURing,
		try:        tryTarget,
		env:        os.Getenv,
		gomaxprocs: runtime.GOMAXPROCS(0),
		numCPU:     runtime.NumCPU(),
		arch:       runtime.GOARCH,
	}
}

// examine examines this machine.
func examine(ctx context.Context, f *flags) (*report, error) {
	return thisMachine().examine(ctx, f), nil
}

func (m *machine) examine(ctx context.Context, f *flags) *report {
	r := &report{Findings: []finding{}}
	m.kernel(r)
	m.container(r)
	m.cpus(r)
	queues := queuesFor(f.ioQueues, len(r.CPU.Allowed))
	m.nodes(r)
	w := m.find(ctx, r, f)
	up := m.network(r, w, queues)
	m.target(ctx, r, f, w, queues)
	m.gpus(r)
	m.place(r, f, w, up, queues)
	m.memory(r, int64(f.memory))
	m.files(r, queues)
	m.sockets(r, queues)
	m.ioURing(r)
	m.identity(r, f)
	r.conclude()
	return r
}

// queuesFor is how many I/O queues to advise on: as many as asked for, else the library's default less those that would
// leave no CPU to callers.
func queuesFor(asked, cpus int) int {
	if asked > 0 {
		return asked
	}
	return max(1, min(defaultQueues, cpus-1))
}
