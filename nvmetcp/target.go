package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
)

// Ports that are used when an address has none.
const (
	DefaultPort          = "4420" // NVM subsystems
	DefaultDiscoveryPort = "8009" // discovery subsystems
)

// Target says where a subsystem is and how to get there.
type Target struct {
	// Addr is the address, "host:port" or just "host", with IPv6 addresses in brackets when there
	// is a port. Names are resolved each time a connection to a new controller is made. The port
	// defaults to 4420, and to 8009 for discovery.
	Addr string
	// NQN is the subsystem's name. For discovery it may be empty: the well-known discovery NQN.
	NQN string
	// HostTraddr is the IP address to connect from, "" for what the routes say.
	HostTraddr string
	// HostIface is the network interface to connect through, "" for what the routes say. Linux only.
	HostIface string
}

// withPort returns addr with the default port where it has none.
func withPort(addr, port string) (string, error) {
	if addr == "" {
		return "", errors.New("nvmetcp: Target.Addr is empty; want an address like 192.0.2.10:4420")
	}
	if ip, err := netip.ParseAddr(addr); err == nil { // an IPv6 address has colons but no port
		return net.JoinHostPort(ip.String(), port), nil
	}
	host, p, err := net.SplitHostPort(addr)
	if ae := (*net.AddrError)(nil); errors.As(err, &ae) && ae.Err == "missing port in address" {
		host, p, err = net.SplitHostPort(addr + ":" + port) // which "[2001:db8::1]x" still does not have
	}
	if err != nil {
		return "", fmt.Errorf("nvmetcp: Target.Addr %q: %w; want an address like 192.0.2.10:4420 or [2001:db8::1]:4420", addr, err)
	}
	if host == "" {
		return "", fmt.Errorf("nvmetcp: Target.Addr %q has no host; want an address like 192.0.2.10:4420", addr)
	}
	if n, err := strconv.ParseUint(p, 10, 16); err != nil || n == 0 {
		return "", fmt.Errorf("nvmetcp: Target.Addr %q: port %q is not a number from 1 to 65535", addr, p)
	}
	return net.JoinHostPort(host, p), nil
}

// dial makes a TCP connection to addr, and notes what is not as o says. The dialer never blocks a thread, so
// that one slow target delays nobody's keep alive.
func (t *Target) dial(ctx context.Context, addr string, o *Options) (conn net.Conn, notes []string, err error) {
	d := net.Dialer{Timeout: o.DialTimeout, KeepAliveConfig: keepAliveConfig(o.KeepAlive)}
	if t.HostTraddr != "" {
		ip, err := netip.ParseAddr(t.HostTraddr)
		if err != nil {
			return nil, nil, fmt.Errorf("HostTraddr %q is not an IP address", t.HostTraddr)
		}
		d.LocalAddr = net.TCPAddrFromAddrPort(netip.AddrPortFrom(ip, 0))
	}
	if d.Control, err = o.Socket.prepare(t.HostIface); err != nil {
		return nil, nil, err
	}
	if conn, err = d.DialContext(ctx, "tcp", addr); err != nil {
		return nil, nil, err
	}
	if notes, err = o.Socket.finish(conn); err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, notes, nil
}
