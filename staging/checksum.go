package staging

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"hash"
	"hash/crc32"
	"iter"
	"slices"
)

// Checksum holds the checksums of one tensor's bytes.
type Checksum struct {
	PlanTensor

	SHA256 [sha256.Size]byte
	CRC32C uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksums reads the tensors of plan and yields the checksums of each, in order. It needs no memory beyond the pool, and computes those of
// several tensors at once. Errors are as with [Loader.Stream].
func (l *Loader) Checksums(ctx context.Context, plan Plan) iter.Seq2[Checksum, error] {
	return func(yield func(Checksum, error) bool) {
		for t, err := range l.stream(ctx, plan.To(nowhere{}), nowhere{}, newBoth) {
			if err != nil {
				yield(Checksum{}, err)
				return
			}
			t.Release()
			c := Checksum{PlanTensor: t.PlanTensor, CRC32C: binary.BigEndian.Uint32(t.Sum[sha256.Size:])}
			copy(c.SHA256[:], t.Sum)
			if !yield(c, nil) {
				return
			}
		}
	}
}

// both is SHA-256 and CRC-32C of the same bytes.
type both struct {
	hash.Hash

	crc hash.Hash32
}

func newBoth() hash.Hash { return &both{sha256.New(), crc32.New(castagnoli)} }

func (b *both) Write(p []byte) (int, error) {
	b.crc.Write(p)
	return b.Hash.Write(p)
}

func (b *both) Sum(to []byte) []byte { return b.crc.Sum(b.Hash.Sum(to)) }

// nowhere is a device for those who want the checksums only.
type nowhere struct{}

type nothing int64

func (nowhere) Name() string                                          { return "nowhere" }
func (nowhere) Alloc(n int64) (Memory, error)                         { return nothing(n), nil }
func (nowhere) CopyIn(_ Memory, _ int64, _ []byte, done func(error))  { done(nil) }
func (nowhere) CopyOut(_ []byte, _ Memory, _ int64, done func(error)) { done(nil) }
func (nowhere) Close() error                                          { return nil }
func (n nothing) Len() int64                                          { return int64(n) }
func (nothing) Bytes() []byte                                         { return nil }
func (nothing) Free()                                                 {}

// hashing is the checksum of an item on its way. Bytes come in any order and are hashed in theirs: what comes early is parked, in its buffer.
type hashing struct {
	state  hash.Hash
	next   int64 // what comes next: bytes up to here are hashed
	busy   bool  // somebody is at it
	parked []parked
}

type parked struct {
	slot *slot
	k    int // slot.parts[k]
}

func (p parked) part() *part { return &p.slot.parts[p.k] }

// hash has part k of the slot hashed: now, if its turn has come, along with those that have waited for it, or by whoever hashes what comes
// before it. Somebody always will: the buffers before this one had been filled before it.
func (s *stream) hash(sl *slot, k int) {
	p := parked{sl, k}
	h := &p.part().item.sum
	s.mu.Lock()
	if h.busy || h.next != p.part().off || s.stopping {
		h.parked = append(h.parked, p) // when the stream is stopping, drain takes it from there
		s.mu.Unlock()
		return
	}
	h.busy = true
	for {
		s.mu.Unlock()
		if h.state == nil {
			h.state = s.sum()
		}
		h.state.Write(p.slot.data(p.part()))
		n := p.part().n
		s.unref(p.slot)
		s.mu.Lock()
		h.next += n
		i := slices.IndexFunc(h.parked, func(q parked) bool { return q.part().off == h.next })
		if i < 0 || s.stopping {
			break
		}
		p = h.parked[i]
		h.parked = slices.Delete(h.parked, i, i+1)
	}
	h.busy = false
	s.mu.Unlock()
}

// result is the checksum of a whole item.
func (h *hashing) result(empty func() hash.Hash) []byte {
	if h.state == nil {
		h.state = empty()
	}
	return h.state.Sum(nil)
}
