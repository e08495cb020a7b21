package main

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestSlowCopiesAreTold(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	r, w := io.Pipe()
	stop := tellOfCopies(ctx, console{err: w})
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	require.Contains(t, line, "waiting for the copies to the device that are in flight")
	stop()
	var said bytes.Buffer
	tellOfCopies(ctx, console{err: &said})()
	tellOfCopies(t.Context(), console{err: &said})()
	require.Empty(t, said.String(), "nobody had to wait")
}
