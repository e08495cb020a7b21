package capture

import (
	"testing"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// TestLayer decodes single packets with gopacket's own means.
func TestLayer(t *testing.T) {
	const port = 17777
	layers.RegisterTCPPortLayerType(port, LayerType)
	for _, dgst := range allDigests {
		tr := &trace{t: t, segments: []int{65000}}
		c := tr.dial(host4, "192.0.2.9:17777").ic(dgst, 3)
		c.traffic(1)
		c.termReq()
		var got []PDU
		for i := range tr.packets {
			pkt := gopacket.NewPacket(tr.bytes(&tr.packets[i], "Ethernet"), layers.LayerTypeEthernet, gopacket.DecodeOptions{DecodeStreamsAsDatagrams: true})
			require.Nil(t, pkt.ErrorLayer())
			for _, l := range pkt.Layers() {
				if l, ok := l.(*Layer); ok {
					require.Equal(t, LayerType, l.LayerType())
					require.Len(t, l.LayerContents(), int(l.PLEN))
					got = append(got, l.PDU)
				}
			}
		}
		require.Len(t, got, len(c.sent))
		for i, p := range got {
			require.Equal(t, c.sent[i].to, p.To)
			require.Equal(t, c.sent[i].wire, wire(p, dgst))
			require.False(t, p.BadHeader || p.BadData)
			require.Equal(t, p.Type == pdu.TypeCapsuleCmd, p.SQE != nil)
			require.Equal(t, p.Type == pdu.TypeCapsuleResp, p.CQE != nil)
		}
	}
	require.Equal(t, "NVMe/TCP", LayerType.String())
}

// TestLayerErrors: what is no whole PDU is an error, not a PDU.
func TestLayerErrors(t *testing.T) {
	tr := &trace{t: t}
	c := tr.dial(host4, ctrl4)
	good := c.resp(nvme.CQE{CID: 1})
	data := c.data(pdu.Host, pdu.Data{}, pat(100, 0))
	for name, b := range map[string][]byte{
		"short":   append(good[:24:24], 5, 0, 24),
		"cut":     append(good[:24:24], data[:60]...),
		"garbage": append(good[:24:24], pat(40, 8)...),
	} {
		pkt := gopacket.NewPacket(b, LayerType, gopacket.Default)
		require.Len(t, pkt.Layers(), 2, name)
		require.Equal(t, LayerType, pkt.Layers()[0].LayerType())
		require.NotNil(t, pkt.ErrorLayer(), name)
		require.Equal(t, name != "garbage", pkt.Metadata().Truncated, name)
	}
}
