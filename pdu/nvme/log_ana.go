package nvme

import (
	"encoding/binary"
	"fmt"
)

const (
	anaHeaderLen = 16
	anaGroupLen  = 32 // without its NSIDs
)

// An ANAState is the state of an ANA group as one controller sees it.
type ANAState uint8

// ANA states. All other values are reserved.
const (
	ANAOptimized      ANAState = 0x1
	ANANonOptimized   ANAState = 0x2
	ANAInaccessible   ANAState = 0x3
	ANAPersistentLoss ANAState = 0x4
	ANAChange         ANAState = 0xF
)

// Usable tells whether I/O may be sent to a group in this state.
func (s ANAState) Usable() bool { return s == ANAOptimized || s == ANANonOptimized }

// String names the state.
func (s ANAState) String() string {
	switch s {
	case ANAOptimized:
		return "optimized"
	case ANANonOptimized:
		return "non-optimized"
	case ANAInaccessible:
		return "inaccessible"
	case ANAPersistentLoss:
		return "persistent loss"
	case ANAChange:
		return "change"
	}
	return fmt.Sprintf("reserved ANA state 0x%X", uint8(s))
}

// An ANALog is the Asymmetric Namespace Access log page (LID 0C).
type ANALog struct {
	CHGCNT uint64 // changes with the content
	Groups []ANAGroup
}

// An ANAGroup is one group descriptor of the ANA log.
type ANAGroup struct {
	AGID   uint32 // ANA group identifier, from 1
	CHGCNT uint64 // changes with this group
	State  ANAState
	NSIDs  []uint32 // none when the log was read with RGO
}

// Append adds the page to b. At most 65535 groups fit; more are left out.
func (l *ANALog) Append(b []byte) []byte {
	groups := l.Groups[:min(len(l.Groups), 0xFFFF)]
	b = binary.LittleEndian.AppendUint64(b, l.CHGCNT)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(groups)))
	b = append(b, make([]byte, 6)...)
	for i := range groups {
		g := &groups[i]
		b = binary.LittleEndian.AppendUint32(b, g.AGID)
		b = binary.LittleEndian.AppendUint32(b, uint32(len(g.NSIDs)))
		b = binary.LittleEndian.AppendUint64(b, g.CHGCNT)
		b = append(b, byte(g.State&0xF))
		b = append(b, make([]byte, 15)...)
		for _, id := range g.NSIDs {
			b = binary.LittleEndian.AppendUint32(b, id)
		}
	}
	return b
}

// Decode reads the page from b, which may be longer than the page, into the
// memory that l has. A page that ends before its last group does, and a group
// with AGID 0 or state 0, are errors. Reserved states are kept: they are not
// [ANAState.Usable]. Compare AGID with ANAGRPMAX by [ANALog.Check].
func (l *ANALog) Decode(b []byte) error {
	if err := need("ANA log header", b, anaHeaderLen); err != nil {
		return err
	}
	l.CHGCNT = binary.LittleEndian.Uint64(b)
	nagd := int(binary.LittleEndian.Uint16(b[8:]))
	l.Groups = l.Groups[:0]
	size := len(b)
	b = b[anaHeaderLen:]
	for i := range nagd {
		if len(b) < anaGroupLen {
			return fmt.Errorf("nvme: ANA log of %d bytes ends within group descriptor %d of %d", size, i+1, nagd)
		}
		n := binary.LittleEndian.Uint32(b[4:])
		if uint64(n)*4 > uint64(len(b)-anaGroupLen) {
			return fmt.Errorf("nvme: ANA log of %d bytes ends within the %d NSIDs of group descriptor %d of %d", size, n, i+1, nagd)
		}
		g := ANAGroup{
			AGID:   binary.LittleEndian.Uint32(b),
			CHGCNT: binary.LittleEndian.Uint64(b[8:]),
			State:  ANAState(b[16] & 0xF),
		}
		if g.AGID == 0 || g.State == 0 {
			return fmt.Errorf("nvme: ANA log: group descriptor %d of %d has AGID %d and state %d; both must not be 0", i+1, nagd, g.AGID, g.State)
		}
		b = b[anaGroupLen:]
		if n > 0 {
			g.NSIDs = make([]uint32, n)
		}
		for j := range g.NSIDs {
			g.NSIDs[j] = binary.LittleEndian.Uint32(b[4*j:])
		}
		b = b[4*n:]
		l.Groups = append(l.Groups, g)
	}
	return nil
}

// Check compares the group identifiers with ANAGRPMAX of Identify Controller.
func (l *ANALog) Check(anagrpmax uint32) error {
	for i := range l.Groups {
		if id := l.Groups[i].AGID; id == 0 || id > anagrpmax {
			return fmt.Errorf("nvme: ANA log: group identifier %d is not in 1 to ANAGRPMAX %d", id, anagrpmax)
		}
	}
	return nil
}
