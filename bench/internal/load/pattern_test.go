package load

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestPattern(t *testing.T) {
	for _, c := range []struct {
		name string
		mix  int
		want Pattern
	}{
		{"read", -1, Pattern{false, 100}},
		{"randread", -1, Pattern{true, 100}},
		{"write", -1, Pattern{false, 0}},
		{"randwrite", -1, Pattern{true, 0}},
		{"rw", -1, Pattern{false, 50}},
		{"randrw", 70, Pattern{true, 70}},
	} {
		p, err := ParsePattern(c.name, c.mix)
		require.NoError(t, err)
		require.Equal(t, c.want, p)
		require.Equal(t, c.name, p.String())
	}
	for _, name := range []string{"", "rand", "verify", "randtrim"} {
		_, err := ParsePattern(name, -1)
		require.Error(t, err, name)
	}
}

// TestSequence is the order of I/Os: each queue goes through all of the namespace, from a place of its own.
func TestSequence(t *testing.T) {
	a, b := newGenerator(Pattern{Reads: 100}, 4096, 10*4096+1, 0, 2), newGenerator(Pattern{Reads: 100}, 4096, 10*4096+1, 1, 2)
	for i := range 25 {
		off, write := a.next()
		require.False(t, write)
		require.Equal(t, int64(i%10*4096), off)
		off, _ = b.next()
		require.Equal(t, int64((i+5)%10*4096), off)
	}
}

// TestRandom wants every I/O inside, none that is never chosen, and the mix that was asked for.
func TestRandom(t *testing.T) {
	const n, rounds = 10, 10000
	g := newGenerator(Pattern{Random: true, Reads: 30}, 512, n*512, 0, 1)
	var hits [n]int
	writes := 0
	for range rounds {
		off, write := g.next()
		require.Zero(t, off%512)
		hits[off/512]++
		if write {
			writes++
		}
	}
	for _, h := range hits {
		require.InDelta(t, rounds/n, h, rounds/n/5)
	}
	require.InDelta(t, 0.7*rounds, writes, rounds/20)
}
