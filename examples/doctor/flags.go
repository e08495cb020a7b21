package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

// flags are the program's flags. Those that shardload has, too, have the same names and meaning.
type flags struct {
	transport  transport
	traddr     string
	trsvcid    string
	nqn        string
	hostnqn    string
	hostid     string
	hostTraddr string
	hostIface  string
	ioQueues   int
	memory     byteSize
	timeout    time.Duration
	json       bool
	strict     bool
}

func (f *flags) add(fs *pflag.FlagSet) {
	f.memory = staging.DefaultPoolBytes
	fs.VarP(&f.transport, "transport", "t", "transport: only tcp")
	fs.StringVarP(&f.traddr, "traddr", "a", "", "`ADDRESS` of a target, to examine the way to it: an IP address or a name")
	fs.StringVarP(&f.trsvcid, "trsvcid", "s", "", "`PORT` of the target (default "+nvmetcp.DefaultPort+")")
	fs.StringVarP(&f.nqn, "nqn", "n", "", "`NQN` of a subsystem of the target, to try to connect to it")
	fs.StringVarP(&f.hostnqn, "hostnqn", "q", "", "`NQN` of this host (default /etc/nvme/hostnqn, or one made once and kept)")
	fs.StringVarP(&f.hostid, "hostid", "I", "", "ID of this host, a `UUID` (default the one that goes with the NQN)")
	fs.StringVarP(&f.hostTraddr, "host-traddr", "w", "", "IP `ADDRESS` to connect from")
	fs.StringVarP(&f.hostIface, "host-iface", "f", "", "network `INTERFACE` to connect through")
	fs.IntVarP(&f.ioQueues, "nr-io-queues", "i", 0, "advise on `N` I/O queues (default what suits the CPUs, at most "+strconv.Itoa(defaultQueues)+")")
	fs.Var(&f.memory, "memory", "staging memory to advise on")
	fs.DurationVar(&f.timeout, "timeout", 10*time.Second, "longest wait for a name's addresses, and for the target")
	fs.BoolVar(&f.json, "json", false, "print the report as a JSON object")
	fs.BoolVar(&f.strict, "strict", false, "let any ✗ be a failure")
}

// defaultQueues is how many I/O queues the library makes at most if it is not told.
const defaultQueues = 4

// maxQueues is how many I/O queues NVMe can name.
const maxQueues = 65534

// check is what is wrong with the flags.
func (f *flags) check() error {
	if f.trsvcid != "" {
		if n, err := strconv.ParseUint(f.trsvcid, 10, 16); err != nil || n == 0 {
			return fmt.Errorf("--trsvcid %q: want a port from 1 to 65535", f.trsvcid)
		}
	}
	for _, v := range []struct{ name, value string }{
		{"trsvcid", f.trsvcid}, {"nqn", f.nqn}, {"hostnqn", f.hostnqn}, {"hostid", f.hostid}, {"host-traddr", f.hostTraddr}, {"host-iface", f.hostIface},
	} {
		if v.value != "" && f.traddr == "" {
			return fmt.Errorf("--%s needs --traddr", v.name)
		}
	}
	for _, v := range []struct{ name, value string }{{"nqn", f.nqn}, {"hostnqn", f.hostnqn}} {
		if err := fabrics.ValidateNQN(v.value); v.value != "" && err != nil {
			return fmt.Errorf("--%s: %s", v.name, strings.TrimPrefix(err.Error(), "fabrics: "))
		}
	}
	if f.hostTraddr != "" {
		if _, err := netip.ParseAddr(f.hostTraddr); err != nil {
			return fmt.Errorf("--host-traddr %q: want an IP address", f.hostTraddr)
		}
	}
	if _, err := f.host(); err != nil {
		return err
	}
	switch {
	case f.ioQueues < 0 || f.ioQueues > maxQueues:
		return fmt.Errorf("--nr-io-queues %d: want 1 to %d, or 0 for the default", f.ioQueues, maxQueues)
	case f.memory < staging.DefaultBufferSize:
		return fmt.Errorf("--memory %v: want %s or more", &f.memory, bytesText(staging.DefaultBufferSize))
	case f.timeout <= 0:
		return fmt.Errorf("--timeout %v: want more than 0, like 5s", f.timeout)
	}
	return nil
}

// host is who connects.
func (f *flags) host() (nvmetcp.Host, error) {
	h := nvmetcp.Host{NQN: f.hostnqn}
	if f.hostid != "" {
		var err error
		if h.ID, err = nvmetcp.ParseHostID(f.hostid); err != nil {
			return h, fmt.Errorf("--hostid %q: want a UUID, like 12345678-9abc-def0-1234-56789abcdef0", f.hostid)
		}
	}
	return h, nil
}

// hostPort is the address of the target. --traddr may contain a port, as shardload's may.
func (f *flags) hostPort() (host, port string) {
	host, port, err := net.SplitHostPort(f.traddr)
	if err != nil || f.trsvcid != "" {
		host, port = strings.Trim(f.traddr, "[]"), f.trsvcid
	}
	if port == "" {
		port = nvmetcp.DefaultPort
	}
	return host, port
}

// target is where to connect to.
func (f *flags) target() nvmetcp.Target {
	host, port := f.hostPort()
	return nvmetcp.Target{Addr: net.JoinHostPort(host, port), NQN: f.nqn, HostTraddr: f.hostTraddr, HostIface: f.hostIface}
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
