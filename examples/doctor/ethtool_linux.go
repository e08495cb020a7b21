package main

import (
	"fmt"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ifreq is struct ifreq of SIOCETHTOOL.
type ifreq struct {
	name [unix.IFNAMSIZ]byte
	data unsafe.Pointer
	_    [16]byte
}

// ethtool structures, as linux/ethtool.h has them.
type (
	ethtoolValue struct{ cmd, data uint32 }
	ethtoolRings struct {
		cmd                                 uint32
		rxMax, rxMiniMax, rxJumboMax, txMax uint32
		rx, rxMini, rxJumbo, tx             uint32
	}
	ethtoolChannels struct {
		cmd                                 uint32
		rxMax, txMax, otherMax, combinedMax uint32
		rx, tx, other, combined             uint32
	}
)

// askEthtool asks a network interface's driver. Reading needs no privilege. What the driver does not know stays nil.
func askEthtool(ifname string) (e ethtoolFacts, err error) {
	if len(ifname) >= unix.IFNAMSIZ {
		return e, fmt.Errorf("interface name %q is too long", ifname)
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return e, os.NewSyscallError("socket", err)
	}
	defer unix.Close(fd)
	ask := func(arg unsafe.Pointer) error {
		r := ifreq{data: arg}
		copy(r.name[:], ifname)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&r))); errno != 0 {
			return os.NewSyscallError("SIOCETHTOOL", errno)
		}
		return nil
	}
	for _, flag := range []struct {
		cmd uint32
		on  **bool
	}{{unix.ETHTOOL_GTSO, &e.TSO}, {unix.ETHTOOL_GGRO, &e.GRO}, {unix.ETHTOOL_GRXCSUM, &e.RXChecksum}} {
		v := ethtoolValue{cmd: flag.cmd}
		if err := ask(unsafe.Pointer(&v)); err != nil {
			return e, err // any driver knows these
		}
		on := v.data != 0
		*flag.on = &on
	}
	if r := (ethtoolRings{cmd: unix.ETHTOOL_GRINGPARAM}); ask(unsafe.Pointer(&r)) == nil {
		e.Ring, e.TXRing = &of{int(r.rx), int(r.rxMax)}, &of{int(r.tx), int(r.txMax)}
	}
	if c := (ethtoolChannels{cmd: unix.ETHTOOL_GCHANNELS}); ask(unsafe.Pointer(&c)) == nil {
		e.Channels = &of{int(c.rx) + int(c.combined), int(max(c.rxMax, c.combinedMax))}
		e.separate = c.combinedMax == 0
	}
	return e, nil
}
