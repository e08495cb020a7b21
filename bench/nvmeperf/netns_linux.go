package main

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// congestionControl is where the kernel says which one new sockets of this network get.
const congestionControl = "/proc/sys/net/ipv4/tcp_congestion_control"

// ownNetwork gives the calling thread a network of its own that has nothing but a loopback with plain
// congestion control, and describes it. The goroutine must be locked to the thread, and stay so.
func ownNetwork() (string, error) {
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return "", fmt.Errorf("unshare: %w; it needs root", err)
	}
	if err := loopbackUp(); err != nil {
		return "", fmt.Errorf("loopback: %w", err)
	}
	if err := os.WriteFile(congestionControl, []byte("reno"), 0); err != nil {
		return "", err
	}
	return "loopback in a network namespace of its own, congestion control reno", nil
}

func loopbackUp() error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	r, err := unix.NewIfreq("lo")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, r); err != nil {
		return err
	}
	r.SetUint16(r.Uint16() | unix.IFF_UP)
	return unix.IoctlIfreq(fd, unix.SIOCSIFFLAGS, r)
}

// plainNetwork describes the network as it is.
func plainNetwork() string {
	cc, err := os.ReadFile(congestionControl)
	if err != nil {
		return "the machine's network"
	}
	return "the machine's network, congestion control " + strings.TrimSpace(string(cc))
}
