package capture_test

import (
	"fmt"
	"log"
	"os"

	"github.com/google/gopacket"
	"github.com/google/gopacket/layers"
	"github.com/google/gopacket/pcapgo"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/capture"
)

// What a connection did: it was opened, and read one block.
func ExampleRead() {
	f, err := os.Open("testdata/read.pcap")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	for p, err := range capture.Read(f) {
		if err != nil {
			fmt.Println(err)
			continue
		}
		fmt.Printf("packet %d: %s, %d bytes", p.Frame, p.Type, p.PLEN)
		switch {
		case p.SQE != nil:
			fmt.Printf(", CID %d, opcode %#02x", p.SQE.CID, uint8(p.SQE.Opcode))
		case p.CQE != nil:
			fmt.Printf(", CID %d, status %#x", p.CQE.CID, uint16(p.CQE.Status))
		case p.Type == pdu.TypeC2HData:
			fmt.Printf(", %d bytes of data, digest wrong: %t", len(p.Data), p.BadData)
		}
		fmt.Println()
	}
	// Output:
	// packet 4: ICReq, 128 bytes
	// packet 5: ICResp, 128 bytes
	// packet 6: CapsuleCmd, 1104 bytes, CID 1, opcode 0x7f
	// packet 7: CapsuleResp, 28 bytes, CID 1, status 0x0
	// packet 8: CapsuleCmd, 76 bytes, CID 2, opcode 0x02
	// packet 9: C2HData, 544 bytes, 512 bytes of data, digest wrong: false
	// packet 9: CapsuleResp, 28 bytes, CID 2, status 0x0
}

// A controller on a port of its own.
func ExampleConfig_Read() {
	f, err := os.Open("testdata/read.pcap")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	config := capture.Config{Ports: []uint16{4420, 14420}, MaxBuffer: 64 << 20}
	bytes := map[capture.Conn]int{}
	for p, err := range config.Read(f) {
		if err == nil {
			bytes[p.Conn] += len(p.Data)
		}
	}
	for conn, n := range bytes {
		fmt.Println(conn, n)
	}
	// Output: 192.0.2.1:50000 > 192.0.2.9:4420 1536
}

// A program that uses gopacket itself.
func ExampleLayer() {
	layers.RegisterTCPPortLayerType(4420, capture.LayerType)
	f, err := os.Open("testdata/read.pcap")
	if err != nil {
		log.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(f)
	if err != nil {
		log.Fatal(err)
	}
	packets := gopacket.NewPacketSource(r, r.LinkType())
	packets.DecodeStreamsAsDatagrams = true
	for packet := range packets.Packets() {
		for _, l := range packet.Layers() {
			if l, ok := l.(*capture.Layer); ok {
				fmt.Print(l.Type, " ")
			}
		}
	}
	// Output: ICReq ICResp CapsuleCmd CapsuleResp CapsuleCmd C2HData CapsuleResp
}
