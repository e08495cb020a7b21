//go:build !linux || race

package nvmetest

import (
	"net"
	"time"
)

// tryPath reads from a socket and writes to it without waiting for it, which here cannot be done.
type tryPath struct{}

func newTryPath(*net.TCPConn) *tryPath { return nil }

func (*tryPath) read([]byte, time.Duration) (int, error) { return 0, net.ErrClosed }

func (*tryPath) write(*batch) bool { return false }
