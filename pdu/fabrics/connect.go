package fabrics

import (
	"encoding/binary"
	"fmt"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// CATTR is the attributes of a Connect command; bits 1:0 are the priority class.
type CATTR uint8

// Bits of CATTR.
const (
	CATTRPriorityMask         CATTR = 3 << 0 // 0 urgent, 1 high, 2 medium, 3 low
	CATTRDisableSQFlowControl CATTR = 1 << 2
	CATTRQueueDeletion        CATTR = 1 << 3 // the host supports deletion of single I/O queues
	CATTRConnectionEntity     CATTR = 1 << 4
)

// Connect is the Connect command: it makes a connection a queue of a controller.
type Connect struct {
	RECFMT uint16 // format of the command, 0
	QID    uint16 // 0 the admin queue, 1 to 65534 I/O queues
	SQSIZE uint16 // entries of the queue, 0's based; at least 1
	CATTR  CATTR
	KATO   uint32 // keep alive timeout, milliseconds; 0 on I/O queues and for none
}

// SQE builds the command, with the SGL for [ConnectDataLen] bytes in the capsule.
func (c *Connect) SQE() nvme.SQE {
	s := command(TypeConnect)
	s.SGL = nvme.SGL{Length: ConnectDataLen, ID: nvme.SGLInCapsule}
	s.CDW10 = uint32(c.QID)<<16 | uint32(c.RECFMT)
	s.CDW11 = uint32(c.CATTR)<<16 | uint32(c.SQSIZE)
	s.CDW12 = c.KATO
	return s
}

// DecodeSQE reads the command. The values are not judged: a target answers
// those that it does not like with [ConnectInvalid].
func (c *Connect) DecodeSQE(s *nvme.SQE) error {
	if err := expect(TypeConnect, s); err != nil {
		return err
	}
	*c = Connect{
		RECFMT: uint16(s.CDW10),
		QID:    uint16(s.CDW10 >> 16),
		SQSIZE: uint16(s.CDW11),
		CATTR:  CATTR(s.CDW11 >> 16),
		KATO:   s.CDW12,
	}
	return nil
}

// ConnectDataLen is the length of the data of a Connect command in bytes.
const ConnectDataLen = 1024

// Values of CNTLID in the Connect data of the admin queue, and in discovery
// log entries.
const (
	CNTLIDStatic  uint16 = 0xFFFE // static model, any controller
	CNTLIDDynamic uint16 = 0xFFFF // dynamic model, make one
)

// ConnectData is the data of a Connect command: who connects, and to what.
type ConnectData struct {
	HostID  HostID // HOSTID, not zero
	CNTLID  uint16 // [CNTLIDDynamic] on the admin queue; on I/O queues that of the admin queue
	SubNQN  string // SUBNQN, the subsystem
	HostNQN string // HOSTNQN, the host
}

// Append adds the 1024 bytes of the data to b. An NQN that does not fit is an
// error, and b comes back as it was.
func (d *ConnectData) Append(b []byte) ([]byte, error) {
	if err := fitNQN("SUBNQN", d.SubNQN); err != nil {
		return b, err
	}
	if err := fitNQN("HOSTNQN", d.HostNQN); err != nil {
		return b, err
	}
	n := len(b)
	b = append(b, make([]byte, ConnectDataLen)...)
	w := b[n:]
	copy(w, d.HostID[:])
	binary.LittleEndian.PutUint16(w[16:], d.CNTLID)
	copy(w[256:], d.SubNQN)
	copy(w[512:], d.HostNQN)
	return b, nil
}

// Decode reads the data from the first 1024 bytes of b. An NQN that
// is not ended by a NUL within [NQNMaxLen] bytes is a [ConnectDataError].
func (d *ConnectData) Decode(b []byte) error {
	if len(b) < ConnectDataLen {
		return &nvme.ShortError{What: "Connect data", Need: ConnectDataLen, Got: len(b)}
	}
	d.HostID = HostID(b[:16])
	d.CNTLID = binary.LittleEndian.Uint16(b[16:])
	d.SubNQN = cstring(b[256:512])
	if len(d.SubNQN) > NQNMaxLen {
		return &ConnectDataError{Field: IPOSubNQN}
	}
	d.HostNQN = cstring(b[512:768])
	if len(d.HostNQN) > NQNMaxLen {
		return &ConnectDataError{Field: IPOHostNQN}
	}
	return nil
}

// A ConnectDataError says that an NQN in Connect data does not end in time.
type ConnectDataError struct {
	Field uint16 // [IPOSubNQN] or [IPOHostNQN]: the IPO for the answer
}

func (e *ConnectDataError) Error() string {
	return fmt.Sprintf("fabrics: Connect data: %s is longer than %d bytes", ipoName(e.Field, true), NQNMaxLen)
}
