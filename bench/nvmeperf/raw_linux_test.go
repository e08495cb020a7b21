package main

import (
	"bufio"
	"context"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// serveRaw runs raw serve until the end of the test, and returns its address.
func serveRaw(t *testing.T) string {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	done := make(chan int)
	go func() { done <- run(ctx, []string{"raw", "serve", "-a", "127.0.0.1:0"}, console{nil, w, io.Discard}) }()
	line, err := bufio.NewReader(r).ReadString('\n')
	require.NoError(t, err)
	t.Cleanup(func() {
		cancel()
		require.Equal(t, exitOK, <-done)
	})
	return line[:len(line)-1]
}

func TestRaw(t *testing.T) {
	addr := serveRaw(t)
	for _, kind := range []string{"stream", "pingpong"} {
		for _, mode := range []string{"--blocking=false", "--blocking"} {
			for _, dir := range []string{"read", "write"} {
				t.Run(kind+mode+dir, func(t *testing.T) {
					r := report(t, "raw", kind, "-a", addr, mode, "-w", dir, "-o", "16k", "-t", "200ms", "--warmup", "10ms")
					require.Equal(t, "raw "+kind, r.Command)
					require.Equal(t, dir, r.Work.Pattern)
					require.Positive(t, r.Ops)
					require.Positive(t, r.Calls)
					if kind == "pingpong" {
						require.Positive(t, r.Latency.P50)
						require.GreaterOrEqual(t, r.Calls, 1.9, "one send and one receive at least")
					} else {
						require.Nil(t, r.Latency)
					}
				})
			}
		}
	}
}

// TestRawStranger is somebody else who calls: raw serve hangs up, and serves the next one.
func TestRawStranger(t *testing.T) {
	addr := serveRaw(t)
	conn, err := net.Dial("tcp", addr)
	require.NoError(t, err)
	_, err = conn.Write([]byte("GET / HTTP/1.1\r\n\r\n"))
	require.NoError(t, err)
	conn.SetReadDeadline(time.Now().Add(5 * time.Second))
	_, err = conn.Read(make([]byte, 1))
	require.Error(t, err)
	require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
	require.NoError(t, conn.Close())
	require.Positive(t, report(t, "raw", "pingpong", "-a", addr, "-t", "50ms").Ops)
}
