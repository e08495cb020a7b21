// Package pdu encodes and decodes the nine PDUs of the NVMe/TCP transport.
//
// Encoding appends to a byte slice. Decoding reads a header that is already in memory, checks every
// field that can be checked without knowing the commands of the connection, and allocates nothing
// unless it fails. The package does no I/O and keeps no state: a connection's digests and alignment
// travel in [Layout] (for sending) and [Framing] (for receiving).
//
// A PDU on the wire is
//
//	header (HLEN bytes) | HDGST (4) | PAD | DATA | DDGST (4)
//
// where HDGST and DDGST are there when the connection negotiated them, and PAD brings DATA to the
// alignment that the receiver asked for (HPDA, CPDA). All integers are little-endian.
package pdu
