package topo

// Near is what is close to the network interface that leads to an address.
type Near struct {
	Interface string // network interface that packets leave by, "" when it is not known
	Node      int    // NUMA node of the interface, -1 when it is not known or there is none
	CPUs      []int  // CPUs on that node, one of each core before their siblings; any CPUs when Node is -1
	Reason    string // why it is these CPUs
}
