package capture

import (
	"encoding/binary"
	"fmt"
	"io"
	"math/bits"
	"time"
)

// The readers of gopacket's pcapgo trust the lengths, resolutions and option sizes of the file, and
// take a pcapng that is cut off for a whole one. A capture may come from anywhere, so these do not.

const (
	maxPacket = 1 << 20            // captured bytes of one packet; the largest that Linux makes is half of it
	maxBlock  = maxPacket + 64<<10 // a pcapng block that is looked at
	maxIfaces = 1 << 16            // interfaces of a pcapng section
	maxSecs   = 1 << 40            // a time stamp beyond it is nonsense, but no reason to stop
	sectionID = 0x0A0D0D0A         // type of the block that begins a pcapng section
	orderMark = uint32(0x1A2B3C4D) // and its byte order
)

// packet is one captured packet. data is valid until the next one is read.
type packet struct {
	link int // LINKTYPE_ number
	time time.Time
	data []byte
}

type source interface {
	next() (packet, error) // io.EOF at a proper end
}

// newSource finds out whether r is a pcap or a pcapng.
func newSource(r io.Reader) (source, error) {
	var head [24]byte
	if _, err := io.ReadFull(r, head[:4]); err != nil {
		return nil, fmt.Errorf("capture: no pcap or pcapng: shorter than 4 bytes: %w", err)
	}
	if binary.LittleEndian.Uint32(head[:]) == sectionID {
		s := &pcapng{r: r}
		if err := s.section(); err != nil {
			return nil, fmt.Errorf("capture: pcapng section header: %w", err)
		}
		return s, nil
	}
	s := &pcap{r: r}
	for _, order := range []binary.ByteOrder{binary.LittleEndian, binary.BigEndian} {
		switch order.Uint32(head[:]) {
		case 0xA1B2C3D4:
			s.order, s.unit = order, 1000
		case 0xA1B23C4D:
			s.order, s.unit = order, 1
		}
	}
	if s.order == nil {
		return nil, fmt.Errorf("capture: no pcap or pcapng: begins with % x", head[:4])
	}
	if _, err := io.ReadFull(r, head[4:]); err != nil {
		return nil, fmt.Errorf("capture: pcap header: %w", eof(err))
	}
	s.link = int(s.order.Uint32(head[20:]) & 0xffff) // the upper bits tell of frame check sequences
	return s, nil
}

// eof turns the end of the file where more must follow into an error.
func eof(err error) error {
	if err == io.EOF {
		return io.ErrUnexpectedEOF
	}
	return err
}

type pcap struct {
	r     io.Reader
	order binary.ByteOrder
	unit  uint64 // nanoseconds per unit of the fraction
	link  int
	head  [16]byte
	buf   []byte
}

func (s *pcap) next() (packet, error) {
	if _, err := io.ReadFull(s.r, s.head[:]); err != nil {
		return packet{}, err
	}
	n := s.order.Uint32(s.head[8:])
	if n > maxPacket {
		return packet{}, fmt.Errorf("damaged: captured length %d", n)
	}
	if int(n) > cap(s.buf) {
		s.buf = make([]byte, n)
	}
	s.buf = s.buf[:n]
	if _, err := io.ReadFull(s.r, s.buf); err != nil {
		return packet{}, eof(err)
	}
	frac := uint64(s.order.Uint32(s.head[4:])) * s.unit
	t := time.Unix(int64(s.order.Uint32(s.head[:])), int64(frac)).UTC()
	return packet{s.link, t, s.buf}, nil
}

type pcapng struct {
	r      io.Reader
	order  binary.ByteOrder
	ifaces []iface
	head   [12]byte
	buf    []byte
}

// iface is what an interface description block says.
type iface struct {
	link   int
	snap   uint32 // longest packet; 0 = no limit
	units  uint64 // of time stamps, per second
	offset uint64 // seconds to add
}

// section reads the rest of a section header block, whose type was read.
func (s *pcapng) section() error {
	if _, err := io.ReadFull(s.r, s.head[:8]); err != nil {
		return eof(err)
	}
	switch orderMark {
	case binary.LittleEndian.Uint32(s.head[4:]):
		s.order = binary.LittleEndian
	case binary.BigEndian.Uint32(s.head[4:]):
		s.order = binary.BigEndian
	default:
		return fmt.Errorf("damaged: byte order % x", s.head[4:8])
	}
	n := s.order.Uint32(s.head[:])
	if n < 28 || n > maxBlock || n%4 != 0 {
		return fmt.Errorf("damaged: length %d", n)
	}
	if err := s.body(n - 12); err != nil {
		return err
	}
	if major := s.order.Uint16(s.buf); major != 1 {
		return fmt.Errorf("version %d of pcapng is not known", major)
	}
	s.ifaces = s.ifaces[:0]
	return nil
}

// body reads n bytes to buf.
func (s *pcapng) body(n uint32) error {
	if int(n) > cap(s.buf) {
		s.buf = make([]byte, n)
	}
	s.buf = s.buf[:n]
	_, err := io.ReadFull(s.r, s.buf)
	return eof(err)
}

func (s *pcapng) next() (packet, error) {
	for {
		if _, err := io.ReadFull(s.r, s.head[:4]); err != nil {
			return packet{}, err
		}
		typ := s.order.Uint32(s.head[:])
		if typ == sectionID {
			if err := s.section(); err != nil {
				return packet{}, err
			}
			continue
		}
		if _, err := io.ReadFull(s.r, s.head[4:8]); err != nil {
			return packet{}, eof(err)
		}
		n := s.order.Uint32(s.head[4:])
		if n < 12 || n%4 != 0 {
			return packet{}, fmt.Errorf("damaged: pcapng block of %d bytes", n)
		}
		n -= 8 // body and the length once more
		switch typ {
		case 1, 2, 3, 6:
		default: // statistics, names, secrets
			if _, err := io.CopyN(io.Discard, s.r, int64(n)); err != nil {
				return packet{}, eof(err)
			}
			continue
		}
		if n > maxBlock {
			return packet{}, fmt.Errorf("damaged: pcapng block of %d bytes", n)
		}
		if err := s.body(n); err != nil {
			return packet{}, err
		}
		p, ok, err := s.block(typ, s.buf[:n-4])
		if err != nil || ok {
			return p, err
		}
	}
}

// block looks into a block. ok means that it is a packet.
func (s *pcapng) block(typ uint32, b []byte) (p packet, ok bool, err error) {
	var (
		id, size uint32
		stamp    uint64
		head     int
	)
	switch need := map[uint32]int{1: 8, 2: 20, 3: 4, 6: 20}[typ]; {
	case len(b) < need:
		return p, false, fmt.Errorf("damaged: pcapng block of type %d with %d bytes", typ, len(b))
	case typ == 1:
		return p, false, s.iface(b)
	case typ == 3:
		head, size = need, min(s.order.Uint32(b), uint32(len(b)-need))
	default:
		head, size = need, s.order.Uint32(b[12:])
		stamp = uint64(s.order.Uint32(b[4:]))<<32 | uint64(s.order.Uint32(b[8:]))
		if id = s.order.Uint32(b); typ == 2 {
			id = uint32(s.order.Uint16(b))
		}
	}
	if int64(id) >= int64(len(s.ifaces)) {
		return p, false, fmt.Errorf("damaged: interface %d of %d", id, len(s.ifaces))
	}
	i := &s.ifaces[id]
	if typ == 3 && i.snap != 0 {
		size = min(size, i.snap)
	}
	if uint64(size) > uint64(len(b)-head) {
		return p, false, fmt.Errorf("damaged: captured length %d in a block of %d bytes", size, len(b))
	}
	p = packet{link: i.link, data: b[head : head+int(size)]}
	if typ != 3 {
		p.time = i.time(stamp)
	}
	return p, true, nil
}

// iface adds the interface that b describes.
func (s *pcapng) iface(b []byte) error {
	if len(s.ifaces) == maxIfaces {
		return fmt.Errorf("damaged: more than %d interfaces", maxIfaces)
	}
	i := iface{link: int(s.order.Uint16(b)), snap: s.order.Uint32(b[4:]), units: 1e6}
	for b = b[8:]; len(b) >= 4; {
		code, n := s.order.Uint16(b), int(s.order.Uint16(b[2:]))
		if code == 0 {
			break
		}
		b = b[4:]
		if n > len(b) {
			return fmt.Errorf("damaged: option %d of %d bytes in an interface block", code, n)
		}
		switch {
		case code == 9 && n == 1: // if_tsresol
			exp := int(b[0] & 0x7f)
			i.units = 1
			if b[0]&0x80 != 0 && exp < 64 {
				i.units <<= exp
			} else if b[0]&0x80 == 0 && exp < 20 {
				for range exp {
					i.units *= 10
				}
			} else {
				return fmt.Errorf("damaged: time resolution %#02x", b[0])
			}
		case code == 14 && n == 8: // if_tsoffset
			i.offset = s.order.Uint64(b)
		}
		b = b[min(len(b), (n+3)&^3):]
	}
	s.ifaces = append(s.ifaces, i)
	return nil
}

// time converts a time stamp.
func (i *iface) time(stamp uint64) time.Time {
	sec := stamp/i.units + i.offset
	if sec > maxSecs {
		return time.Time{}
	}
	hi, lo := bits.Mul64(stamp%i.units, uint64(time.Second))
	ns, _ := bits.Div64(hi, lo, i.units) // hi < units, as the remainder is
	return time.Unix(int64(sec), int64(ns)).UTC()
}
