package nvmetest

import (
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// fuzzStart is how an input begins that is to reach far: ICReq, Connect, CC.EN.
func fuzzStart(t *testing.F, dgst pdu.Digests) []byte {
	b := (&pdu.ICReq{DGST: dgst, MAXR2T: 1}).Append(nil)
	l := pdu.Layout{Digests: dgst}
	add := func(cid uint16, sqe nvme.SQE, data []byte) {
		sqe.CID = cid
		var p pdu.CapsuleCmd
		sqe.Append(p.SQE[:0])
		b = p.Append(b, l, data)
	}
	d := fabrics.ConnectData{HostID: testHostID, CNTLID: 0xFFFF, SubNQN: DefaultNQN, HostNQN: testHostNQN}
	data, err := d.Append(nil)
	require.NoError(t, err)
	connect := fabrics.Connect{SQSIZE: 31, KATO: 1000}
	add(1, connect.SQE(), data)
	set := fabrics.SetProperty(fabrics.PropertyCC, uint64(fabrics.CCDefault.WithEN(true)))
	add(2, set.SQE(), nil)
	id := nvme.Identify(1, 0, 0)
	id.SGL = nvme.SGL{ID: nvme.SGLTransport, Length: 4096}
	add(3, id, nil)
	host := nvme.SetFeatures(nvme.FIDHostBehavior, 0, 0, false)
	host.SGL = nvme.SGL{ID: nvme.SGLTransport, Length: 512}
	add(4, host, nil)
	p := pdu.Data{Type: pdu.TypeH2CData, Flags: pdu.FlagLast, CCCID: 4, TTAG: 0}
	return p.Append(b, l, make([]byte, 512))
}

// FuzzTarget sends bytes to the target as a host, and to an I/O queue that is connected. It must
// not panic, and must end the connection, or wait for more, when the bytes are over.
func FuzzTarget(f *testing.F) {
	f.Add(uint8(0), fuzzStart(f, pdu.Digests{}))
	f.Add(uint8(1), fuzzStart(f, pdu.Digests{Header: true, Data: true}))
	f.Add(uint8(2), fuzzStart(f, pdu.Digests{Data: true}))
	io1 := func(sqe nvme.SQE, data []byte) []byte {
		sqe.CID = 7
		sqe.SGL = nvme.SGL{ID: nvme.SGLTransport, Length: 4096}
		if data != nil {
			sqe.SGL = nvme.SGL{ID: nvme.SGLInCapsule, Length: uint32(len(data))}
		}
		var p pdu.CapsuleCmd
		sqe.Append(p.SQE[:0])
		return p.Append(nil, pdu.Layout{}, data)
	}
	for mode := range uint8(3) {
		f.Add(mode|4, io1(nvme.Read(1, 0, 7), nil))
		f.Add(mode|4, io1(nvme.Write(1, 0, 7), nil))
		f.Add(mode|4, io1(nvme.Write(1, 0, 0), make([]byte, 512)))
		f.Add(mode|4, io1(nvme.DatasetManagement(1, 1, 4), make([]byte, 32)))
		f.Add(mode|4, append(io1(nvme.WriteZeroes(1, 0, 9), nil), ch(pdu.TypeH2CData, 4, 24, 24, 40, 40)...))
	}
	targets := [3]*Target{}
	for mode := range targets {
		target, err := Start(Config{Mode: Mode(mode), CPDA: -1, Subsystems: []Subsystem{{NQN: DefaultNQN, Namespaces: []Namespace{{Backend: Memory(64 << 10)}}}}})
		require.NoError(f, err)
		f.Cleanup(func() { target.Close() })
		targets[mode] = target
	}
	f.Fuzz(func(t *testing.T, how uint8, b []byte) {
		target := targets[how%4%3]
		// A pipe is faster than TCP, and tells when every byte was taken.
		pipe := func() net.Conn {
			nc, served := net.Pipe()
			target.begin(target.ports[0], served)
			require.NoError(t, nc.SetDeadline(time.Now().Add(10*time.Second)))
			return nc
		}
		nc := pipe()
		closeAll := nc.Close
		if how&4 != 0 {
			adm := &host{t: t, nc: pipe(), in: pdu.Framing{Role: pdu.Host}}
			closeAll = func() error { return errors.Join(nc.Close(), adm.nc.Close()) }
			io := &host{t: t, nc: nc, in: pdu.Framing{Role: pdu.Host}}
			adm.ic(pdu.ICReq{})
			cntlid := uint16(adm.connect(fabrics.Connect{SQSIZE: 31}, DefaultNQN, fabrics.CNTLIDDynamic).cqe.DW0)
			adm.enable()
			adm.do(nvme.SetFeatures(nvme.FIDNumberOfQueues, 0, nvme.NumberOfQueues(1, 1), false), 0)
			io.ic(pdu.ICReq{})
			io.connect(fabrics.Connect{QID: 1, SQSIZE: 31}, DefaultNQN, cntlid)
		}
		go func() { _, _ = io.Copy(io.Discard, nc) }()
		_, err := nc.Write(b)
		require.False(t, errors.Is(err, os.ErrDeadlineExceeded), "the target takes no more bytes")
		_ = closeAll()
		for end := time.Now().Add(10 * time.Second); len(target.Conns()) > 0; time.Sleep(100 * time.Microsecond) {
			if time.Now().After(end) {
				t.Fatal("the connection does not end")
			}
		}
	})
}
