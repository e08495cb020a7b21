package main

// What the parts of the report are made of. They are the same on every system, so that its JSON is.

type cpuFacts struct {
	Model      string  `json:"model"`
	Online     []int   `json:"online"`
	Cores      int     `json:"cores"`   // of those, 0: not known
	Sockets    int     `json:"sockets"` // 0: not known
	SMT        string  `json:"smt"`     // on, off, not supported, "" not known
	Governors  []group `json:"governors"`
	Isolated   []int   `json:"isolated"`
	Affinity   []int   `json:"affinity"` // of the main thread
	Cpuset     []int   `json:"cgroup_cpuset"`
	Quota      float64 `json:"cgroup_quota"` // CPUs' worth of time, 0: no limit
	Allowed    []int   `json:"allowed"`      // to the library: what it pins threads to
	GOMAXPROCS int     `json:"gomaxprocs"`
}

// group is CPUs that have a value in common.
type group struct {
	Value string `json:"value"`
	CPUs  []int  `json:"cpus"`
}

type nodeFacts struct {
	Node      int       `json:"node"`
	CPUs      []int     `json:"cpus"`
	Memory    int64     `json:"memory"`
	Free      int64     `json:"free"`
	Distances []int     `json:"distances"` // to each online node, in order; 10 is itself
	HugePages []hugeSet `json:"hugepages"`
}

// hugeSet is the reserved huge pages of one size.
type hugeSet struct {
	Size  int64 `json:"size"`
	Total int64 `json:"total"` // pages
	Free  int64 `json:"free"`  // and not promised to anybody
}

type nicFacts struct {
	Name       string       `json:"name"`
	Up         bool         `json:"up"`
	Speed      int          `json:"speed"` // Mbit/s, -1: not known, as of virtual ones
	MTU        int          `json:"mtu"`
	Driver     string       `json:"driver"`
	PCI        string       `json:"pci"`
	Node       int          `json:"numa_node"`
	RXQueues   int          `json:"rx_queues"`
	TXQueues   int          `json:"tx_queues"`
	Interrupts int          `json:"interrupts"`
	IRQCPUs    []int        `json:"interrupt_cpus"`
	Ethtool    ethtoolFacts `json:"ethtool"`
}

// ethtoolFacts are what the driver was asked; nil is what it did not say.
type ethtoolFacts struct {
	TSO        *bool `json:"tso"`
	GRO        *bool `json:"gro"`
	RXChecksum *bool `json:"rx_checksum"`
	Ring       *of   `json:"rx_ring"`  // entries
	TXRing     *of   `json:"tx_ring"`  // likewise
	Channels   *of   `json:"channels"` // queues that receive, combined or not
	separate   bool  // RX and TX queues are not combined
}

// of is how much of what there can be is in use.
type of struct {
	Now int `json:"now"`
	Max int `json:"max"`
}

type targetFacts struct {
	Address   string   `json:"address"` // host:port
	IPs       []string `json:"ips"`
	Interface string   `json:"interface"`
	Loopback  bool     `json:"loopback"`
	Tried     bool     `json:"tried"` // whether a connection was
	Connected bool     `json:"connected"`
	Error     string   `json:"error"`
	Model     string   `json:"model"`
	Queues    int      `json:"io_queues"`
	NSIDs     []uint32 `json:"namespaces"`
	RTT       float64  `json:"rtt_us"`
	PathMTU   int      `json:"path_mtu"`
	Pinned    []int    `json:"pinned"` // CPUs of the queues' threads, -1: not pinned
	Reason    string   `json:"pinning_reason"`
}

type gpuFacts struct {
	PCI        string `json:"pci"`
	Vendor     string `json:"vendor"` // NVIDIA or AMD
	Device     string `json:"device"` // PCI device ID
	RootPort   string `json:"root_port"`
	HostBridge string `json:"host_bridge"`
	Width      int    `json:"link_width"` // lanes, 0: not known
	MaxWidth   int    `json:"max_link_width"`
	SlotWidth  int    `json:"max_slot_width"` // of the port above
	Speed      string `json:"link_speed"`
	MaxSpeed   string `json:"max_link_speed"`
	SlotSpeed  string `json:"max_slot_speed"`
	Node       int    `json:"numa_node"`
	Driver     string `json:"driver"`
}

// libraryFacts is a library that a GPU vendor's driver comes with.
type libraryFacts struct {
	Vendor  string   `json:"vendor"`
	Library string   `json:"library"` // the file, "" when there is none
	Devices []string `json:"devices"` // device files that are there
}

type placementFacts struct {
	Queues     int           `json:"io_queues"`
	GOMAXPROCS int           `json:"gomaxprocs"` // at least
	Ways       []wayFacts    `json:"interfaces"`
	Pools      []placedFacts `json:"pools"`
}

// wayFacts is where the threads of the I/O queues to targets behind an interface go.
type wayFacts struct {
	Interface string `json:"interface"`
	Node      int    `json:"numa_node"`
	CPUs      []int  `json:"cpus"` // -1: not pinned
	Reason    string `json:"reason"`
}

// placedFacts is where a staging pool goes.
type placedFacts struct {
	For    string `json:"for"` // GPU or interface
	Node   int    `json:"numa_node"`
	Reason string `json:"reason"`
}

type socketFacts struct {
	RMemMax    int64    `json:"rmem_max"`
	WMemMax    int64    `json:"wmem_max"`
	TCPRMem    []int64  `json:"tcp_rmem"`
	TCPWMem    []int64  `json:"tcp_wmem"`
	Congestion string   `json:"congestion_control"`
	Available  []string `json:"available_congestion_controls"`
	BusyPoll   int64    `json:"busy_poll"` // µs
	BusyRead   int64    `json:"busy_read"`
}

type memoryFacts struct {
	Pool      int64      `json:"pool"` // what is advised on
	HugePages []hugeSet  `json:"hugepages"`
	THP       string     `json:"transparent_hugepages"`
	Available int64      `json:"available"`
	Limit     int64      `json:"cgroup_limit"` // 0: none
	Lock      limitFacts `json:"memlock"`
	MayLock   bool       `json:"cap_ipc_lock"`
}

// limitFacts is a resource limit; -1 is none.
type limitFacts struct {
	Soft int64 `json:"soft"`
	Hard int64 `json:"hard"`
}

type kernelFacts struct {
	Release  string         `json:"release"`
	Arch     string         `json:"arch"`
	Features []featureFacts `json:"features"`
}

type featureFacts struct {
	Name  string `json:"name"`
	Since string `json:"since"`
	Has   bool   `json:"has"`
	How   string `json:"how"` // asked, or by the kernel's version
}

type uringFacts struct {
	Works    bool     `json:"works"`
	Error    string   `json:"error"`
	Flags    []string `json:"flags"` // that the library uses and the kernel took
	Notes    []string `json:"notes"`
	Ops      int      `json:"operations"` // that the kernel knows, 0: not known
	Disabled string   `json:"sysctl_disabled"`
	ops      []bool
}

type containerFacts struct {
	Kind            string `json:"kind"` // docker, podman, kubernetes…; "" none seen
	VM              bool   `json:"virtual_machine"`
	UserNamespace   bool   `json:"user_namespace"`
	PIDNamespace    bool   `json:"pid_namespace"`
	Seccomp         string `json:"seccomp"` // off, strict, filter, "" not known
	NoNewPrivs      bool   `json:"no_new_privs"`
	CgroupVersion   int    `json:"cgroup_version"` // 0: not known
	SysfsInterfaces bool   `json:"sysfs_shows_interfaces"`
}

type identityFacts struct {
	HostNQN string `json:"hostnqn"`
	HostID  string `json:"hostid"`
	Error   string `json:"error"`
}
