package nvmetcp

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"runtime"
	"time"

	"github.com/nvstage/nvstage/queue"
)

// Options are how to connect. A nil *Options and the zero value take all the defaults.
type Options struct {
	// NumIOQueues is how many I/O queues to ask for; the controller may grant fewer. Each is a TCP
	// connection with a goroutine of its own, which is busy with a CPU while there is much to do.
	// Default: the number of CPUs, at most 4. Fewer than CPUs leave some to callers.
	//
	// GOMAXPROCS is best left at the number of CPUs: a busy queue occupies one of so many places for
	// goroutines to run, and with a single one a queue that sleeps may keep it from the callers for some
	// 200 µs.
	NumIOQueues int
	// QueueSize is how many entries an I/O queue has, of which one stays empty: 2 to 4096, less if
	// the controller has less. Default 128.
	QueueSize int
	// MaxIO is how many bytes one command moves at most. Larger reads and writes are split. The
	// controller's MDTS and the 65536 blocks of a command are limits besides. Default 1 MiB: Linux
	// targets report no MDTS, yet refuse more than 4 MiB and may fail to find memory for much less.
	MaxIO int
	// HeaderDigest and DataDigest protect PDU headers and data with CRC32C. A controller that does
	// not grant what is asked for is an error, ErrDigestsRefused.
	HeaderDigest, DataDigest bool
	// KeepAlive is KATO: the controller ends the association when it hears nothing for so long, and
	// so does this side when a Keep Alive is not answered. From 100 ms; some targets raise small
	// values to 10 s. Negative: none. Default 5 s as Linux has it, so that a lost path is noticed
	// as fast as operators are used to. Discovery uses none.
	KeepAlive time.Duration
	// DialTimeout bounds the TCP connection of each queue. Default 10 s.
	DialTimeout time.Duration
	// ICTimeout bounds the wait for ICResp on each queue. Default 10 s.
	ICTimeout time.Duration
	// ConnectTimeout bounds each Connect command and every other command of the initialisation.
	// Default 30 s, because some targets hold Connect back while they are being reconfigured.
	ConnectTimeout time.Duration
	// CommandTimeout ends the association when a command takes longer. Default 30 s; negative: never.
	CommandTimeout time.Duration
	// RetryWrites lets a write be sent again when the controller has answered it with an error that
	// may pass, such as Transient Transport Error. A write without an answer is never sent again.
	RetryWrites bool
	// CopyWrites makes WriteAt send a copy of its buffer, for programs that cannot keep others from
	// changing it meanwhile: with data digests such a change ends the association. It costs a copy, and
	// as much memory as the write is long. Writes of a Feed are never copied.
	CopyWrites bool
	// DisableSQFlow asks the controller to do without SQ flow control (CATTR bit 2), which lets it
	// leave out the response of most reads.
	DisableSQFlow bool
	// Driver is how the queues move bytes. Default: what suits the connection and the system.
	Driver queue.Driver
	// Spin is how long an I/O queue polls its socket before it sleeps. Default 50 µs; negative: not at all,
	// but for up to 32 µs at a time while a large payload or the reads of a feed flow.
	Spin time.Duration
	// Pin chooses CPUs for the I/O queues' threads. Pinning is right for queues that have their CPUs to
	// themselves. A caller or another queue on the CPU of a pinned thread has to wait until the system
	// takes the CPU from it, which cost 12 µs for each command of a lone caller; threads that are not
	// pinned make way. Controllers do not know of each other: pinned to the same node, their queues meet
	// on the same CPUs, which CPUs can prevent. Linux only. Default PinOff.
	Pin Pin
	// CPUs pins the I/O queues' threads, the first queue to CPUs[0] and so on, again from the start
	// when there are more queues, whether or not a CPU is left to callers; it is instead of Pin. A queue
	// whose CPU the process may not use, by its affinity or its cgroup, is not pinned. What became of Pin
	// and CPUs is in ControllerInfo. Default: none is pinned.
	CPUs []int
	// Socket are the options of the TCP connections.
	Socket SocketOptions
	// Logger is told what a person may want to know. Default: nobody is.
	Logger *slog.Logger
}

// Defaults of Options.
const (
	DefaultQueueSize      = 128
	DefaultMaxIO          = 1 << 20
	DefaultKeepAlive      = 5 * time.Second
	DefaultDialTimeout    = 10 * time.Second
	DefaultConnectTimeout = 30 * time.Second

	defaultMaxIOQueues = 4
	minKeepAlive       = 100 * time.Millisecond
	maxIOQueues        = 65534
)

// resolve returns a copy of o with the defaults in place, or what is wrong with o.
func (o *Options) resolve() (Options, error) {
	var r Options
	if o != nil {
		r = *o
	}
	if r.NumIOQueues == 0 {
		r.NumIOQueues = min(runtime.NumCPU(), defaultMaxIOQueues)
	}
	if r.QueueSize == 0 {
		r.QueueSize = DefaultQueueSize
	}
	if r.MaxIO == 0 {
		r.MaxIO = DefaultMaxIO
	}
	setDuration(&r.KeepAlive, DefaultKeepAlive)
	setDuration(&r.DialTimeout, DefaultDialTimeout)
	setDuration(&r.ICTimeout, queue.DefaultICTimeout)
	setDuration(&r.ConnectTimeout, DefaultConnectTimeout)
	setDuration(&r.CommandTimeout, queue.DefaultCommandTimeout)
	if r.Logger == nil {
		r.Logger = slog.New(slog.DiscardHandler)
	}
	if err := r.Socket.resolve(r.KeepAlive, r.CommandTimeout); err != nil {
		return r, err
	}
	switch {
	case r.Pin != PinOff && r.Pin != PinLocal:
		return r, fmt.Errorf("nvmetcp: Options.Pin is %q, want %q, or %q for none", r.Pin, PinLocal, PinOff)
	case r.Pin != PinOff && len(r.CPUs) > 0:
		return r, errors.New("nvmetcp: Options.Pin and Options.CPUs exclude each other")
	case r.NumIOQueues < 1 || r.NumIOQueues > maxIOQueues:
		return r, fmt.Errorf("nvmetcp: Options.NumIOQueues is %d, want 1 to %d", r.NumIOQueues, maxIOQueues)
	case r.QueueSize < 2 || r.QueueSize > queue.MaxDepth+1:
		return r, fmt.Errorf("nvmetcp: Options.QueueSize is %d, want 2 to %d", r.QueueSize, queue.MaxDepth+1)
	case r.MaxIO < 512 || r.MaxIO > math.MaxInt32:
		return r, fmt.Errorf("nvmetcp: Options.MaxIO is %d, want 512 to %d bytes", r.MaxIO, math.MaxInt32)
	case r.KeepAlive > 0 && r.KeepAlive < minKeepAlive:
		return r, fmt.Errorf("nvmetcp: Options.KeepAlive is %v, want at least %v, or less than 0 for none", r.KeepAlive, minKeepAlive)
	case r.KeepAlive > math.MaxUint32*time.Millisecond:
		return r, fmt.Errorf("nvmetcp: Options.KeepAlive is %v, which is more than KATO can say", r.KeepAlive)
	case r.DialTimeout < 0 || r.ICTimeout < 0 || r.ConnectTimeout < 0:
		return r, errors.New("nvmetcp: Options.DialTimeout, ICTimeout and ConnectTimeout must not be negative")
	}
	return r, nil
}

func setDuration(d *time.Duration, def time.Duration) {
	if *d == 0 {
		*d = def
	}
}
