package nvmetest

import (
	"math/rand/v2"
	"net"
	"sync"
)

// wire is what goes wrong below the PDUs of one connection.
type wire struct {
	mu         sync.Mutex
	reset      bool
	closeSent  int64 // 0 = never
	closeRecv  int64
	stallSent  int64
	sent       int64
	mangleRate float64
	rng        *rand.Rand
	scratch    []byte
}

func (c *Conn) setWire(f *ConnFaults, n uint64) {
	if f.CloseAfterSent == 0 && f.CloseAfterReceived == 0 && f.StallAfterSent == 0 && f.MangleRate == 0 {
		return
	}
	w := &wire{reset: f.Reset, closeSent: f.CloseAfterSent, closeRecv: f.CloseAfterReceived, stallSent: f.StallAfterSent}
	w.mangle(f.MangleSeed+n, f.MangleRate)
	c.wire.Store(w)
}

// Mangle damages the bytes that the target sends from now on: on average one in 1/rate bytes is
// flipped, dropped, doubled, or replaced by a random run, or the rest of what is sent at once is cut
// off. The same seed does the same damage to the same stream. Rate 0 ends it.
func (c *Conn) Mangle(seed uint64, rate float64) {
	w := &wire{}
	if !c.wire.CompareAndSwap(nil, w) {
		w = c.wire.Load()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.mangle(seed, rate)
}

func (w *wire) mangle(seed uint64, rate float64) {
	w.mangleRate = rate
	w.rng = rand.New(rand.NewPCG(seed, 0x6e766d65))
}

// CloseAfter closes the connection once that many more bytes were sent to the host; with reset by a
// TCP reset.
func (c *Conn) CloseAfter(n int64, reset bool) {
	w := &wire{}
	if !c.wire.CompareAndSwap(nil, w) {
		w = c.wire.Load()
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.closeSent, w.reset = w.sent+n, reset
}

// write sends the slices of a batch, with all that goes wrong.
func (w *wire) write(c *Conn, vec net.Buffers) error {
	for _, p := range vec {
		if err := w.writeOne(c, p); err != nil {
			return err
		}
	}
	return nil
}

func (w *wire) writeOne(c *Conn, p []byte) error {
	w.mu.Lock()
	if w.mangleRate > 0 {
		w.scratch = w.damage(w.scratch[:0], p)
		p = w.scratch
	}
	end, stall := false, false
	if w.stallSent > 0 && w.sent+int64(len(p)) >= w.stallSent {
		p, stall = p[:w.stallSent-w.sent], true
	}
	if w.closeSent > 0 && w.sent+int64(len(p)) >= w.closeSent {
		p, end, stall = p[:w.closeSent-w.sent], true, false
	}
	w.sent += int64(len(p))
	reset := w.reset
	w.mu.Unlock()
	if len(p) > 0 {
		if _, err := c.nc.Write(p); err != nil {
			return err
		}
	}
	switch {
	case stall:
		return errStall
	case end && reset:
		c.Reset()
		return net.ErrClosed
	case end:
		return net.ErrClosed
	}
	return nil
}

// received counts what came, and ends the connection where that was enough.
func (w *wire) received(c *Conn, err error) error {
	w.mu.Lock()
	end, reset := w.closeRecv > 0 && c.received >= w.closeRecv, w.reset
	w.mu.Unlock()
	if !end {
		return err
	}
	if reset {
		c.Reset()
	}
	return errEnd
}

// damage appends p to b, with faults.
func (w *wire) damage(b, p []byte) []byte {
	for len(p) > 0 {
		// The distance to the next fault, so that the random numbers are few.
		n := int(min(w.rng.ExpFloat64()/w.mangleRate, 1<<30))
		if n >= len(p) {
			return append(b, p...)
		}
		b = append(b, p[:n]...)
		p = p[n:]
		switch w.rng.IntN(16) {
		case 0:
			return b
		case 1:
			p = p[min(len(p), 1+w.rng.IntN(64)):]
		case 2:
			b = append(b, p[:min(len(p), 1+w.rng.IntN(64))]...)
		case 3:
			for range 1 + w.rng.IntN(32) {
				b = append(b, byte(w.rng.Uint32()))
			}
		default:
			b = append(b, p[0]^1<<w.rng.IntN(8))
			p = p[1:]
		}
	}
	return b
}
