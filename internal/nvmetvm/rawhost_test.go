//go:build linux

package nvmetvm

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// rawQueue is a queue of a host in as few bytes as it takes, so that the target is tested with nothing of this module.
type rawQueue struct {
	t    *testing.T
	conn net.Conn
}

// sqe returns a submission queue entry with the SGL descriptor type and length, for the caller to complete.
func sqe(opcode, sglType byte, length int) []byte {
	s := make([]byte, 64)
	s[0], s[1] = opcode, 0x40 // PSDT: SGL
	binary.LittleEndian.PutUint32(s[32:], uint32(length))
	s[39] = sglType
	return s
}

const (
	sglInCapsule = 0x01
	sglTransport = 0x5a
)

// command sends the entry with in-capsule data and returns the data that comes back, and the CQE's DW0 and status.
func (q rawQueue) command(sqe, data []byte) (back []byte, dw0 uint32, status uint16) {
	q.t.Helper()
	header := []byte{0x04, 0, 72, 0, 0, 0, 0, 0}
	if len(data) > 0 {
		header[3] = 72
	}
	binary.LittleEndian.PutUint32(header[4:], uint32(72+len(data)))
	_, err := q.conn.Write(bytes.Join([][]byte{header, sqe, data}, nil))
	require.NoError(q.t, err)
	for {
		pdu := make([]byte, 24)
		_, err := io.ReadFull(q.conn, pdu)
		require.NoError(q.t, err)
		rest := make([]byte, binary.LittleEndian.Uint32(pdu[4:])-24)
		_, err = io.ReadFull(q.conn, rest)
		require.NoError(q.t, err)
		switch pdu[0] {
		case 0x07: // C2HData
			back = append(back, rest...)
		case 0x05: // CapsuleResp
			return back, binary.LittleEndian.Uint32(pdu[8:]), binary.LittleEndian.Uint16(pdu[22:]) >> 1
		default:
			require.Failf(q.t, "unexpected PDU", "%x %x", pdu, rest)
		}
	}
}

// connect opens queue qid of a controller (0xffff: a new one) and returns the controller's ID and the command's status.
func connect(t *testing.T, addr, subnqn, hostnqn string, qid, cntlid uint16) (rawQueue, uint16, uint16) {
	t.Helper()
	q := rawQueue{t, dial(t, addr)}
	readICResp(t, q.conn)
	s := sqe(0x7f, sglInCapsule, 1024)
	s[4] = 0x01 // Connect
	binary.LittleEndian.PutUint16(s[42:], qid)
	binary.LittleEndian.PutUint16(s[44:], 31) // SQSIZE
	data := make([]byte, 1024)
	data[0] = 1 // HOSTID
	binary.LittleEndian.PutUint16(data[16:], cntlid)
	copy(data[256:], subnqn)
	copy(data[512:], hostnqn)
	_, dw0, status := q.command(s, data)
	if status == 0 && qid == 0 {
		s := sqe(0x7f, 0, 0)
		s[4] = 0x00                                     // Property Set
		binary.LittleEndian.PutUint32(s[44:], 0x14)     // CC
		binary.LittleEndian.PutUint32(s[48:], 0x460001) // EN, IOSQES 6, IOCQES 4
		_, _, status := q.command(s, nil)
		require.Zero(t, status)
	}
	return q, uint16(dw0), status
}

// What a host writes reaches the device whose hash SHA256 takes, also after a hash has filled the guest's page cache.
func TestHostWritesReachTheDevice(t *testing.T) {
	vm := Start(t)
	_, cntlid, status := connect(t, vm.Addr(1), NQNMulti, HostNQNAllowed, 0, 0xffff)
	require.Zero(t, status)
	io, _, status := connect(t, vm.Addr(1), NQNMulti, HostNQNAllowed, 1, cntlid)
	require.Zero(t, status)
	for nsid, dev := range map[byte]string{1: DevMulti1, 2: DevMulti2, 3: DevMulti3} {
		for _, fill := range []string{"first", "other"} {
			data := bytes.Repeat([]byte(fill), 4096)[:4096]
			write := sqe(0x01, sglInCapsule, len(data))
			write[4] = nsid
			if nsid != 2 {
				write[48] = 8 - 1 // blocks, 0's based
			}
			_, _, status := io.command(write, data)
			require.Zero(t, status)
			got, err := vm.SHA256(t.Context(), dev, 0, 4096)
			require.NoError(t, err)
			sum := sha256.Sum256(data)
			require.Equal(t, hex.EncodeToString(sum[:]), got, "%s, %s write", dev, fill)
		}
	}
}

func TestClosedSubsystem(t *testing.T) {
	vm := Start(t)
	const connectInvalidHost = 0x184
	_, _, status := connect(t, vm.Addr(1), NQNClosed, "nqn.2025-01.io.nvmetvm:stranger", 0, 0xffff)
	require.EqualValues(t, connectInvalidHost, status&0x7ff)
	_, _, status = connect(t, vm.Addr(1), NQNClosed, HostNQNAllowed, 0, 0xffff)
	require.Zero(t, status)
}

func TestDiscoveryLogIsDialable(t *testing.T) {
	vm := Start(t)
	for port := 1; port <= 2; port++ {
		q, _, status := connect(t, vm.Addr(port), "nqn.2014-08.org.nvmexpress.discovery", HostNQNAllowed, 0, 0xffff)
		require.Zero(t, status)
		const size = 8 << 10
		getLog := sqe(0x02, sglTransport, size)
		getLog[40] = 0x70                                    // discovery
		binary.LittleEndian.PutUint16(getLog[42:], size/4-1) // NUMDL
		log, _, status := q.command(getLog, nil)
		require.Zero(t, status)
		require.Len(t, log, size)
		text := func(b []byte) string { return string(bytes.TrimRight(b, "\x00 ")) }
		var records []string
		for i := range binary.LittleEndian.Uint64(log[8:]) {
			r := log[1024*(i+1):][:1024]
			records = append(records, fmt.Sprintf("%s %s", text(r[256:512]), net.JoinHostPort(text(r[512:768]), text(r[32:64]))))
		}
		want := []string{"nqn.2014-08.org.nvmexpress.discovery " + vm.Addr(port)}
		for _, nqn := range []string{NQNMulti, NQNFile, NQNZNS, NQNClosed} {
			want = append(want, nqn+" "+vm.Addr(port))
		}
		if port == 1 {
			want = append(want, "nqn.2014-08.org.nvmexpress.discovery 127.0.9.9:8009")
		}
		require.ElementsMatch(t, want, records)
	}
}
