package topo

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// routeInterface asks the kernel by which interface packets from src to dst leave. The interface that has the
// address src would often be the same, but need not be: routers announce addresses of loopback and dummy interfaces.
func routeInterface(src, dst netip.Addr) (string, error) {
	src, dst = src.Unmap(), dst.Unmap()
	if zone := dst.Zone(); zone != "" { // link-local addresses name it
		if index, err := net.InterfaceByName(zone); err == nil {
			return index.Name, nil
		}
	}
	index, err := routeIndex(src, dst)
	if err != nil {
		return "", fmt.Errorf("the interface that leads to %v is not known: %w", dst, err)
	}
	ifi, err := net.InterfaceByIndex(index)
	if err != nil {
		return "", fmt.Errorf("the interface that leads to %v has number %d: %w", dst, index, err)
	}
	return ifi.Name, nil
}

// routeIndex makes one RTM_GETROUTE request.
func routeIndex(src, dst netip.Addr) (int, error) {
	if !dst.IsValid() || src.IsValid() && src.Is4() != dst.Is4() {
		return 0, fmt.Errorf("no route from %v to %v can be asked for", src, dst)
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return 0, os.NewSyscallError("netlink socket", err)
	}
	defer unix.Close(fd)
	if err := unix.Sendto(fd, routeRequest(src, dst), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return 0, os.NewSyscallError("RTM_GETROUTE", err)
	}
	b := make([]byte, 16<<10)
	n, _, err := unix.Recvfrom(fd, b, unix.MSG_DONTWAIT) // the kernel has answered before Sendto returned
	if err != nil {
		return 0, os.NewSyscallError("RTM_GETROUTE", err)
	}
	return routeAnswer(b[:n])
}

func routeRequest(src, dst netip.Addr) []byte {
	family := byte(unix.AF_INET6)
	if dst.Is4() {
		family = unix.AF_INET
	}
	ne := binary.NativeEndian
	b := make([]byte, unix.SizeofNlMsghdr, 128) // length, type, flags, sequence, port
	ne.PutUint16(b[4:], unix.RTM_GETROUTE)
	ne.PutUint16(b[6:], unix.NLM_F_REQUEST)
	rtm := [unix.SizeofRtMsg]byte{0: family, 1: byte(dst.BitLen())}
	if src.IsValid() {
		rtm[2] = byte(src.BitLen())
	}
	b = append(b, rtm[:]...)
	attr := func(kind uint16, a netip.Addr) {
		v := a.AsSlice() // 4 or 16 bytes: no padding
		b = ne.AppendUint16(b, uint16(unix.SizeofRtAttr+len(v)))
		b = ne.AppendUint16(b, kind)
		b = append(b, v...)
	}
	attr(unix.RTA_DST, dst)
	if src.IsValid() {
		attr(unix.RTA_SRC, src)
	}
	ne.PutUint32(b, uint32(len(b)))
	return b
}

// routeAnswer returns RTA_OIF of the answer.
func routeAnswer(b []byte) (int, error) {
	messages, err := syscall.ParseNetlinkMessage(b)
	if err != nil {
		return 0, os.NewSyscallError("RTM_GETROUTE", err)
	}
	for i := range messages {
		m := &messages[i]
		switch m.Header.Type {
		case unix.NLMSG_ERROR:
			if len(m.Data) >= 4 {
				return 0, os.NewSyscallError("RTM_GETROUTE", unix.Errno(-int32(binary.NativeEndian.Uint32(m.Data))))
			}
		case unix.RTM_NEWROUTE:
			attrs, err := syscall.ParseNetlinkRouteAttr(m)
			if err != nil {
				return 0, os.NewSyscallError("RTM_GETROUTE", err)
			}
			for _, a := range attrs {
				if a.Attr.Type == unix.RTA_OIF && len(a.Value) >= 4 {
					return int(binary.NativeEndian.Uint32(a.Value)), nil
				}
			}
		}
	}
	return 0, fmt.Errorf("the answer to RTM_GETROUTE names none")
}
