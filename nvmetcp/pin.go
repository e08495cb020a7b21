package nvmetcp

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/nvstage/nvstage/internal/topo"
)

// Pin is a way to choose CPUs for the I/O queues' threads.
type Pin string

const (
	// PinOff pins no thread, except to Options.CPUs.
	PinOff Pin = ""
	// PinLocal pins each I/O queue's thread to a CPU of its own on the NUMA node of the network interface
	// that leads to the controller, one of each core before their other hardware threads. Where no node is
	// known (loopback, virtual interfaces, network namespaces without a sysfs of their own), or the process
	// may use none of its CPUs, it takes any of the process's CPUs. When there are more queues than CPUs on
	// the node they share them in turn.
	//
	// It pins nothing unless at least one CPU of the process is left over for callers.
	PinLocal Pin = "local"
)

// Pinning is where the threads of the I/O queues run, and why. A queue that could not be pinned says so in
// its [queue.Info].Notes.
type Pinning struct {
	CPUs      []int  // of the I/O queues, QID 1 first; -1: not pinned
	Interface string // network interface that leads to the controller, "" if that was not looked for or not found
	Node      int    // NUMA node of the interface, -1 if that is not known
	Reason    string // why it is these CPUs, or none
}

// choosePinning chooses CPUs for n I/O queues.
func (c *controller) choosePinning(n int) {
	c.pinning = Pinning{CPUs: slices.Repeat([]int{-1}, n), Node: -1, Reason: "not asked for"}
	if c.opts.Pin == PinOff && len(c.opts.CPUs) == 0 {
		return
	}
	allowed, err := topo.CPUs()
	switch {
	case err != nil:
		c.pinning.Reason = "the CPUs of the process are not known: " + err.Error()
	case c.opts.Pin == PinLocal:
		c.pinLocal(n, allowed)
	default:
		c.pinListed(n, allowed)
	}
	for i, cpu := range c.pinning.CPUs {
		if want := c.opts.CPUs; cpu < 0 && len(want) > 0 {
			why := c.pinning.Reason
			if err == nil {
				why = "the process may use only CPUs " + topo.FormatList(allowed)
			}
			c.note(uint16(i+1), fmt.Sprintf("not pinned to CPU %d: %s", want[i%len(want)], why))
		}
	}
	c.opts.Logger.Info("pinning of I/O queues", "subsystem", c.target.NQN, "cpus", c.pinning.CPUs,
		"interface", c.pinning.Interface, "node", c.pinning.Node, "reason", c.pinning.Reason)
}

// pinListed takes Options.CPUs, as far as the process may use them: the kernel would let a thread leave the
// affinity that the process was started with.
func (c *controller) pinListed(n int, allowed []int) {
	p := &c.pinning
	pinned := 0
	for i := range n {
		if cpu := c.opts.CPUs[i%len(c.opts.CPUs)]; slices.Contains(allowed, cpu) {
			p.CPUs[i] = cpu
			pinned++
		}
	}
	if pinned == 0 {
		p.Reason = "the process may use none of the CPUs listed in Options.CPUs"
		return
	}
	used := slices.DeleteFunc(slices.Clone(c.opts.CPUs), func(cpu int) bool { return !slices.Contains(allowed, cpu) })
	p.Reason = "listed in Options.CPUs" + topo.Shared(pinned, len(used))
}

func (c *controller) pinLocal(n int, allowed []int) {
	p := &c.pinning
	near := topo.NearRoute(allowed, c.target.HostIface, addrOf(c.admin.Info().LocalAddr), addrOf(c.admin.Info().RemoteAddr))
	p.Interface, p.Node = near.Interface, near.Node
	p.CPUs, p.Reason = near.Place(n, allowed)
}

// addrOf is the address of a host:port, invalid where it is none.
func addrOf(hostport string) netip.Addr {
	ap, _ := netip.ParseAddrPort(hostport)
	return ap.Addr()
}

// note keeps what ControllerInfo has to say about a queue besides what the queue says itself.
func (c *controller) note(qid uint16, notes ...string) {
	c.notes[qid] = append(c.notes[qid], notes...)
}
