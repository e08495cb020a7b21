package capture

import (
	"cmp"
	"fmt"
	"io"
	"iter"
	"net/netip"
	"time"
)

// Config says what to decode. The zero value is good.
type Config struct {
	// Ports are the TCP ports of controllers; nil means 4420 and 8009. Connections on other ports
	// are decoded too when they begin with an ICReq; on these ports whatever cannot be decoded is
	// reported as well.
	Ports []uint16
	// MaxBuffer is how many bytes of one direction of one connection are kept while a PDU is not
	// complete or a lost segment may still come, and so the longest PDU; 0 means 16 MiB.
	MaxBuffer int
}

// Conn is a connection: one queue.
type Conn struct {
	Host       netip.AddrPort
	Controller netip.AddrPort
	N          int // connections are numbered from 1, as ports may be used again
}

// String returns "host > controller".
func (c Conn) String() string { return fmt.Sprintf("%s > %s", c.Host, c.Controller) }

// Read reads a capture with the default [Config].
func Read(r io.Reader) iter.Seq2[PDU, error] { return Config{}.Read(r) }

// Read reads a pcap or pcapng capture to its end and yields its PDUs, in the order in which they
// were completed. r is read once; wrap it in a bufio.Reader if it is neither a file nor in memory.
//
// An error is an [*Error], and reading goes on behind it, unless the capture itself is no capture
// or is damaged: then it is the last. The PDU beside an error is the one that it is about, as far
// as it was there: Time, Frame, Conn and To always, the rest when it was seen.
func (c Config) Read(r io.Reader) iter.Seq2[PDU, error] {
	if c.Ports == nil {
		c.Ports = []uint16{4420, 8009}
	}
	c.MaxBuffer = cmp.Or(c.MaxBuffer, 16<<20)
	return func(yield func(PDU, error) bool) {
		d := decoder{Config: c, yield: yield, conns: map[tuple]*conn{}}
		if err := d.packets(r); err != nil && !d.stopped {
			yield(PDU{Time: d.time, Frame: d.frame}, err)
		}
	}
}

// decoder is one pass over a capture.
type decoder struct {
	Config
	yield    func(PDU, error) bool
	stopped  bool // the consumer has seen enough
	conns    map[tuple]*conn
	opened   int // TCP connections so far
	numbered int // those of them that showed themselves as NVMe/TCP
	now
}

// now is the packet at hand.
type now struct {
	time  time.Time
	frame int
}

func (d *decoder) packets(r io.Reader) error {
	src, err := newSource(r)
	if err != nil {
		return err
	}
	for !d.stopped {
		p, err := src.next()
		if err != nil {
			d.finishAll()
			if err == io.EOF {
				return nil
			}
			return fmt.Errorf("capture: packet %d: %w", d.frame+1, err)
		}
		d.now = now{p.time, d.frame + 1}
		seg, ok, err := tcpSegment(p)
		if err != nil {
			d.finishAll()
			return fmt.Errorf("capture: packet %d: %w", d.frame, err)
		}
		if ok {
			d.segment(seg)
		}
	}
	return nil
}

func (d *decoder) emit(p PDU, err error) {
	if !d.stopped {
		d.stopped = !d.yield(p, err)
	}
}
