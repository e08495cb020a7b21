package capture

import (
	"fmt"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"

	"github.com/nvstage/nvstage/pdu"
)

// LayerType is the gopacket layer of one PDU, for programs that look at single packets. Tell gopacket
// on which port it may find PDUs, and to look into TCP segments:
//
//	layers.RegisterTCPPortLayerType(4420, capture.LayerType)
//	pkt := gopacket.NewPacket(data, link, gopacket.DecodeOptions{DecodeStreamsAsDatagrams: true})
//
// A packet can only be decoded where a PDU begins with it; each PDU that lies whole in the packet
// becomes a [Layer]. [Read] has neither limit.
var LayerType = gopacket.RegisterLayerType(layerType, gopacket.LayerTypeMetadata{
	Name:    "NVMe/TCP",
	Decoder: gopacket.DecodeFunc(decodeLayer),
})

const layerType = 1420

// Layer is one PDU in a packet. Time, Frame and Conn of the PDU are not set: the packet has them. Its
// parts are slices of the packet. A packet does not tell what its connection negotiated, so the
// PDU's own flags are believed about the digests that it has.
type Layer struct {
	layers.BaseLayer // the PDU, and what the packet has behind it
	PDU
}

// LayerType returns [LayerType].
func (l *Layer) LayerType() gopacket.LayerType { return layerType }

func decodeLayer(b []byte, p gopacket.PacketBuilder) error {
	var h pdu.CommonHeader
	if len(b) < pdu.CommonHeaderLen {
		p.SetTruncated()
		return fmt.Errorf("%d bytes of an NVMe/TCP common header", len(b))
	}
	h.Decode(b)
	f := pdu.Framing{Ready: h.Type != pdu.TypeICReq && h.Type != pdu.TypeICResp}
	if pdu.Controller.Receives(h.Type) {
		f.Role = pdu.Controller
	}
	f.Header, f.Data = h.Flags.Has(pdu.FlagHDGST), h.Flags.Has(pdu.FlagDDGST)
	if err := f.Check(h); err != nil {
		return err
	}
	if uint64(h.PLEN) > uint64(len(b)) {
		p.SetTruncated()
		return fmt.Errorf("%d of the %d bytes of a %s", len(b), h.PLEN, h.Type)
	}
	n := int(h.PLEN)
	p.AddLayer(&Layer{
		BaseLayer: layers.BaseLayer{Contents: b[:n], Payload: b[n:]},
		PDU:       newPDU(&f, h, b[:n]),
	})
	if n == len(b) {
		return nil
	}
	return p.NextDecoder(gopacket.LayerType(layerType))
}
