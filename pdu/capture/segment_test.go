package capture

import (
	"bytes"
	"testing"

	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
)

// TestSegmentLength: what a segment holds is said by the IP header, less extension headers; padding
// behind it does not count, and what the capture cut off is missing.
func TestSegmentLength(t *testing.T) {
	data := pat(100, 1)
	for _, ends := range [][2]string{{host4, ctrl4}, {host6, ctrl6}} {
		tr := &trace{t: t}
		c := tr.dial(ends[0], ends[1])
		c.packet(pdu.Controller, layers.TCP{ACK: true}, data)
		whole := tr.bytes(&tr.packets[0], "Raw")
		plain := [][]byte{whole}
		if !c.host.Addr().Is4() {
			for _, next := range []byte{0, 60} { // hop-by-hop and destination options: 8 bytes of padding
				b := bytes.Clone(whole[:40])
				b[5] += 8
				b[6] = next
				b = append(b, 6, 0, 1, 4, 0, 0, 0, 0)
				plain = append(plain, append(b, whole[40:]...))
			}
		}
		for _, b := range plain {
			for cut := range 101 {
				seg, ok, err := tcpSegment(packet{link: 101, data: b[:len(b)-cut]})
				require.NoError(t, err)
				require.True(t, ok)
				require.True(t, bytes.Equal(data[:100-cut], seg.data))
				require.Equal(t, cut, seg.missing)
				require.Equal(t, c.host, seg.src)
				require.Equal(t, c.ctrl, seg.dst)
			}
			seg, _, _ := tcpSegment(packet{link: 101, data: append(bytes.Clone(b), 0xee, 0xee, 0xee)})
			require.True(t, bytes.Equal(data, seg.data))
			require.Zero(t, seg.missing)
			for n := range len(b) - 100 { // without the whole header there is no segment
				seg, ok, err := tcpSegment(packet{link: 101, data: b[:n]})
				require.NoError(t, err)
				require.False(t, ok && len(seg.data) > 0)
			}
		}
	}
	for link, good := range map[int]bool{0: true, 1: true, 12: false, 101: true, 108: true, 113: true, 228: true, 229: true, linkSLL2: true, 257: false} {
		_, ok, err := tcpSegment(packet{link: link, data: nil})
		require.False(t, ok)
		require.Equal(t, good, err == nil, "link type %d", link)
	}
}
