package fabrics

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// whole fills b with zeros to n bytes, which keeps the corpus small.
func whole(b []byte, n int) []byte {
	return append(bytes.Clone(b), make([]byte, max(n-len(b), 0))...)
}

// fuzzCommand checks a command: what decodes from an SQE survives a round trip.
func fuzzCommand[T any, P interface {
	*T
	SQE() nvme.SQE
	DecodeSQE(*nvme.SQE) error
}](f *testing.F, fctype FCTYPE,
) {
	f.Add([]byte{byte(nvme.OpFabrics), 0x40, 1, 0, byte(fctype)})
	f.Fuzz(func(t *testing.T, b []byte) {
		var s nvme.SQE
		require.NoError(t, s.Decode(whole(b, nvme.SQELen)))
		p := P(new(T))
		if err := p.DecodeSQE(&s); err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		require.Equal(t, fctype, Type(&s)&0xFF)
		again, q := p.SQE(), P(new(T))
		require.NoError(t, q.DecodeSQE(&again))
		require.Equal(t, p, q)
	})
}

func FuzzConnect(f *testing.F)     { fuzzCommand[Connect](f, TypeConnect) }
func FuzzPropertyGet(f *testing.F) { fuzzCommand[PropertyGet](f, TypePropertyGet) }
func FuzzPropertySet(f *testing.F) { fuzzCommand[PropertySet](f, TypePropertySet) }
func FuzzDisconnect(f *testing.F)  { fuzzCommand[Disconnect](f, TypeDisconnect) }

func FuzzConnectResponse(f *testing.F) {
	f.Add([]byte{1})
	f.Fuzz(func(t *testing.T, b []byte) {
		var c nvme.CQE
		require.NoError(t, c.Decode(whole(b, nvme.CQELen)))
		var r, q ConnectResponse
		if err := r.DecodeCQE(&c); err != nil {
			require.NotEmpty(t, err.Error())
			require.False(t, c.Status.OK())
			return
		}
		again := r.CQE(c.CID)
		require.NoError(t, q.DecodeCQE(&again))
		require.Equal(t, r, q)
	})
}

// fuzzData checks a structure in the data of a command.
func fuzzData[T any, P interface {
	*T
	Append([]byte) ([]byte, error)
	Decode([]byte) error
}](f *testing.F, size int,
) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < size {
			var short *nvme.ShortError
			require.ErrorAs(t, P(new(T)).Decode(b), &short)
		}
		b = whole(b, size)
		p, q := P(new(T)), P(new(T))
		if err := p.Decode(b); err != nil {
			require.NotEmpty(t, err.Error())
			return
		}
		enc, err := p.Append(nil)
		if err != nil {
			require.ErrorContains(t, err, "is empty", "only an empty NQN can be read but not sent")
			return
		}
		require.NoError(t, q.Decode(enc))
		require.Equal(t, p, q)
	})
}

func FuzzConnectData(f *testing.F)    { fuzzData[ConnectData](f, ConnectDataLen) }
func FuzzDiscoveryEntry(f *testing.F) { fuzzData[DiscoveryEntry](f, DiscoveryEntryLen) }

func FuzzDiscoveryHeader(f *testing.F) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		var h, q DiscoveryHeader
		require.Equal(t, len(b) < discoveryHeaderUsed, h.Decode(b) != nil)
		require.NoError(t, h.Decode(whole(b, discoveryHeaderUsed)))
		require.NoError(t, q.Decode(h.Append(nil)))
		require.Equal(t, h, q)
		n, err := h.LogBytes(1000)
		require.True(t, err != nil || n >= DiscoveryHeaderLen && n <= 1001*1024)
	})
}

func FuzzValidateNQN(f *testing.F) {
	f.Add(DiscoveryNQN)
	f.Add(vecHostNQN)
	f.Add(vecSubNQN)
	f.Fuzz(func(t *testing.T, s string) {
		if ValidateNQN(s) != nil {
			return
		}
		d, q := ConnectData{SubNQN: s, HostNQN: s}, ConnectData{}
		enc, err := d.Append(nil)
		require.NoError(t, err, "a valid NQN can be sent")
		require.NoError(t, q.Decode(enc))
		require.Equal(t, d, q)
	})
}

func FuzzParseHostID(f *testing.F) {
	f.Add(vecHostID)
	f.Fuzz(func(t *testing.T, s string) {
		h, err := ParseHostID(s)
		if err != nil {
			return
		}
		require.True(t, bytes.EqualFold([]byte(s), []byte(h.String())))
		again, err := ParseHostID(h.String())
		require.NoError(t, err)
		require.Equal(t, h, again)
	})
}
