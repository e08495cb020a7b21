package nvmetest

import (
	"sync"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Faults is everything that a target can be told to do wrong. The zero value is a target that
// behaves. See [Target.SetFaults].
type Faults struct {
	Conn       ConnFaults       // of connections that are made from now on
	Controller ControllerFaults // of all controllers
	Rules      []Rule           // the first one that matches a command decides

	// OnCommand is asked about every command for which no rule decided, with no lock held, before
	// the command is looked at. It may block: the connection then receives nothing more, and
	// [Target.Close] waits for it.
	OnCommand func(Command) Action
	// OnConn is called with every new connection before it is served.
	OnConn func(*Conn)
}

// ConnFaults are faults of connections as a whole.
type ConnFaults struct {
	Refuse      bool              // reset every new connection
	NoICResp    bool              // accept, but never answer ICReq
	ICRespDelay time.Duration     // answer ICReq late
	ICResp      func(*pdu.ICResp) // changes ICResp before it is sent; what the target itself does stays as negotiated
	RawICResp   []byte            // sent in place of ICResp

	CloseAfterSent     int64 // close once so many bytes were sent; 0 = never
	CloseAfterReceived int64 // close once so many bytes were received; 0 = never
	Reset              bool  // those closes are resets
	StallAfterSent     int64 // send nothing after so many bytes, but stay connected; 0 = never

	MangleRate float64 // see [Conn.Mangle]; 0 = off
	MangleSeed uint64  // the n-th connection uses MangleSeed + n
}

// ControllerFaults are faults of controllers.
type ControllerFaults struct {
	NeverReady       bool          // CSTS.RDY stays 0
	ReadyDelay       time.Duration // CSTS.RDY follows CC.EN so late
	Fatal            bool          // CSTS.CFS is 1
	NeverShutdown    bool          // CSTS.SHST never says complete
	MaxQueues        int           // grant at most so many I/O queues, at least 1; 0 = as configured
	IgnoreKeepAlive  bool          // Keep Alive commands get an answer, but do not feed the timer
	DiscoveryChanges int           // GENCTR changes after each of the next so many reads of the discovery log; negative = always
	WrongCNTLID      bool          // Identify Controller shows another CNTLID than Connect
}

// Rule says what happens to some commands.
type Rule struct {
	Queue   Queue         // zero = any
	QID     uint16        // one I/O queue; 0 = any
	Opcodes []nvme.Opcode // nil = any
	FCTYPE  int           // of a fabrics command; 0 = any, negative = Property Set, which is 0
	NSID    uint32        // 0 = any
	Nth     int           // begin with the nth command that matches, from 1; 0 = the first
	Count   int           // act on so many commands; 0 = all
	Do      Action
}

// Queue says which queues a [Rule] is for.
type Queue uint8

// Kinds of queues.
const (
	AnyQueue   Queue = iota
	AdminQueue       // QID 0
	IOQueue          // all others
)

// Command is what a fault hook sees of a command.
type Command struct {
	Conn *Conn
	QID  uint16 // of the connection; 0 before Connect
	SQE  nvme.SQE
}

// Action is what happens to a command. The zero value is what should happen.
//
// Unless Status, Drop, Close or Raw say otherwise, the command is executed as it should be and only
// the answer is wrong.
type Action struct {
	Delay  time.Duration // hold the answer back
	Drop   bool          // never answer; only Abort ends the command, with a target that really aborts
	Status nvme.Status   // not 0: do not execute, and ask for no data, but complete with this, as nvme.StatusWriteFault.Status().WithDNR()
	Result *uint64       // DW1:DW0 of the completion

	CorruptData         bool // one bit of the data is wrong, and its digest is right for the wrong data
	CorruptDataDigest   bool // DDGST of the last C2HData is wrong
	CorruptHeaderDigest bool // HDGST of the answer's first PDU is wrong
	Breach              Breach
	Raw                 []byte       // send this in place of the answer; the command stays outstanding
	Term                *pdu.TermReq // send this C2HTermReq in place of the answer, and nothing after it

	Close      Close // in place of the answer, or after CloseAfter bytes of it
	CloseAfter int   // bytes
}

func (a *Action) none() bool {
	return a.Delay == 0 && !a.Drop && a.Status == 0 && a.Result == nil && !a.CorruptData && !a.CorruptDataDigest &&
		!a.CorruptHeaderDigest && a.Breach == 0 && a.Raw == nil && a.Term == nil && a.Close == 0
}

// Close is how a fault ends a connection.
type Close uint8

// Ways to end a connection.
const (
	CloseNot   Close = iota
	CloseFIN         // orderly
	CloseReset       // with a reset
)

// activeFaults is a [Faults] with the counters of its rules.
type activeFaults struct {
	Faults
	mu      sync.Mutex
	matched []int
	conns   uint64
	changes int // left of DiscoveryChanges
}

func newFaults(f Faults) *activeFaults {
	return &activeFaults{Faults: f, matched: make([]int, len(f.Rules)), changes: f.Controller.DiscoveryChanges}
}

// action returns what happens to a command, nil for what should.
func (f *activeFaults) action(cmd Command) *Action {
	if len(f.Rules) == 0 && f.OnCommand == nil {
		return nil
	}
	f.mu.Lock()
	for i := range f.Rules {
		r := &f.Rules[i]
		if !r.matches(&cmd) {
			continue
		}
		f.matched[i]++
		first := max(r.Nth, 1)
		if n := f.matched[i]; n < first || r.Count != 0 && n >= first+r.Count {
			continue
		}
		f.mu.Unlock()
		a := r.Do
		return &a
	}
	f.mu.Unlock()
	if f.OnCommand != nil {
		if a := f.OnCommand(cmd); !a.none() {
			return &a
		}
	}
	return nil
}

func (r *Rule) matches(cmd *Command) bool {
	switch {
	case r.Queue == AdminQueue && cmd.QID != 0,
		r.Queue == IOQueue && cmd.QID == 0,
		r.QID != 0 && r.QID != cmd.QID,
		r.NSID != 0 && r.NSID != cmd.SQE.NSID:
		return false
	}
	if r.FCTYPE != 0 {
		if cmd.SQE.Opcode != nvme.OpFabrics || int(cmd.SQE.NSID&0xFF) != max(r.FCTYPE, 0) {
			return false
		}
	}
	if r.Opcodes == nil {
		return true
	}
	for _, op := range r.Opcodes {
		if op == cmd.SQE.Opcode {
			return true
		}
	}
	return false
}

// takeChange reports whether the discovery log changes after this read.
func (f *activeFaults) takeChange() bool {
	if f.Controller.DiscoveryChanges == 0 {
		return false
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.changes > 0 {
		f.changes--
		return true
	}
	return f.changes < 0
}

func (f *activeFaults) nextConn() uint64 {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.conns++
	return f.conns - 1
}
