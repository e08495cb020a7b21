package main

import (
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/queue"
	"github.com/spf13/pflag"
)

// connectFlags are the flags that say what to connect to, and how. Their names are those of nvme connect.
type connectFlags struct {
	transport  transport
	traddr     string
	trsvcid    string
	nqn        string
	hostnqn    string
	hostid     string
	hostTraddr string
	hostIface  string
	ioQueues   int
	queueSize  int
	headDigest bool
	dataDigest bool
	keepAlive  uint32 // seconds
	driver     driver
	pin        pin
	timeout    seconds
}

const defaultTimeout = seconds(30 * time.Second)

// add adds the flags. what is what the default address is of.
func (c *connectFlags) add(fs *pflag.FlagSet, port string) {
	c.timeout = defaultTimeout
	fs.VarP(&c.transport, "transport", "t", "transport: only tcp")
	fs.StringVarP(&c.traddr, "traddr", "a", "", "`ADDRESS` of the target: an IP address or a name")
	fs.StringVarP(&c.trsvcid, "trsvcid", "s", "", "`PORT` of the target (default "+port+")")
	fs.StringVarP(&c.nqn, "nqn", "n", "", "`NQN` of the subsystem")
	fs.StringVarP(&c.hostnqn, "hostnqn", "q", "", "`NQN` of this host (default /etc/nvme/hostnqn, or one made once and kept)")
	fs.StringVarP(&c.hostid, "hostid", "I", "", "ID of this host, a `UUID` (default the one that goes with the NQN)")
	fs.StringVarP(&c.hostTraddr, "host-traddr", "w", "", "IP `ADDRESS` to connect from")
	fs.StringVarP(&c.hostIface, "host-iface", "f", "", "network `INTERFACE` to connect through")
	fs.BoolVarP(&c.headDigest, "hdr-digest", "g", false, "protect PDU headers with CRC32C")
	fs.BoolVarP(&c.dataDigest, "data-digest", "G", false, "protect data with CRC32C")
	fs.Var(&c.driver, "driver", "how bytes move: auto, io_uring, epoll or net.Conn")
	fs.Var(&c.timeout, "timeout", "longest wait for the target: for the connection as a whole, then for each command")
}

// addIO adds the flags that only matter where there are I/O queues.
func (c *connectFlags) addIO(fs *pflag.FlagSet) {
	fs.IntVarP(&c.ioQueues, "nr-io-queues", "i", 0, "`N` I/O queues, each a connection and a thread (default the number of CPUs, at most 4)")
	fs.IntVarP(&c.queueSize, "queue-size", "Q", 0, fmt.Sprintf("`N` entries of an I/O queue (default %d)", nvmetcp.DefaultQueueSize))
	fs.Var(&c.pin, "pin", "CPUs of the queues' threads: off, local (to the network interface), or a list like 0,2-3")
	fs.Uint32VarP(&c.keepAlive, "keep-alive-tmo", "k", uint32(nvmetcp.DefaultKeepAlive/time.Second), "keep alive timeout in `SECONDS`, 0 for none")
}

// needAddress is the error of a command line that does not say where to connect to.
func (c *connectFlags) needAddress() error {
	if c.traddr == "" {
		return usagef("which target? Give its address with --traddr")
	}
	return c.check()
}

// needTarget is needAddress for commands that also need a subsystem.
func (c *connectFlags) needTarget() error {
	if err := c.needAddress(); err != nil {
		return err
	}
	if c.nqn == "" {
		return usagef("which subsystem? Give its NQN with --nqn; shardload discover --traddr %s lists them", c.traddr)
	}
	return nil
}

// check is the error of flags with values that nothing can be done with.
func (c *connectFlags) check() error {
	if c.trsvcid != "" {
		if n, err := strconv.ParseUint(c.trsvcid, 10, 16); err != nil || n == 0 {
			return usagef("--trsvcid %q: want a port from 1 to 65535", c.trsvcid)
		}
	}
	for flag, nqn := range map[string]string{"nqn": c.nqn, "hostnqn": c.hostnqn} {
		if nqn == "" {
			continue
		}
		if err := fabrics.ValidateNQN(nqn); err != nil {
			return usagef("--%s: %s", flag, strings.TrimPrefix(err.Error(), "fabrics: "))
		}
	}
	if c.hostTraddr != "" {
		if _, err := netip.ParseAddr(c.hostTraddr); err != nil {
			return usagef("--host-traddr %q: want an IP address", c.hostTraddr)
		}
	}
	if c.ioQueues < 0 || c.ioQueues > maxIOQueues {
		return usagef("--nr-io-queues %d: want 1 to %d, or 0 for the default", c.ioQueues, maxIOQueues)
	}
	if q := c.queueSize; q != 0 && (q < 2 || q > queue.MaxDepth+1) {
		return usagef("--queue-size %d: want 2 to %d, or 0 for the default", q, queue.MaxDepth+1)
	}
	if allowed, err := topo.CPUs(); err == nil { // elsewhere the report says that nothing is pinned
		for _, cpu := range c.pin.cpus {
			if !slices.Contains(allowed, cpu) {
				return usagef("--pin %s: this process may not use CPU %d, only %s", c.pin.String(), cpu, topo.FormatList(allowed))
			}
		}
	}
	if c.keepAlive > math.MaxUint32/1000 {
		return usagef("--keep-alive-tmo %d: want at most %d", c.keepAlive, math.MaxUint32/1000)
	}
	return nil
}

// maxIOQueues is how many I/O queues NVMe can name.
const maxIOQueues = 65534

// noTarget is the error of flags that say something about a target which --traddr does not name.
func (c *connectFlags) noTarget() error {
	for name, value := range map[string]string{
		"trsvcid": c.trsvcid, "nqn": c.nqn, "host-traddr": c.hostTraddr, "host-iface": c.hostIface,
	} {
		if value != "" {
			return usagef("--%s needs --traddr; without it the target is one in this process", name)
		}
	}
	return c.check()
}

// host is who connects.
func (c *connectFlags) host() (nvmetcp.Host, error) {
	h := nvmetcp.Host{NQN: c.hostnqn}
	if c.hostid != "" {
		var err error
		if h.ID, err = nvmetcp.ParseHostID(c.hostid); err != nil {
			return h, usagef("--hostid %q: want a UUID, like 12345678-9abc-def0-1234-56789abcdef0", c.hostid)
		}
	}
	return h, nil
}

// target is where to connect to.
func (c *connectFlags) target() nvmetcp.Target {
	addr := c.traddr
	if c.trsvcid != "" {
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), c.trsvcid)
	}
	return nvmetcp.Target{Addr: addr, NQN: c.nqn, HostTraddr: c.hostTraddr, HostIface: c.hostIface}
}

// options is how to connect.
func (c *connectFlags) options() *nvmetcp.Options {
	limit := time.Duration(c.timeout)
	o := &nvmetcp.Options{
		NumIOQueues: c.ioQueues, QueueSize: c.queueSize, HeaderDigest: c.headDigest, DataDigest: c.dataDigest,
		KeepAlive: time.Duration(c.keepAlive) * time.Second, Driver: queue.Driver(c.driver), Pin: c.pin.how, CPUs: c.pin.cpus,
		DialTimeout: limit, ICTimeout: limit, ConnectTimeout: limit, CommandTimeout: limit,
	}
	if c.keepAlive == 0 {
		o.KeepAlive = -1
	}
	return o
}

// transport is the flag --transport, which knows one value.
type transport struct{}

func (transport) String() string { return "tcp" }
func (transport) Type() string   { return "NAME" }
func (transport) Set(s string) error {
	if s != "tcp" {
		return errors.New("only tcp is supported")
	}
	return nil
}

// driver is the flag --driver.
type driver queue.Driver

func (d *driver) String() string {
	if *d == driver(queue.DriverAuto) {
		return "auto"
	}
	return string(*d)
}
func (d *driver) Type() string { return "NAME" }
func (d *driver) Set(s string) error {
	if s == "auto" {
		*d = driver(queue.DriverAuto)
		return nil
	}
	for _, known := range []queue.Driver{queue.DriverURing, queue.DriverEpoll, queue.DriverConn} {
		if strings.EqualFold(s, string(known)) {
			*d = driver(known)
			return nil
		}
	}
	return fmt.Errorf("want auto, %s, %s or %s", queue.DriverURing, queue.DriverEpoll, queue.DriverConn)
}

// pin is the flag --pin.
type pin struct {
	how  nvmetcp.Pin
	cpus []int
}

// maxCPUs is how many CPUs Linux can have.
const maxCPUs = 8192

func (p *pin) Type() string { return "CPUS" }

func (p *pin) String() string {
	if p.how != nvmetcp.PinOff {
		return string(p.how)
	}
	if len(p.cpus) > 0 {
		return cpusText(p.cpus)
	}
	return "off"
}

func (p *pin) Set(s string) error {
	switch s {
	case "off":
		*p = pin{}
		return nil
	case string(nvmetcp.PinLocal):
		*p = pin{how: nvmetcp.PinLocal}
		return nil
	}
	var cpus []int
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := strconv.ParseUint(from, 10, 32)
		last := first
		if err == nil && isRange {
			last, err = strconv.ParseUint(to, 10, 32)
		}
		if err != nil || last < first || last >= maxCPUs {
			return fmt.Errorf("%q is not a CPU, nor a range of them; want off, local, or a list like 0,2-3", part)
		}
		for n := int(first); n <= int(last); n++ {
			if slices.Contains(cpus, n) {
				return fmt.Errorf("CPU %d is in the list twice", n)
			}
			cpus = append(cpus, n)
		}
	}
	*p = pin{cpus: cpus}
	return nil
}

// nsidList is a flag value like 1,2,4-6.
type nsidList []uint32

// maxNSIDs is how many namespaces one load may have.
const maxNSIDs = 4096

func (l *nsidList) Type() string { return "LIST" }

func (l *nsidList) String() string {
	s := make([]string, len(*l))
	for i, n := range *l {
		s[i] = strconv.FormatUint(uint64(n), 10)
	}
	return strings.Join(s, ",")
}

func (l *nsidList) Set(s string) error {
	var list nsidList
	for part := range strings.SplitSeq(s, ",") {
		from, to, isRange := strings.Cut(part, "-")
		first, err := parseNSID(from)
		last := first
		if err == nil && isRange {
			last, err = parseNSID(to)
		}
		if err != nil || last < first || last-first >= maxNSIDs {
			return fmt.Errorf("%q is not a namespace, nor a range of them; want a list like 1,2,4-6", part)
		}
		for n := uint64(first); n <= uint64(last); n++ {
			if slices.Contains(list, uint32(n)) {
				return fmt.Errorf("namespace %d is in the list twice", n)
			}
			list = append(list, uint32(n))
		}
		if len(list) > maxNSIDs {
			return fmt.Errorf("more than %d namespaces", maxNSIDs)
		}
	}
	*l = list
	return nil
}

func parseNSID(s string) (uint32, error) {
	n, err := strconv.ParseUint(s, 10, 32)
	if err == nil && (n == 0 || n == 1<<32-1) {
		err = strconv.ErrRange
	}
	return uint32(n), err
}
