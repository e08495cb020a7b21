package main

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTicks(t *testing.T) {
	all, err := parseTicks("cpu  3 3 3 3 3 3 3 3 3 3\ncpu0 1 2 3 40 5 6 7 8 9 10\ncpu12 1 1 1 1 1 1 1 1 0 0\nintr 5 0\n")
	require.NoError(t, err)
	require.Equal(t, map[int]ticks{0: {all: 72, idle: 45}, 12: {all: 8, idle: 2}}, all)
	_, err = parseTicks("cpu0 1 2 x 4 5 6 7 8\n")
	require.Error(t, err)
	shares, err := busy()
	require.NoError(t, err)
	for _, s := range shares {
		require.GreaterOrEqual(t, s, -0.01)
		require.LessOrEqual(t, s, 1.01)
	}
}

func TestDisturbed(t *testing.T) {
	require.Empty(t, disturbed(map[int]float64{0: 0.01, 1: 0.05, 2: 1}, 0, 1))
	require.Contains(t, disturbed(map[int]float64{0: 0.01, 1: 0.5}, 0, 1), "CPU 1 is 50 % busy")
	require.Equal(t, disturbed(map[int]float64{1: 0.5}, 1), disturbed(map[int]float64{1: 0.5}, 1, 1))
}
