package capture

import (
	"bytes"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestStreamMissing gives a stream segments of which only the beginning was captured, in any order,
// again, and whole: each byte comes once, in order, as data or as missing, and as data if the segment
// that counts had it.
func TestStreamMissing(t *testing.T) {
	content := pat(400, 0)
	for seed := range uint64(500) {
		rnd := rand.New(rand.NewPCG(seed, 3))
		base := uint32(rnd.IntN(600)) - 300 // sequence numbers wrap in half of the cases
		var s stream
		s.start(base)
		at, missing := 0, 0
		take := func(p piece) {
			require.Equal(t, base+uint32(at), p.seq)
			require.True(t, bytes.Equal(content[at:at+len(p.data)], p.data))
			require.GreaterOrEqual(t, p.missing, 0)
			require.NotZero(t, p.len())
			at += p.len()
			missing += p.missing
		}
		for range 60 {
			from := rnd.IntN(len(content))
			n := 1 + rnd.IntN(min(100, len(content)-from))
			have := n
			if rnd.IntN(3) == 0 {
				have = rnd.IntN(n + 1)
			}
			data := bytes.Clone(content[from : from+have])
			s.add(piece{seq: base + uint32(from), data: data, missing: n - have}, take)
			clear(data) // what waits must have been copied
		}
		for len(s.ahead) > 0 {
			s.giveUp(take)
		}
		require.Zero(t, s.held)
		require.LessOrEqual(t, at, len(content))
	}
}
