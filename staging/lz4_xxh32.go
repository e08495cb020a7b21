package staging

import (
	"encoding/binary"
	"math/bits"
)

// The primes of XXH32.
const (
	xxhPrime1 uint32 = 2654435761
	xxhPrime2 uint32 = 2246822519
	xxhPrime3 uint32 = 3266489917
	xxhPrime4 uint32 = 668265263
	xxhPrime5 uint32 = 374761393
)

// xxh32 is the checksum of LZ4 frames: XXH32 with seed 0, over bytes that come in any portions.
type xxh32 struct {
	lanes [4]uint32
	total uint64
	rest  [16]byte // total%16 bytes that do not fill a stripe yet
}

func newXXH32() *xxh32 {
	p1, p2 := xxhPrime1, xxhPrime2 // variables, since these sums wrap around
	return &xxh32{lanes: [4]uint32{p1 + p2, p2, 0, -p1}}
}

func (h *xxh32) write(p []byte) {
	have := int(h.total % 16)
	h.total += uint64(len(p))
	if have > 0 {
		n := copy(h.rest[have:], p)
		if p = p[n:]; have+n < 16 {
			return
		}
		h.stripes(h.rest[:])
	}
	whole := len(p) &^ 15
	h.stripes(p[:whole])
	copy(h.rest[:], p[whole:])
}

func (h *xxh32) stripes(p []byte) {
	a, b, c, d := h.lanes[0], h.lanes[1], h.lanes[2], h.lanes[3]
	for ; len(p) >= 16; p = p[16:] {
		a = xxhRound(a, binary.LittleEndian.Uint32(p[0:4]))
		b = xxhRound(b, binary.LittleEndian.Uint32(p[4:8]))
		c = xxhRound(c, binary.LittleEndian.Uint32(p[8:12]))
		d = xxhRound(d, binary.LittleEndian.Uint32(p[12:16]))
	}
	h.lanes = [4]uint32{a, b, c, d}
}

func xxhRound(lane, in uint32) uint32 {
	return bits.RotateLeft32(lane+in*xxhPrime2, 13) * xxhPrime1
}

func (h *xxh32) sum() uint32 {
	v := xxhPrime5
	if h.total >= 16 {
		v = bits.RotateLeft32(h.lanes[0], 1) + bits.RotateLeft32(h.lanes[1], 7) + bits.RotateLeft32(h.lanes[2], 12) + bits.RotateLeft32(h.lanes[3], 18)
	}
	v += uint32(h.total)
	p := h.rest[:h.total%16]
	for ; len(p) >= 4; p = p[4:] {
		v = bits.RotateLeft32(v+binary.LittleEndian.Uint32(p)*xxhPrime3, 17) * xxhPrime4
	}
	for _, x := range p {
		v = bits.RotateLeft32(v+uint32(x)*xxhPrime5, 11) * xxhPrime1
	}
	v = (v ^ v>>15) * xxhPrime2
	v = (v ^ v>>13) * xxhPrime3
	return v ^ v>>16
}

func xxh32Of(p []byte) uint32 {
	h := newXXH32()
	h.write(p)
	return h.sum()
}
