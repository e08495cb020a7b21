package main

import (
	"bytes"
	"context"
	"math"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestGenerateNeedsRoom(t *testing.T) {
	dir := t.TempDir()
	free, known := freeBytes(dir)
	if !known {
		t.Skip("the file system does not tell how much is free")
	}
	require.NoError(t, room(dir, 0))
	require.ErrorContains(t, room(dir, math.MaxInt64), dir+" has room for ")
	if free >= maxModel {
		t.Skip("there is room for the largest model")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel() // so that nothing is written in any case
	var out, errs bytes.Buffer
	require.Equal(t, exitFailed, run(ctx, []string{"generate", "--size", "4T", dir}, console{nil, &out, &errs}))
	require.Contains(t, errs.String(), "choose another directory, or less with --size")
	files, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Empty(t, files)
}
