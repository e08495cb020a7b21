// Package raw moves the bytes that NVMe/TCP would move over the same kind of socket without NVMe, so
// that a measurement of one can be held against the other. It needs Linux.
package raw

import (
	"encoding/binary"
	"fmt"
	"time"
)

// Kind is how the bytes move.
type Kind uint8

// The kinds. A ping-pong sends what an NVMe/TCP host sends for one command, a capsule of 72 bytes, and
// gets what it gets, a header of 24 bytes; the data is with the one or the other.
const (
	Stream   Kind = iota // one direction, call after call
	PingPong             // one I/O at a time, there and back
)

// Bytes of a command capsule, and of a C2HData header or a response capsule.
const (
	requestHeader  = 72
	responseHeader = 24
)

// Config says what is to be moved.
type Config struct {
	Addr         string // of a [Serve]
	Kind         Kind
	Write        bool // data goes to the server
	Size         int  // bytes of data of an I/O, and of a call in a stream
	Depth        int  // buffers that a stream takes turns with
	Blocking     bool // this side sleeps in its calls, and the server when it has polled a little; otherwise both poll
	CPU          int  // for the thread; less than 0: not pinned
	Warmup, Time time.Duration
}

// MaxSize bounds what a server takes for an I/O size.
const MaxSize = 64 << 20

func (c *Config) check() error {
	if c.Size < 1 || c.Size > MaxSize || c.Depth < 1 || c.Depth > 4096 {
		return fmt.Errorf("I/O size %d and queue depth %d: want 1 to %d bytes and 1 to 4096", c.Size, c.Depth, MaxSize)
	}
	return nil
}

// sizes are the lengths of one request and one response of a ping-pong.
func (c *Config) sizes() (request, response int) {
	if c.Write {
		return requestHeader + c.Size, responseHeader
	}
	return requestHeader, responseHeader + c.Size
}

// hello is what a client says first: the server's part of the configuration.
const (
	helloMagic = "NVSRAW1\n"
	helloLen   = 16
)

func (c *Config) hello() []byte {
	b := append(make([]byte, 0, helloLen), helloMagic...)
	b = append(b, byte(c.Kind), flag(c.Write), flag(c.Blocking), 0)
	return binary.LittleEndian.AppendUint32(b, uint32(c.Size))
}

func flag(b bool) byte {
	if b {
		return 1
	}
	return 0
}

func parseHello(b []byte) (Config, error) {
	c := Config{Depth: 1, CPU: -1}
	if len(b) != helloLen || string(b[:8]) != helloMagic || b[8] > byte(PingPong) {
		return c, fmt.Errorf("this is no nvmeperf raw client: it began with %q", b)
	}
	c.Kind, c.Write, c.Blocking = Kind(b[8]), b[9] != 0, b[10] != 0
	c.Size = int(binary.LittleEndian.Uint32(b[12:]))
	return c, c.check()
}
