package queue

import (
	"math/bits"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// slot is a place for one outstanding command, with all that the engine knows of its transfer.
type slot struct {
	cmd    *Command // nil: free, or abandoned (busy tells)
	busy   bool
	cid    uint16
	gen    uint16
	dir    nvme.Direction
	length uint32 // of the command's data

	capsule  bool // the data went with the capsule
	finished bool // completed by the controller, but something of its data is still in the send queue
	timed    bool // CommandTimeout applies
	issued   int64
	giveUp   int64 // a cancelled write ends the queue then; 0: not cancelled

	pos  cursor // where the next byte of data comes from, or goes to
	got  uint32 // read: bytes received, which is the DATAO expected next
	last bool   // read: LAST_PDU was seen
	bad  bool   // read: a data digest was wrong

	waits        bool  // read: for data
	older, newer *slot // read: its neighbours among those that wait
	ahead        int   // read: gaps whose bytes are in its buffer, and may be another's

	asked uint32 // write: bytes asked for by R2Ts, which is the R2TO expected next
	r2ts  []r2t  // write: R2Ts that are not encoded completely, oldest first
	open  int    // write: R2Ts whose data is not with the socket completely
	refs  int    // write: fragments in the send queue that point into the command's data
}

// r2t is what is left to do of one R2T.
type r2t struct {
	ttag    uint16
	started bool
	off, n  uint32
}

// maxMaxR2T bounds Config.MaxR2T: nobody is known to use more than 0.
const maxMaxR2T = 15

// cursor is a position in a list of buffers.
type cursor struct{ buf, off int }

// next returns up to n bytes at the cursor that lie together, and moves over them.
func (p *cursor) next(data [][]byte, n int) []byte {
	for p.off == len(data[p.buf]) {
		p.buf++
		p.off = 0
	}
	b := data[p.buf][p.off:]
	b = b[:min(len(b), n)]
	p.off += len(b)
	return b
}

// slots hands out slots and finds them again by CID.
type slots struct {
	all   []slot
	free  []uint16 // indices, the last one freed on top
	shift uint     // CID = generation << shift | index

	oldest, newest *slot // of the reads that wait for data, in the order of issue
	awaited        int   // bytes that they wait for
}

func newSlots(depth, maxR2T int) slots {
	s := slots{all: make([]slot, depth), shift: uint(bits.Len(uint(depth - 1)))}
	for i := range depth {
		s.all[i].r2ts = make([]r2t, 0, maxR2T)
		s.free = append(s.free, uint16(depth-1-i))
	}
	return s
}

// take returns a free slot with a CID that differs from the slot's last ones, so that a late or
// repeated completion for an earlier command is not taken for this one's. There must be a free slot.
func (s *slots) take() *slot {
	i := s.free[len(s.free)-1]
	s.free = s.free[:len(s.free)-1]
	t := &s.all[i]
	gen := t.gen + 1
	cid := gen<<s.shift | i
	if cid == 0xFFFF { // the error log's "no command"
		gen++
		cid = gen<<s.shift | i
	}
	*t = slot{busy: true, cid: cid, gen: gen, r2ts: t.r2ts[:0]}
	return t
}

// await notes that a read waits for data, longer than none.
func (s *slots) await(t *slot) {
	t.waits = true
	s.awaited += int(t.length)
	t.older = s.newest
	if s.newest == nil {
		s.oldest = t
	} else {
		s.newest.newer = t
	}
	s.newest = t
}

// served notes that a read waits no longer.
func (s *slots) served(t *slot) {
	if !t.waits {
		return
	}
	t.waits = false
	s.awaited -= int(t.length - t.got)
	if t.older == nil {
		s.oldest = t.newer
	} else {
		t.older.newer = t.newer
	}
	if t.newer == nil {
		s.newest = t.older
	} else {
		t.newer.older = t.older
	}
	t.older, t.newer = nil, nil
}

func (s *slots) put(t *slot) {
	s.served(t)
	t.busy = false
	t.cmd = nil
	s.free = append(s.free, uint16(s.index(t)))
}

func (s *slots) index(t *slot) int { return int(t.cid & (1<<s.shift - 1)) }

// find returns the slot of the outstanding command with that CID, or nil.
func (s *slots) find(cid uint16) *slot {
	i := int(cid & (1<<s.shift - 1))
	if i >= len(s.all) {
		return nil
	}
	if t := &s.all[i]; t.busy && !t.finished && t.cid == cid {
		return t
	}
	return nil
}

func (s *slots) used() int { return len(s.all) - len(s.free) }
