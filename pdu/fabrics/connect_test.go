package fabrics

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu/nvme"
)

const headerLen = 8 // the common header of a PDU; SQE or CQE follow it

const (
	vecHostNQN = "nqn.2014-08.org.nvmexpress:uuid:12345678-9abc-def0-1234-56789abcdef0"
	vecHostID  = "12345678-9abc-def0-1234-56789abcdef0"
	vecSubNQN  = "nqn.2016-06.io.spdk:cnode1"
)

func sqeOf(t *testing.T, v vector) (s nvme.SQE, wire []byte) {
	t.Helper()
	wire = v.bytes(t)[headerLen:][:nvme.SQELen]
	require.NoError(t, s.Decode(wire))
	return s, wire
}

func cqeOf(t *testing.T, v vector) (c nvme.CQE) {
	t.Helper()
	require.NoError(t, c.Decode(v.bytes(t)[headerLen:]))
	return c
}

func TestVectorConnect(t *testing.T) {
	id, err := ParseHostID(vecHostID)
	require.NoError(t, err)
	for _, c := range []struct {
		v    vector
		pdo  int
		cid  uint16
		want Connect
		data ConnectData
	}{
		{
			vecConnectAdmin, 76, 1,
			Connect{SQSIZE: 31, KATO: 120000},
			ConnectData{HostID: id, CNTLID: CNTLIDDynamic, SubNQN: vecSubNQN, HostNQN: vecHostNQN},
		},
		{
			vecConnectIO, 72, 0x10,
			Connect{QID: 1, SQSIZE: 127},
			ConnectData{HostID: id, CNTLID: 1, SubNQN: vecSubNQN, HostNQN: vecHostNQN},
		},
	} {
		t.Run(c.v.name, func(t *testing.T) {
			sqe, wire := sqeOf(t, c.v)
			require.Equal(t, TypeConnect, Type(&sqe))
			var got Connect
			require.NoError(t, got.DecodeSQE(&sqe))
			require.Equal(t, c.want, got)
			built := c.want.SQE()
			built.CID = c.cid
			require.Equal(t, wire, built.Append(nil))

			data := c.v.bytes(t)[c.pdo:][:ConnectDataLen]
			var d ConnectData
			require.NoError(t, d.Decode(data))
			require.Equal(t, c.data, d)
			enc, err := c.data.Append(nil)
			require.NoError(t, err)
			require.Equal(t, data, enc)
		})
	}
}

// F14: SQSIZE goes out as it is given, which is entries minus 1.
func TestF14ConnectBits(t *testing.T) {
	for _, c := range []struct {
		c                   Connect
		cdw10, cdw11, cdw12 uint32
	}{
		{Connect{RECFMT: 0xFFFF}, 0x0000FFFF, 0, 0},
		{Connect{QID: 0xFFFE}, 0xFFFE0000, 0, 0},
		{Connect{SQSIZE: 0xFFFF}, 0, 0x0000FFFF, 0},
		{Connect{CATTR: 0xFF}, 0, 0x00FF0000, 0},
		{Connect{CATTR: CATTRDisableSQFlowControl}, 0, 0x00040000, 0},
		{Connect{CATTR: CATTRQueueDeletion}, 0, 0x00080000, 0},
		{Connect{KATO: 0xFFFFFFFF}, 0, 0, 0xFFFFFFFF},
	} {
		s := c.c.SQE()
		require.Equal(t, nvme.SQE{
			Opcode: 0x7F, Flags: 0x40, NSID: 1, SGL: nvme.SGL{Length: 1024, ID: 0x01},
			CDW10: c.cdw10, CDW11: c.cdw11, CDW12: c.cdw12,
		}, s)
		var got Connect
		require.NoError(t, got.DecodeSQE(&s))
		require.Equal(t, c.c, got)
	}
}

func TestWrongCommand(t *testing.T) {
	read, get, connect := nvme.Read(1, 0, 0), PropertyGet{}, Connect{}
	getSQE, connectSQE := get.SQE(), connect.SQE()
	require.EqualError(t, connect.DecodeSQE(&read), "fabrics: SQE with opcode 0x02 is not a Connect command")
	require.EqualError(t, connect.DecodeSQE(&getSQE), "fabrics: SQE is a Property Get command, not Connect")
	require.Error(t, get.DecodeSQE(&connectSQE))
	require.Error(t, new(PropertySet).DecodeSQE(&connectSQE))
	require.Error(t, new(Disconnect).DecodeSQE(&connectSQE))
}

func TestConnectDataBounds(t *testing.T) {
	longest := vecSubNQN + strings.Repeat("x", NQNMaxLen-len(vecSubNQN))
	d := ConnectData{SubNQN: longest, HostNQN: longest}
	b, err := d.Append([]byte("head"))
	require.NoError(t, err)
	require.Len(t, b, 4+ConnectDataLen)
	var got ConnectData
	require.NoError(t, got.Decode(b[4:]))
	require.Equal(t, d, got)

	for name, bad := range map[string]ConnectData{
		"SUBNQN of 224 bytes is longer than 223":  {SubNQN: longest + "x", HostNQN: vecHostNQN},
		"HOSTNQN of 224 bytes is longer than 223": {SubNQN: vecSubNQN, HostNQN: longest + "x"},
		"SUBNQN is empty":                         {HostNQN: vecHostNQN},
		"HOSTNQN is empty":                        {SubNQN: vecSubNQN},
		`SUBNQN "a\x00b" contains a NUL byte`:     {SubNQN: "a\x00b", HostNQN: vecHostNQN},
	} {
		b, err := bad.Append([]byte("head"))
		require.ErrorContains(t, err, name)
		require.Equal(t, "head", string(b))
	}

	// An NQN that is not ended in time must not run into the next field.
	for off, field := range map[int]uint16{256: IPOSubNQN, 512: IPOHostNQN} {
		wire := make([]byte, ConnectDataLen)
		for i := range 256 {
			wire[off+i] = 'x'
		}
		var de *ConnectDataError
		require.ErrorAs(t, got.Decode(wire), &de)
		require.Equal(t, field, de.Field)
		wire[off+NQNMaxLen] = 0
		require.NoError(t, got.Decode(wire))
		wire[off+NQNMaxLen], wire[off+NQNMaxLen+1] = 'x', 0
		require.ErrorAs(t, got.Decode(wire), &de)
	}
	require.EqualError(t, &ConnectDataError{Field: IPOSubNQN}, "fabrics: Connect data: SUBNQN is longer than 223 bytes")

	var short *nvme.ShortError
	require.ErrorAs(t, got.Decode(make([]byte, ConnectDataLen-1)), &short)
}

func TestVectorConnectResponse(t *testing.T) {
	for _, c := range []struct {
		v    vector
		cid  uint16
		want ConnectResponse
	}{
		{vecConnectResp, 1, ConnectResponse{CNTLID: 1, SQHD: 1}},
		{vecConnectIOResp, 0x10, ConnectResponse{CNTLID: 1, SQHD: 1}},
	} {
		cqe := cqeOf(t, c.v)
		var r ConnectResponse
		require.NoError(t, r.DecodeCQE(&cqe))
		require.Equal(t, c.want, r)
		require.True(t, r.SQFlowControl())
		require.Equal(t, cqe, r.CQE(c.cid))
	}
}

func TestConnectResponseBits(t *testing.T) {
	for dw0, want := range map[uint32]ConnectResponse{
		0x0000FFEF: {CNTLID: 0xFFEF, SQHD: 0xFFFF},
		0x00020001: {CNTLID: 1, ATR: true, SQHD: 0xFFFF},
		0x00040001: {CNTLID: 1, ASCR: true, SQHD: 0xFFFF},
		0x00060000: {ATR: true, ASCR: true, SQHD: 0xFFFF},
	} {
		c := nvme.CQE{DW0: dw0, SQHD: 0xFFFF, CID: 5}
		var r ConnectResponse
		require.NoError(t, r.DecodeCQE(&c))
		require.Equal(t, want, r)
		require.False(t, r.SQFlowControl())
		require.Equal(t, c, r.CQE(5))
	}
	var r ConnectResponse
	require.NoError(t, r.DecodeCQE(&nvme.CQE{DW0: 0xFFF90001}), "reserved bits are ignored")
	require.Equal(t, ConnectResponse{CNTLID: 1}, r)
}

func TestVectorConnectInvalid(t *testing.T) {
	cqe := cqeOf(t, vecConnectInvalid)
	require.Equal(t, cqe, ConnectInvalid(1, IPOSubNQN, true))
	r := ConnectResponse{CNTLID: 9}
	err := r.DecodeCQE(&cqe)
	var ce *ConnectError
	require.ErrorAs(t, err, &ce)
	require.Equal(t, &ConnectError{Status: 0x8304, IPO: 256, IATTR: true}, ce)
	require.Equal(t, "SUBNQN", ce.Field())
	require.EqualError(t, err, "Connect: NVMe status 0x182 Connect Invalid Parameters, do not retry: the controller does not accept SUBNQN")
	require.ErrorIs(t, err, StatusConnectInvalidParameters)
	require.Equal(t, ConnectResponse{CNTLID: 9}, r, "nothing is decoded from a failure")
}

func TestConnectInvalidFields(t *testing.T) {
	for _, c := range []struct {
		ipo  uint16
		data bool
		want string
	}{
		{40, false, "RECFMT"},
		{42, false, "QID"},
		{43, false, "QID"},
		{44, false, "SQSIZE"},
		{46, false, "CATTR"},
		{48, false, "KATO"},
		{51, false, "KATO"},
		{0, false, "SQE byte 0"},
		{52, false, "SQE byte 52"},
		{256, false, "SQE byte 256"},
		{0, true, "HOSTID"},
		{15, true, "HOSTID"},
		{16, true, "CNTLID"},
		{18, true, "data byte 18"},
		{256, true, "SUBNQN"},
		{511, true, "SUBNQN"},
		{512, true, "HOSTNQN"},
		{768, true, "data byte 768"},
	} {
		cqe := ConnectInvalid(0, c.ipo, c.data)
		var ce *ConnectError
		require.ErrorAs(t, new(ConnectResponse).DecodeCQE(&cqe), &ce)
		require.Equal(t, c.want, ce.Field())
	}
}

// The codes from 0x180 on are those of fabrics, not of the NVM command set.
func TestConnectErrorText(t *testing.T) {
	for code, want := range map[nvme.Code]string{
		StatusConnectIncompatibleFormat: "Connect: NVMe status 0x180 Connect Incompatible Format",
		StatusConnectControllerBusy:     "Connect: NVMe status 0x181 Connect Controller Busy",
		StatusConnectRestartDiscovery:   "Connect: NVMe status 0x183 Connect Restart Discovery",
		StatusConnectInvalidHost:        "Connect: NVMe status 0x184 Connect Invalid Host",
		StatusAuthenticationRequired:    "Connect: NVMe status 0x191 Authentication Required",
		nvme.StatusCommandSequenceError: "Connect: NVMe status 0x00C Command Sequence Error",
		nvme.StatusInvalidQueueID:       "Connect: NVMe status 0x101 Invalid Queue Identifier",
	} {
		cqe := nvme.CQE{Status: code.Status(), DW0: 0x00010100} // IPO means nothing here
		err := new(ConnectResponse).DecodeCQE(&cqe)
		require.EqualError(t, err, want)
		require.ErrorIs(t, err, code)
		var s nvme.Status
		require.True(t, errors.As(err, &s))
		require.Equal(t, code.Status(), s)
		var ce *ConnectError
		require.ErrorAs(t, err, &ce)
		require.Empty(t, ce.Field())
	}
}

func TestConnectRetryable(t *testing.T) {
	busy := &ConnectError{Status: StatusConnectControllerBusy.Status()}
	require.True(t, busy.Retryable())
	busy.Status = busy.Status.WithDNR()
	require.False(t, busy.Retryable())
	require.False(t, (&ConnectError{Status: StatusConnectInvalidHost.Status()}).Retryable())
	require.True(t, (&ConnectError{Status: nvme.StatusInternalError.Status()}).Retryable())
}

func TestCommandError(t *testing.T) {
	require.NoError(t, CommandError(TypePropertyGet, 0))
	err := CommandError(TypeDisconnect, StatusInvalidQueueType.Status())
	require.EqualError(t, err, "Disconnect: NVMe status 0x185 Invalid Queue Type")
	require.ErrorIs(t, err, StatusInvalidQueueType)
	require.EqualError(t, CommandError(TypePropertySet, nvme.Status(1<<9)), "Property Set: NVMe status 0x100 Completion Queue Invalid")
}

func TestTypeNames(t *testing.T) {
	for ft, want := range map[FCTYPE]string{
		0x00: "Property Set", 0x01: "Connect", 0x04: "Property Get", 0x05: "Authentication Send", 0x06: "Authentication Receive", 0x08: "Disconnect",
		0x02: "fabrics command 0x02", 0xC0: "vendor specific fabrics command 0xC0",
	} {
		require.Equal(t, want, fmt.Sprint(ft))
	}
}

func TestVectorProperties(t *testing.T) {
	sqe, wire := sqeOf(t, vecPropertyGet)
	var g PropertyGet
	require.NoError(t, g.DecodeSQE(&sqe))
	require.Equal(t, GetProperty(PropertyCAP), g)
	require.Equal(t, PropertyGet{OFST: 0, Wide: true}, g)
	built := g.SQE()
	built.CID = 2
	require.Equal(t, wire, built.Append(nil))

	cqe := cqeOf(t, vecCAP)
	want := PropertyResult(2, 0x080000201E01007F)
	want.SQHD = 2
	require.Equal(t, want, cqe)

	sqe, wire = sqeOf(t, vecPropertySet)
	var s PropertySet
	require.NoError(t, s.DecodeSQE(&sqe))
	require.Equal(t, SetProperty(PropertyCC, uint64(CCDefault|CCEnable)), s)
	built = s.SQE()
	built.CID = 3
	require.Equal(t, wire, built.Append(nil))

	cqe = cqeOf(t, vecPropertySetResp)
	require.NoError(t, CommandError(TypePropertySet, cqe.Status))
}

func TestPropertySizes(t *testing.T) {
	narrow := PropertySet{OFST: PropertyCC, Value: 0x1122334455667788}
	s := narrow.SQE()
	require.Equal(t, nvme.SQE{Opcode: 0x7F, Flags: 0x40, SGL: nvme.SGL{ID: 0x5A}, CDW11: 0x14, CDW12: 0x55667788}, s)
	s.CDW13 = 0x11223344 // not part of a value of 4 bytes
	var got PropertySet
	require.NoError(t, got.DecodeSQE(&s))
	require.Equal(t, PropertySet{OFST: PropertyCC, Value: 0x55667788}, got)

	wide := PropertySet{OFST: 0x28, Wide: true, Value: 0x1122334455667788}
	s = wide.SQE()
	require.Equal(t, nvme.SQE{Opcode: 0x7F, Flags: 0x40, SGL: nvme.SGL{ID: 0x5A}, CDW10: 1, CDW11: 0x28, CDW12: 0x55667788, CDW13: 0x11223344}, s)
	require.NoError(t, got.DecodeSQE(&s))
	require.Equal(t, wide, got)

	get := GetProperty(PropertyCSTS)
	s = get.SQE()
	require.Equal(t, nvme.SQE{Opcode: 0x7F, Flags: 0x40, NSID: 4, SGL: nvme.SGL{ID: 0x5A}, CDW11: 0x1C}, s)
	s.CDW10 = 2
	require.EqualError(t, get.DecodeSQE(&s), "fabrics: Property Get of CSTS: ATTRIB 2 is not a size; 0 is 4 bytes, 1 is 8")
	s = narrow.SQE()
	s.CDW10 = 7
	require.ErrorContains(t, got.DecodeSQE(&s), "ATTRIB 7")
}

func TestPropertyNames(t *testing.T) {
	for p, want := range map[Property]string{0: "CAP", 8: "VS", 0x14: "CC", 0x1C: "CSTS", 0x20: "NSSR", 0x68: "CRTO", 0x28: "property 0x28"} {
		require.Equal(t, want, p.String())
	}
}

func TestDisconnect(t *testing.T) {
	d := Disconnect{RECFMT: 0xABCD}
	s := d.SQE()
	require.Equal(t, nvme.SQE{Opcode: 0x7F, Flags: 0x40, NSID: 8, SGL: nvme.SGL{ID: 0x5A}, CDW10: 0xABCD}, s)
	var got Disconnect
	require.NoError(t, got.DecodeSQE(&s))
	require.Equal(t, d, got)
}

func TestConnectDoesNotAllocate(t *testing.T) {
	c := Connect{QID: 1, SQSIZE: 127}
	d := ConnectData{SubNQN: vecSubNQN, HostNQN: vecHostNQN}
	buf := make([]byte, 0, nvme.SQELen+ConnectDataLen)
	require.Zero(t, testing.AllocsPerRun(100, func() {
		s := c.SQE()
		b, err := d.Append(s.Append(buf))
		if err != nil || c.DecodeSQE(&s) != nil || binary.LittleEndian.Uint16(b[nvme.SQELen+16:]) != 0 {
			panic("encode failed")
		}
	}))
}
