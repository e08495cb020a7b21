package capture

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"slices"
	"testing"
	"time"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
)

// block is a pcapng block.
func block(order byteOrder, typ uint32, body ...[]byte) []byte {
	b := slices.Concat(body...)
	for len(b)%4 != 0 {
		b = append(b, 0)
	}
	out := order.AppendUint32(nil, typ)
	out = order.AppendUint32(out, uint32(len(b)+12))
	out = append(out, b...)
	return order.AppendUint32(out, uint32(len(b)+12))
}

// binary.ByteOrder cannot append, but both orders can.
type byteOrder interface {
	binary.ByteOrder
	binary.AppendByteOrder
}

func u32(order byteOrder, v ...uint32) (b []byte) {
	for _, v := range v {
		b = order.AppendUint32(b, v)
	}
	return b
}

func sectionBlock(order byteOrder) []byte {
	return block(order, sectionID, u32(order, orderMark), order.AppendUint16(nil, 1), order.AppendUint16(nil, 0), u32(order, 1<<32-1, 1<<32-1))
}

func ifaceBlock(order byteOrder, link uint16, snap uint32, options ...byte) []byte {
	return block(order, 1, order.AppendUint16(nil, link), []byte{0, 0}, u32(order, snap), options)
}

func packetBlock(order byteOrder, iface uint32, stamp uint64, data []byte) []byte {
	n := uint32(len(data))
	return block(order, 6, u32(order, iface, uint32(stamp>>32), uint32(stamp), n, n), data)
}

// TestPcapng: both byte orders, several interfaces and sections, all packet blocks, resolutions and
// offsets, blocks that mean nothing here.
func TestPcapng(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{Header: true}, 0)
	c.traffic(1)
	at := func(i int) []byte { return tr.bytes(&tr.packets[i], "Ethernet") }
	raw := func(i int) []byte { return tr.bytes(&tr.packets[i], "Raw") }
	for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
		nano := slices.Concat(order.AppendUint16(nil, 9), order.AppendUint16(nil, 1), []byte{9, 0, 0, 0},
			order.AppendUint16(nil, 14), order.AppendUint16(nil, 8), order.AppendUint64(nil, 1_000_000_000), []byte{0, 0, 0, 0})
		binaryRes := slices.Concat(order.AppendUint16(nil, 9), order.AppendUint16(nil, 1), []byte{0x80 | 10, 0, 0, 0})
		file := slices.Concat(
			sectionBlock(order),
			block(order, 0xbad, make([]byte, 3000)),
			ifaceBlock(order, 1, 0),
			packetBlock(order, 0, uint64(start.UnixMicro()), at(0)),
			ifaceBlock(order, 101, 1<<18, nano...),
			packetBlock(order, 1, uint64(start.UnixNano())-1e18, raw(1)),
			block(order, 2, order.AppendUint16(nil, 0), []byte{0, 7}, u32(order, 0, 5, uint32(len(at(2))), uint32(len(at(2)))), at(2)),
			block(order, 3, u32(order, uint32(len(at(3)))), at(3)),
			sectionBlock(binary.BigEndian),
			ifaceBlock(binary.BigEndian, 1, 0, func() []byte {
				if order == binary.BigEndian {
					return binaryRes
				}
				return nil
			}()...),
		)
		for i := 4; i < len(tr.packets); i++ {
			file = append(file, packetBlock(binary.BigEndian, 0, 1024*uint64(i), at(i))...)
		}
		r := read(Config{}, file)
		requireAll(t, r, c)
		require.True(t, r.pdus[0].Time.IsZero(), "a simple packet block has no time")
		want := time.Unix(0, 4*1024_000).UTC()
		if order == binary.BigEndian {
			want = time.Unix(4, 0).UTC()
		}
		require.Equal(t, want, r.pdus[1].Time)

		src, err := newSource(bytes.NewReader(file))
		require.NoError(t, err)
		for i := range 2 {
			p, err := src.next()
			require.NoError(t, err)
			require.Equal(t, start, p.time, "packet %d", i)
		}

		for n := 4; n < 3600; n++ { // an end inside a block is not the end
			r := read(Config{}, file[:n])
			_, fine := map[int]bool{28: true, 28 + 3012: true}[n]
			if len(r.errs) == 0 {
				_, err := newSource(bytes.NewReader(file[:n]))
				require.NoError(t, err)
				continue
			}
			require.False(t, fine)
			require.ErrorIs(t, r.errs[0], io.ErrUnexpectedEOF, "%d bytes", n)
		}
	}
}

// TestPcapngOfOthers reads what gopacket writes.
func TestPcapngOfOthers(t *testing.T) {
	tr, conns := several(t, 0, 999)
	var out bytes.Buffer
	w, err := pcapgo.NewNgWriter(&out, layers.LinkTypeEthernet)
	require.NoError(t, err)
	for i := range tr.packets {
		b := tr.bytes(&tr.packets[i], "Ethernet")
		require.NoError(t, w.WritePacket(gopacket.CaptureInfo{Timestamp: start, CaptureLength: len(b), Length: len(b)}, b))
	}
	require.NoError(t, w.Flush())
	r := read(Config{}, out.Bytes())
	requireAll(t, r, conns...)
	require.Equal(t, start, r.pdus[0].Time)
}

// TestPcapOfOthers: both byte orders and resolutions.
func TestPcapOfOthers(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4).handshake().ic(pdu.Digests{}, 0)
	for _, order := range []byteOrder{binary.LittleEndian, binary.BigEndian} {
		for magic, unit := range map[uint32]int{0xA1B2C3D4: 1000, 0xA1B23C4D: 1} {
			const link = 0x54000000 | 1 // the upper bits tell of a frame check sequence
			file := slices.Concat(u32(order, magic), order.AppendUint16(nil, 2), order.AppendUint16(nil, 4), u32(order, 0, 0, 0, link))
			for i := range tr.packets {
				b := tr.bytes(&tr.packets[i], "Ethernet")
				n := uint32(len(b))
				file = slices.Concat(file, u32(order, uint32(start.Unix()), uint32(start.Nanosecond()/unit), n, n), b)
			}
			r := read(Config{}, file)
			requireAll(t, r, c)
			require.Equal(t, start, r.pdus[0].Time)
		}
	}
}

// TestSimplePacketBlock: its captured length is not written down, but follows from the interface's limit.
func TestSimplePacketBlock(t *testing.T) {
	le := binary.LittleEndian
	for _, v := range []struct{ snap, length, block, want int }{
		{0, 60, 60, 60}, {0, 57, 60, 57}, {42, 60, 44, 42}, {100, 60, 60, 60}, {100, 200, 100, 100}, {200, 300, 100, 100},
	} {
		file := slices.Concat(sectionBlock(le), ifaceBlock(le, 1, uint32(v.snap)), block(le, 3, u32(le, uint32(v.length)), make([]byte, v.block)))
		s, err := newSource(bytes.NewReader(file))
		require.NoError(t, err)
		p, err := s.next()
		require.NoError(t, err)
		require.Len(t, p.data, v.want, "%+v", v)
	}
}

// TestHostileFile: lengths, counts and resolutions that lie.
func TestHostileFile(t *testing.T) {
	le := binary.LittleEndian
	head := slices.Concat(sectionBlock(le), ifaceBlock(le, 1, 0))
	length := func(b []byte, n uint32) []byte {
		b = bytes.Clone(b)
		le.PutUint32(b[4:], n)
		return b
	}
	p := packetBlock(le, 0, 0, make([]byte, 60))
	for name, file := range map[string][]byte{
		"section of 2^32-4 bytes":   length(sectionBlock(le), 1<<32-4),
		"section of 12 bytes":       length(sectionBlock(le), 12),
		"section of 30 bytes":       length(sectionBlock(le), 30),
		"byte order":                slices.Concat(sectionBlock(le)[:8], make([]byte, 20)),
		"version 2":                 slices.Concat(sectionBlock(le)[:12], []byte{2}, sectionBlock(le)[13:]),
		"packet of 2^32-4 bytes":    append(bytes.Clone(head), length(p, 1<<32-4)...),
		"unknown of 2^32-4 bytes":   append(bytes.Clone(head), length(block(le, 77), 1<<32-4)...),
		"block of 0 bytes":          append(bytes.Clone(head), length(p, 0)...),
		"block of 13 bytes":         append(bytes.Clone(head), length(p, 13)...),
		"short packet block":        append(bytes.Clone(head), block(le, 6, make([]byte, 16))...),
		"short simple block":        append(bytes.Clone(head), block(le, 3)...),
		"short interface":           append(bytes.Clone(head), block(le, 1, make([]byte, 4))...),
		"no such interface":         append(bytes.Clone(head), packetBlock(le, 1, 0, nil)...),
		"no interface":              append(sectionBlock(le), p...),
		"captured length":           append(bytes.Clone(head), block(le, 6, u32(le, 0, 0, 0, 64, 64), make([]byte, 60))...),
		"captured length 2^32-1":    append(bytes.Clone(head), block(le, 6, u32(le, 0, 0, 0, 1<<32-1, 64), make([]byte, 60))...),
		"option length":             append(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 8, 0, 6, 0, 0, 0)...),
		"resolution 10^-20":         append(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 1, 0, 20, 0, 0, 0)...),
		"resolution 2^-64":          append(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 1, 0, 0xc0, 0, 0, 0)...),
		"pcap captured length 2^31": slices.Concat(u32(le, 0xA1B2C3D4, 0x00040002, 0, 0, 0, 1), u32(le, 0, 0, 1<<31, 1<<31)),
	} {
		t.Run(name, func(t *testing.T) {
			r := read(Config{}, file)
			require.Len(t, r.errs, 1)
			require.Empty(t, r.pdus)
			switch name { // by what it says, not by what happens when it is believed
			case "version 2":
				require.ErrorContains(t, r.errs[0], "version")
			case "unknown of 2^32-4 bytes":
				require.ErrorIs(t, r.errs[0], io.ErrUnexpectedEOF)
			default:
				require.ErrorContains(t, r.errs[0], "damaged")
			}
		})
	}
	for name, file := range map[string][]byte{ // strange, but no reason to stop
		"resolution 2^-63, far away": slices.Concat(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 1, 0, 0xbf, 0, 0, 0), packetBlock(le, 0, 1<<64-1, make([]byte, 60))),
		"resolution 1 s":             slices.Concat(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 1, 0, 0, 0, 0, 0), packetBlock(le, 0, 1<<64-1, make([]byte, 60))),
		"resolution 10^-19":          slices.Concat(sectionBlock(le), ifaceBlock(le, 1, 0, 9, 0, 1, 0, 19, 0, 0, 0), packetBlock(le, 0, 1<<64-1, make([]byte, 60))),
	} {
		t.Run(name, func(t *testing.T) {
			require.Empty(t, read(Config{}, file).errs)
		})
	}
	many := bytes.NewBuffer(sectionBlock(le))
	for range maxIfaces + 1 {
		many.Write(ifaceBlock(le, 1, 0))
	}
	require.ErrorContains(t, read(Config{}, many.Bytes()).errs[0], fmt.Sprint(maxIfaces))
}
