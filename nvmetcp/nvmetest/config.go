package nvmetest

import (
	"fmt"
	"log/slog"
	"math/bits"
	"strings"
	"time"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Mode says which target is imitated.
type Mode int

const (
	// ModeNVMET behaves as the Linux kernel's target: one R2T for all of a write, one C2HData for all
	// of a read, exact lengths, DNR on errors, and a connection that just closes on protocol errors.
	ModeNVMET Mode = iota
	// ModeSPDK behaves as SPDK's target: 128 KiB at most, SUCCESS whatever the host asked for,
	// CPDA as the host's HPDA, and a C2HTermReq on protocol errors.
	ModeSPDK
	// ModeStrict uses all the freedom that the specification gives a controller: small pieces in
	// both directions, several R2Ts where the host takes them, interleaved commands, odd alignments,
	// and a C2HTermReq for everything that the specification forbids.
	ModeStrict
)

// String returns "nvmet", "SPDK" or "strict".
func (m Mode) String() string {
	switch m {
	case ModeNVMET:
		return "nvmet"
	case ModeSPDK:
		return "SPDK"
	case ModeStrict:
		return "strict"
	}
	return fmt.Sprintf("Mode(%d)", int(m))
}

// DefaultNQN is the NQN of the subsystem of a [Config] that has none.
const DefaultNQN = "nqn.2025-01.io.nvstage:nvmetest"

// Config describes a target. The zero value is a target on a free port of 127.0.0.1 with one
// subsystem, [DefaultNQN], which has one namespace of 64 MiB in memory.
//
// Where a number's zero value is "the mode's", those are, for nvmet, SPDK and strict:
//
//	MaxQueueEntries  1024    128      64
//	MaxIOQueues      128     127      16
//	InCapsule        16384   4096     8192   bytes
//	MAXH2CDATA       4 MiB   128 KiB  4096   bytes
//	CPDA             0       HPDA     4      (20 bytes)
//	MDTS             0       5        5      (128 KiB)
//	R2TBytes         whole   whole    20000  bytes
//	C2HDataBytes     whole   whole    5000   bytes
type Config struct {
	Mode       Mode
	Addr       string // where to listen; "" is "127.0.0.1:0"
	Subsystems []Subsystem
	Referrals  []Referral // entries with SUBTYPE 1 of the discovery log

	MaxQueueEntries int         // MQES + 1 and MAXCMD; 0 = the mode's
	MaxIOQueues     int         // 0 = the mode's
	InCapsule       int         // bytes of data that a capsule of an I/O queue may carry; 0 = the mode's, negative = none
	MAXH2CDATA      uint32      // bytes; 0 = the mode's
	CPDA            int         // 0's based dwords; 0 = the mode's, negative = 0
	MDTS            int         // log2 of 4 KiB units; 0 = the mode's, negative = no limit
	R2TBytes        int         // most that one R2T asks for, a multiple of 4; 0 = the mode's
	C2HDataBytes    int         // most that one C2HData carries, a multiple of 4; 0 = the mode's
	RefuseDigests   pdu.Digests // digests that ICResp does not grant although the host asks for them
	FirstCNTLID     uint16      // where controller identifiers begin; 0 = 1. Targets that serve one subsystem together want ranges of their own

	// Spin is how long the target polls an I/O queue's socket before it sleeps, at most 10 ms; on Linux
	// only, and only while there are no more I/O queues than GOMAXPROCS. 0 = not at all, which is right
	// for tests: the host wants the CPU. With 50 µs and a CPU of its own, a target answers a lone
	// command in a third of the time; other queues may meanwhile wait for up to 10 ms.
	Spin time.Duration

	Logger *slog.Logger // nil = silent
}

// Subsystem is an NVM subsystem.
type Subsystem struct {
	NQN          string
	AllowedHosts []string // host NQNs; nil = any host
	Serial       string   // "" = made from the NQN
	Model        string   // "" = "nvstage nvmetest"
	Namespaces   []Namespace
}

// Namespace is one namespace of a [Subsystem].
type Namespace struct {
	NSID      uint32        // 0 = the place in the list, from 1
	BlockSize int           // bytes, a power of two from 512; 0 = 512
	Metadata  int           // bytes of metadata of each block, interleaved. Such blocks can be identified, but not read or written
	Backend   Backend       // nil = an active namespace of size 0
	Inactive  bool          // counts in NN, but is not there
	ReadOnly  bool          // write protected, as it is also with a read-only backend
	ANAGroup  uint32        // 0 = 1
	NGUID     [16]byte      // zero = made from the subsystem's NQN and the NSID
	UUID      [16]byte      // zero = the NGUID
	EUI64     [8]byte       // zero = none
	ANAState  nvme.ANAState // 0 = optimized; of the group, so the last namespace of a group decides
}

// Referral is an entry of the discovery log that names another discovery service.
type Referral struct {
	Addr string // host:port
	NQN  string // "" = the well-known discovery NQN
}

// profile is the behaviour of a mode with the numbers of a [Config].
type profile struct {
	Mode
	entries    int // of a queue, MQES + 1
	ioQueues   int
	inCapsule  int
	maxH2CData uint32
	cpda       int // negative = HPDA
	mdts       uint8
	r2tSize    int // 0 = whole
	c2hSize    int // 0 = whole
	tagMul     uint16
	tagAdd     uint16
	termReq    bool   // protocol errors are answered with C2HTermReq
	dnr        bool   // errors carry DNR
	exact      bool   // the SGL must be as long as the data
	tbkas      bool   // any command feeds the keep alive timer
	kas        uint16 // 100 ms
	wholeCtrl  bool   // a controller dies with any of its queues, unless the host closed that
}

// maxTransfer is the most data that one command may have, in bytes, whatever MDTS says: what is
// longer the hardened nvmet completes with Data SGL Length Invalid.
const maxTransfer = 4 << 20

// maxSpin bounds Spin, because a queue that polls does not notice that it is to be closed.
const maxSpin = 10 * time.Millisecond

// adminInCapsule is what fabrics commands and admin commands may carry in their capsule, in bytes.
const adminInCapsule = 8192

func (c *Config) profile() profile {
	p := profile{Mode: c.Mode, tagMul: 1}
	switch c.Mode {
	case ModeNVMET:
		p.entries, p.ioQueues, p.inCapsule, p.maxH2CData = 1024, 128, 16384, 4<<20
		p.dnr, p.exact, p.tbkas, p.kas, p.wholeCtrl = true, true, true, 10, true
	case ModeSPDK:
		p.entries, p.ioQueues, p.inCapsule, p.maxH2CData = 128, 127, 4096, 128<<10
		p.cpda, p.mdts, p.tagAdd, p.termReq, p.kas = -1, 5, 1, true, 100
	default:
		p.entries, p.ioQueues, p.inCapsule, p.maxH2CData = 64, 16, 8192, pdu.MinMaxH2CData
		p.cpda, p.mdts, p.r2tSize, p.c2hSize = 4, 5, 20000, 5000
		p.tagMul, p.tagAdd = 0x9E35, 0xFFFF // odd, so that no two transfers share a tag; the first has 0xFFFF
		p.termReq, p.dnr, p.exact, p.kas = true, true, true, 1
	}
	or := func(v *int, set int) {
		if set != 0 {
			*v = max(set, 0)
		}
	}
	or(&p.entries, c.MaxQueueEntries)
	or(&p.ioQueues, c.MaxIOQueues)
	or(&p.inCapsule, c.InCapsule)
	or(&p.cpda, c.CPDA)
	or(&p.r2tSize, c.R2TBytes)
	or(&p.c2hSize, c.C2HDataBytes)
	if c.MDTS != 0 {
		p.mdts = uint8(max(c.MDTS, 0))
	}
	if c.MAXH2CDATA != 0 {
		p.maxH2CData = c.MAXH2CDATA
	}
	return p
}

// limit is the most data of one command in bytes.
func (p *profile) limit() int {
	if p.mdts == 0 || p.mdts > 10 {
		return maxTransfer
	}
	return 4096 << p.mdts
}

// check refuses what cannot be served.
func (c *Config) check() error {
	p := c.profile()
	switch {
	case c.Mode < ModeNVMET || c.Mode > ModeStrict:
		return fmt.Errorf("nvmetest: unknown mode %d", int(c.Mode))
	case p.entries < 2 || p.entries > 65536:
		return fmt.Errorf("nvmetest: MaxQueueEntries %d, want 2 to 65536", p.entries)
	case p.ioQueues < 1 || p.ioQueues > 65534:
		return fmt.Errorf("nvmetest: MaxIOQueues %d, want 1 to 65534", p.ioQueues)
	case p.inCapsule > 1<<20 || p.inCapsule%16 != 0:
		return fmt.Errorf("nvmetest: InCapsule %d, want a multiple of 16 up to 1 MiB", p.inCapsule)
	case p.maxH2CData < pdu.MinMaxH2CData || p.maxH2CData%4 != 0 || p.maxH2CData > maxTransfer:
		return fmt.Errorf("nvmetest: MAXH2CDATA %d, want a multiple of 4 from 4096 to 4 MiB", p.maxH2CData)
	case p.cpda > pdu.MaxAlign:
		return fmt.Errorf("nvmetest: CPDA %d, want at most 31", p.cpda)
	case p.r2tSize%4 != 0 || p.c2hSize%4 != 0:
		return fmt.Errorf("nvmetest: R2TBytes %d and C2HDataBytes %d must be multiples of 4", p.r2tSize, p.c2hSize)
	case c.Spin < 0 || c.Spin > maxSpin:
		return fmt.Errorf("nvmetest: Spin %v, want 0 to %v", c.Spin, maxSpin)
	}
	for i := range c.Subsystems {
		if err := c.Subsystems[i].check(); err != nil {
			return err
		}
	}
	return nil
}

func (s *Subsystem) check() error {
	if !strings.HasPrefix(s.NQN, "nqn.") || len(s.NQN) > 223 {
		return fmt.Errorf("nvmetest: subsystem NQN %q, want nqn.yyyy-mm.reverse-domain:name of at most 223 bytes", s.NQN)
	}
	for i := range s.Namespaces {
		n := &s.Namespaces[i]
		if b := n.BlockSize; b != 0 && (b < 512 || b > 1<<20 || bits.OnesCount(uint(b)) != 1) {
			return fmt.Errorf("nvmetest: %s: namespace %d: block size %d, want a power of two from 512 to 1 MiB", s.NQN, n.NSID, b)
		}
		if n.Metadata < 0 || n.Metadata > 65535 {
			return fmt.Errorf("nvmetest: %s: namespace %d: %d bytes of metadata, want 0 to 65535", s.NQN, n.NSID, n.Metadata)
		}
	}
	return nil
}
