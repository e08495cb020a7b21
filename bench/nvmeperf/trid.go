package main

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
)

// transportID is where a namespace is, in SPDK's words. ns is 0 where nothing was said.
type transportID struct {
	traddr, trsvcid, subnqn, hostnqn, hostaddr string
	ns                                         uint32
}

// parseTransportID reads a string like
//
//	trtype:TCP adrfam:IPv4 traddr:192.0.2.10 trsvcid:4420 subnqn:nqn.2016-06.io.spdk:cnode1
//
// as SPDK does: keys in any order and in any case, ':' or '=' behind them, white space between them.
func parseTransportID(s string) (transportID, error) {
	var t transportID
	seen := map[string]bool{}
	for field := range strings.FieldsSeq(s) {
		i := strings.IndexAny(field, ":=")
		if i < 0 || i == len(field)-1 {
			return t, fmt.Errorf("%q: want key:value, like traddr:192.0.2.10", field)
		}
		key, value := strings.ToLower(field[:i]), field[i+1:]
		if seen[key] {
			return t, fmt.Errorf("%q is there twice", key)
		}
		seen[key] = true
		switch key {
		case "trtype":
			if !strings.EqualFold(value, "tcp") {
				return t, fmt.Errorf("trtype:%s: only TCP is supported", value)
			}
		case "adrfam":
			if !strings.EqualFold(value, "ipv4") && !strings.EqualFold(value, "ipv6") {
				return t, fmt.Errorf("adrfam:%s: want IPv4 or IPv6", value)
			}
		case "traddr":
			t.traddr = value
		case "trsvcid":
			t.trsvcid = value
		case "subnqn":
			t.subnqn = value
		case "hostnqn":
			t.hostnqn = value
		case "hostaddr":
			t.hostaddr = value
		case "ns":
			n, err := strconv.ParseUint(value, 10, 32)
			if err != nil || n == 0 || n == 1<<32-1 {
				return t, fmt.Errorf("ns:%s: want a namespace identifier", value)
			}
			t.ns = uint32(n)
		default:
			return t, fmt.Errorf("%q: keys are trtype, adrfam, traddr, trsvcid, subnqn, hostnqn, hostaddr and ns", key)
		}
	}
	if !seen["traddr"] {
		return t, fmt.Errorf("%q has no traddr", s)
	}
	return t, nil
}

// String is the transport ID as SPDK writes it.
func (t *transportID) String() string {
	family := "IPv4"
	if ip, err := netip.ParseAddr(t.traddr); err == nil && ip.Is6() {
		family = "IPv6"
	}
	return fmt.Sprintf("trtype:TCP adrfam:%s traddr:%s trsvcid:%s subnqn:%s", family, t.traddr, t.trsvcid, t.subnqn)
}

// target is where to connect to.
func (t *transportID) target() (nvmetcp.Target, error) {
	if t.traddr == "" {
		return nvmetcp.Target{}, usagef("which target? Give its address with -a, or as a transport ID with -r")
	}
	if t.subnqn == "" {
		return nvmetcp.Target{}, usagef("which subsystem? Give its NQN with -n, or as subnqn in -r; shardload discover --traddr %s lists them", t.traddr)
	}
	for _, nqn := range []string{t.subnqn, t.hostnqn} {
		if nqn == "" {
			continue
		}
		if err := fabrics.ValidateNQN(nqn); err != nil {
			return nvmetcp.Target{}, usagef("%s", strings.TrimPrefix(err.Error(), "fabrics: "))
		}
	}
	addr := t.traddr
	if t.trsvcid != "" {
		if n, err := strconv.ParseUint(t.trsvcid, 10, 16); err != nil || n == 0 {
			return nvmetcp.Target{}, usagef("port %q: want a number from 1 to 65535", t.trsvcid)
		}
		addr = net.JoinHostPort(strings.Trim(addr, "[]"), t.trsvcid)
	}
	return nvmetcp.Target{Addr: addr, NQN: t.subnqn, HostTraddr: t.hostaddr}, nil
}
