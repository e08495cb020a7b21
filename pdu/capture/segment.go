package capture

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
)

// segment is one TCP segment.
type segment struct {
	src, dst netip.AddrPort
	syn, ack bool
	piece
}

// piece is a piece of a stream. What a short snapshot length cut off stands behind data.
type piece struct {
	seq     uint32
	data    []byte
	missing int // bytes behind data that the segment had and the capture has not
}

func (p *piece) len() int { return len(p.data) + p.missing }

const linkSLL2 = 276 // LINKTYPE_LINUX_SLL2, which gopacket does not know

// tcpSegment takes the headers off a packet. ok is false for anything but TCP. The error is a link
// type that is not known.
func tcpSegment(p packet) (seg segment, ok bool, err error) {
	var first gopacket.Decoder
	switch p.link {
	case int(layers.LinkTypeEthernet), int(layers.LinkTypeLinuxSLL), int(layers.LinkTypeNull), int(layers.LinkTypeLoop),
		int(layers.LinkTypeRaw), int(layers.LinkTypeIPv4), int(layers.LinkTypeIPv6):
		first = layers.LinkType(p.link)
	case linkSLL2:
		if len(p.data) < 20 {
			return seg, false, nil
		}
		first = layers.EthernetType(binary.BigEndian.Uint16(p.data))
		p.data = p.data[20:]
	default:
		return seg, false, fmt.Errorf("link type %d is not supported (Ethernet, Linux cooked, loopback and raw IP are)", p.link)
	}
	// Panics of the decoders become an error layer.
	pkt := gopacket.NewPacket(p.data, first, gopacket.DecodeOptions{NoCopy: true})
	size := 0 // of what stands behind the IP header, as that says
	var src, dst []byte
	for _, l := range pkt.Layers() {
		switch l := l.(type) {
		case *layers.IPv4:
			src, dst = l.SrcIP, l.DstIP
			size = int(l.Length) - len(l.Contents)
		case *layers.IPv6:
			src, dst = l.SrcIP, l.DstIP
			size = int(l.Length)
		case *layers.TCP:
			if l.DataOffset < 5 || src == nil {
				return seg, false, nil
			}
			size -= int(l.DataOffset) * 4
			if size < 0 {
				return seg, false, nil
			}
			seg.src, seg.dst = addrPort(src, uint16(l.SrcPort)), addrPort(dst, uint16(l.DstPort))
			seg.syn, seg.ack = l.SYN, l.ACK
			seg.seq = l.Seq
			seg.data = l.Payload[:min(size, len(l.Payload))]
			seg.missing = size - len(seg.data)
			return seg, true, nil
		default: // an extension header of IPv6
			size -= len(l.LayerContents())
		}
	}
	return seg, false, nil
}

func addrPort(ip []byte, port uint16) netip.AddrPort {
	a, _ := netip.AddrFromSlice(ip)
	return netip.AddrPortFrom(a.Unmap(), port)
}
