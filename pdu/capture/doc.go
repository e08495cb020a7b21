// Package capture reads packet captures of NVMe/TCP.
//
// [Read] takes a pcap or pcapng file, puts the TCP streams together and yields every PDU:
//
//	f, err := os.Open("trace.pcap")
//	...
//	for p, err := range capture.Read(f) {
//		if err != nil {
//			log.Print(err) // this connection or the file is damaged; what can be read goes on
//			continue
//		}
//		fmt.Println(p.Frame, p.Conn, p.Type, p.PLEN)
//	}
//
// Digests and alignment of a connection are learnt from its ICReq and ICResp, so a connection whose
// start was not captured cannot be decoded and is reported once, with [ErrNoStart].
//
// Ethernet (with VLAN tags and the tunnels that gopacket knows), Linux cooked (SLL and SLL2), BSD
// loopback and raw IP captures are read. IP fragments are not put together; they count as a gap.
//
// [LayerType] is for programs that use gopacket themselves: it decodes PDUs that lie whole in one
// packet.
package capture
