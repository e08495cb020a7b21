package queue

import (
	"net"
	"time"
)

// A driver moves the bytes of one queue. Its methods are called on the queue's goroutine, except wake.
type driver interface {
	// exchange sends what the socket takes of send now and receives what is there into recv, never
	// blocking. Either may be empty. What it reports as sent is from the front of send; a driver may
	// report bytes later than it took them, and until then send must keep starting with the same bytes.
	// A closed connection is io.EOF. A failed send does not keep it from receiving; an error next to received
	// bytes comes again with the next call, or something like it.
	exchange(send, recv [][]byte) (sent, received int, err error)
	// inflight is how many bytes from the front of send the driver has taken but not reported.
	inflight() int
	// wait, called after an exchange that found nothing to do, sleeps until exchange may get on (write: also with sending), until wake, or for d; d < 0 has no limit.
	wait(write bool, d time.Duration) error
	// wake ends a wait that is going on, or the next one. Any goroutine may call it, at any time.
	wake()
	// close ends the connection. When it returns, neither the kernel nor another goroutine uses a buffer.
	close() error
	// syscalls counts the system calls made so far, 0 where that is not known.
	syscalls() uint64
}

// opened is a driver, ready, with the reasons for what it is.
type opened struct {
	driver
	kind  Driver
	notes []string
	lazy  bool // reports sent bytes late, so R2Ts may seem to come too early
	spins bool // exchange on an empty socket is cheap enough to be repeated instead of sleeping
}

// openConn makes the driver that works everywhere.
func openConn(conn net.Conn, notes ...string) opened {
	return opened{driver: newConnDriver(conn), kind: DriverConn, notes: notes, lazy: true}
}

// maxVec is how many slices one exchange moves at most, each way: well within IOV_MAX.
const maxVec = 512
