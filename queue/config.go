package queue

import (
	"log/slog"
	"time"

	"github.com/nvstage/nvstage/pdu"
)

// Driver names a way to move bytes.
type Driver string

// The drivers. DriverAuto takes the one that measurements favour (this package has a benchmark of
// each) where the connection and the kernel allow it, and falls back with a reason.
const (
	DriverAuto  Driver = ""
	DriverURing Driver = "io_uring" // Linux: own ring, one enter per turn for send and receive
	DriverEpoll Driver = "epoll"    // Linux: non-blocking recv, readv and sendmsg; spins, then epoll
	DriverConn  Driver = "net.Conn" // everywhere, any net.Conn; two helper goroutines and one more copy
)

// Config says how a queue is to be set up. The zero value is an admin queue of 31 commands.
type Config struct {
	// QID is the queue identifier: 0 for the admin queue. It is used in errors and logs and by the
	// rules for in-capsule data; Connect is the caller's affair.
	QID uint16
	// Depth is how many commands may be outstanding: SQSIZE, which is one less than the entries of
	// the submission queue. Default 31, at most 4095.
	Depth int
	// MaxInCapsule is how many bytes of data a capsule to this queue may carry (IOCCSZ*16 - 64).
	// The admin queue and fabrics commands may always carry 8192.
	MaxInCapsule int
	// Digests are the digests to ask for. A controller that grants others is refused.
	Digests pdu.Digests
	// HPDA is the alignment to ask for in C2HData, 0's based dwords. Linux targets accept only 0.
	HPDA uint8
	// MaxR2T is how many R2Ts per command may be outstanding, 0's based. Old targets accept only 0.
	MaxR2T uint32
	// Driver chooses how bytes move. Asking for one that cannot be had is an error; DriverAuto falls back.
	Driver Driver
	// CPU pins the queue's thread to a CPU when Pin is set. The net.Conn driver has no thread of its own; Info
	// says so then.
	CPU int
	Pin bool
	// Spin is how long the queue polls the socket before it sleeps: 0 takes DefaultSpin, less than 0
	// never polls, except that it rests for up to 32 µs before it looks, busily, while a large payload or the reads of
	// a feed flow.
	Spin time.Duration
	// ICTimeout bounds the wait for ICResp. Default 10 s.
	ICTimeout time.Duration
	// CommandTimeout ends the queue when a command is outstanding for longer. Default 30 s, less
	// than 0 means never.
	CommandTimeout time.Duration
	// Linger bounds how long a queue that ends with a protocol error waits for the controller to take
	// its H2CTermReq and close. Default 1 s.
	Linger time.Duration
	// Logger gets what is worth telling a person. Default: nothing is logged.
	Logger *slog.Logger
}

// Defaults of Config.
const (
	DefaultDepth          = 31
	DefaultSpin           = 50 * time.Microsecond
	DefaultICTimeout      = 10 * time.Second
	DefaultCommandTimeout = 30 * time.Second
	DefaultLinger         = time.Second
	MaxDepth              = 4095
)

// AdminInCapsule is how many bytes of in-capsule data every controller takes on the admin queue,
// and in fabrics commands on any queue.
const AdminInCapsule = 8192

// Info is what a queue got.
type Info struct {
	QID        uint16
	Depth      int
	Driver     Driver
	CPU        int      // that the queue's thread is pinned to, -1 for none
	Notes      []string // why the driver and its features are what they are: every fallback with its reason
	Digests    pdu.Digests
	CPDA       uint8  // controller PDU data alignment
	MAXH2CDATA uint32 // largest H2CData in bytes
	LocalAddr  string
	RemoteAddr string
}

// Stats counts what a queue did since it connected. The figures are published once per turn.
type Stats struct {
	Commands   uint64 // completed, with whatever outcome
	Errors     uint64 // of those, not successful
	BytesIn    uint64 // from the socket, headers included
	BytesOut   uint64 // to the socket, headers included
	Turns      uint64
	Syscalls   uint64 // made by the driver (io_uring: enters)
	Sleeps     uint64 // times the thread waited in the kernel
	Placed     uint64 // payload bytes received straight into a command's buffer
	Copied     uint64 // payload bytes copied out of the read buffer
	DataErrors uint64 // data digest errors
}
