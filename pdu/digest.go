package pdu

import (
	"encoding/binary"
	"hash/crc32"
)

// Digests says which digests a connection uses. On the wire it is the DGST byte of ICReq and ICResp.
type Digests struct {
	Header bool // HDGST
	Data   bool // DDGST
}

// String returns "none", "header", "data" or "header+data".
func (d Digests) String() string {
	switch {
	case d.Header && d.Data:
		return "header+data"
	case d.Header:
		return "header"
	case d.Data:
		return "data"
	}
	return "none"
}

func (d Digests) bits() (b byte) {
	if d.Header {
		b |= 1
	}
	if d.Data {
		b |= 2
	}
	return b
}

func digestsOf(b byte) Digests { return Digests{Header: b&1 != 0, Data: b&2 != 0} }

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// Digest returns the CRC32C of b, the algorithm of HDGST and DDGST.
func Digest(b []byte) uint32 { return crc32.Update(0, castagnoli, b) }

// UpdateDigest continues a digest over more bytes; start with 0. The data digest of a payload that
// arrives in pieces is the last value returned. It covers exactly the payload, as Linux has it
// (SPDK adds zero bytes up to a dword, so keep payloads dword multiples).
func UpdateDigest(d uint32, b []byte) uint32 { return crc32.Update(d, castagnoli, b) }

// AppendDigest appends a digest as it stands on the wire.
func AppendDigest(b []byte, d uint32) []byte { return binary.LittleEndian.AppendUint32(b, d) }

// ReadDigest reads a digest from the first 4 bytes of b.
func ReadDigest(b []byte) uint32 { return binary.LittleEndian.Uint32(b) }
