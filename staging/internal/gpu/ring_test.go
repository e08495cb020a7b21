package gpu

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"
)

// A ring is a queue, whatever it has grown to and wherever it begins.
func TestRing(t *testing.T) {
	var r ring[int]
	next, due := 0, 0
	rng := rand.New(rand.NewPCG(1, 2))
	for range 10_000 {
		if rng.IntN(100) < 51 {
			r.push(next)
			next++
		} else if r.n > 0 {
			require.Equal(t, due, *r.front())
			require.Equal(t, due, r.pop())
			due++
		}
		require.Equal(t, next-due, r.n)
	}
	require.Greater(t, len(r.buf), 16)
}
