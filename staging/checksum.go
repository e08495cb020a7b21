package staging

import (
	"context"
	"crypto/sha256"
	"hash/crc32"
	"iter"
)

// Checksum holds the checksums of one tensor's bytes.
type Checksum struct {
	PlanTensor

	SHA256 [sha256.Size]byte
	CRC32C uint32
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Checksums reads the tensors of plan and yields the checksums of each, in order. It needs no memory beyond the pool. Errors are as with
// [Loader.Pieces].
func (l *Loader) Checksums(ctx context.Context, plan Plan) iter.Seq2[Checksum, error] {
	return func(yield func(Checksum, error) bool) {
		sha := sha256.New()
		var crc uint32
		for p, err := range l.Pieces(ctx, plan) {
			if err != nil {
				yield(Checksum{}, err)
				return
			}
			sha.Write(p.Data)
			crc = crc32.Update(crc, castagnoli, p.Data)
			p.Release()
			if !p.Last {
				continue
			}
			sum := Checksum{PlanTensor: p.PlanTensor, CRC32C: crc}
			sha.Sum(sum.SHA256[:0])
			if !yield(sum, nil) {
				return
			}
			sha.Reset()
			crc = 0
		}
	}
}
