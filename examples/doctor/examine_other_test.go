//go:build !linux

package main

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestOtherSystems(t *testing.T) {
	var out, errs bytes.Buffer
	require.Equal(t, exitFailed, run(t.Context(), nil, &out, &errs, examine))
	require.Contains(t, errs.String(), "doctor: only Linux can be examined")
	require.Empty(t, out.String())
}
