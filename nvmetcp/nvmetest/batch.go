package nvmetest

import "net"

// inlineCopy is up to how many bytes data is copied behind its header: a copy is cheaper than an
// element of the vector.
const inlineCopy = 2048

// maxArena is how much memory a batch may keep for the next one, in bytes.
const maxArena = 1 << 20

// batch is what goes out with one vectored write: headers and short data in one arena, long data by
// reference.
type batch struct {
	arena []byte
	cut   int         // how much of the arena is in vec
	vec   net.Buffers // everything in order, but for the end of the arena
	rest  net.Buffers // what is left of vec while it is written
	owned []*buffer   // go back to the pool once written
	cids  []uint16    // commands that end with this batch
	bytes int
	end   closeKind // what happens to the connection after it
	last  int       // where vec ends then: what was gathered later is not sent
}

// closeKind is how a connection is closed.
type closeKind uint8

const (
	stayOpen   closeKind = iota
	closeFIN             // an ordinary close
	closeRST             // a reset, which drops what is under way
	closeHalf            // no more is sent, but what comes is still taken
	sendNoMore           // the host is to close it
)

func (b *batch) empty() bool { return b.bytes == 0 && len(b.arena) == 0 && b.end == stayOpen }

// data appends p, which must not change before the batch is written.
func (b *batch) data(p []byte) {
	if len(p) <= inlineCopy {
		b.arena = append(b.arena, p...)
		return
	}
	b.seal()
	b.vec = append(b.vec, p)
	b.bytes += len(p)
}

// seal brings the end of the arena into the vector. The arena may move when it grows; what is in the
// vector then stays where it was, which does no harm.
func (b *batch) seal() {
	if n := len(b.arena); n > b.cut {
		b.vec = append(b.vec, b.arena[b.cut:n:n])
		b.bytes += n - b.cut
		b.cut = n
	}
}

// close makes what was gathered so far the last that is sent. The first one decides.
func (b *batch) close(end closeKind) {
	if b.end == stayOpen {
		b.seal()
		b.end, b.last = end, len(b.vec)
	}
}

// size is the number of bytes in the batch.
func (b *batch) size() int { return b.bytes + len(b.arena) - b.cut }

// reset empties the batch and returns its buffers.
func (b *batch) reset(pool *buffers) {
	for i, buf := range b.owned {
		pool.put(buf)
		b.owned[i] = nil
	}
	clear(b.vec)
	b.vec, b.rest, b.owned, b.cids = b.vec[:0], nil, b.owned[:0], b.cids[:0]
	b.cut, b.bytes, b.end = 0, 0, stayOpen
	if cap(b.arena) > maxArena {
		b.arena = nil
	}
	b.arena = b.arena[:0]
}

// consume takes n bytes that were written off rest.
func (b *batch) consume(n int) {
	for n > 0 {
		k := min(n, len(b.rest[0]))
		if b.rest[0] = b.rest[0][k:]; len(b.rest[0]) == 0 {
			b.rest = b.rest[1:]
		}
		n -= k
	}
}
