//go:build !cuda

package cuda

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNotBuilt(t *testing.T) {
	_, err := Open(Config{})
	require.ErrorIs(t, err, ErrNotBuilt)
	require.ErrorContains(t, err, "build the program with -tags cuda")
	_, err = Devices("")
	require.ErrorIs(t, err, ErrNotBuilt)
}
