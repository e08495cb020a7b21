package pdu

import (
	"bytes"
	"encoding/hex"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestDigestVectors(t *testing.T) {
	descending := make([]byte, 32)
	for i := range descending {
		descending[i] = byte(31 - i)
	}
	// The READ(10) PDU of RFC 3720 B.4.
	iscsi := unhex(t, `01c00000 [12x00] 14000000 00000400 00000014 00000018 28000000 00000000 02000000 00000000`)
	for _, v := range []struct {
		name string
		in   []byte
		crc  uint32
		wire string
	}{
		{"empty", nil, 0, "00000000"},
		{"123456789", []byte("123456789"), 0xE3069283, "839206e3"},
		{"1", []byte("1"), 0x90F599E3, "e399f590"},
		{"12", []byte("12"), 0x7355C460, "60c45573"},
		{"123", []byte("123"), 0x107B2FB2, "b22f7b10"},
		{"1234", []byte("1234"), 0xF63AF4EE, "eef43af6"},
		{"12345", []byte("12345"), 0x18D12335, "3523d118"},
		{"123456", []byte("123456"), 0x41357186, "86713541"},
		{"1234567", []byte("1234567"), 0x124297EA, "ea974212"},
		{"12345678", []byte("12345678"), 0x6087809A, "9a808760"},
		{"Hello world!", []byte("Hello world!"), 0x7B98E751, "51e7987b"},
		{"32 x 00", make([]byte, 32), 0x8A9136AA, "aa36918a"},
		{"32 x ff", bytes.Repeat([]byte{0xff}, 32), 0x62A8AB43, "43aba862"},
		{"ascending", pat(32, 0), 0x46DD794E, "4e79dd46"},
		{"descending", descending, 0x113FDB5C, "5cdb3f11"},
		{"iSCSI READ(10)", iscsi, 0xD9963A56, "563a96d9"},
		{"PAT(512,0)", pat(512, 0), 0xAE10EE5A, "5aee10ae"},
		{"512 x 00", make([]byte, 512), 0x30FCEDC0, "c0edfc30"},
		{"4096 x 00", make([]byte, 4096), 0x98F94189, "8941f998"},
		{"PAT(4096,0)", pat(4096, 0), 0x9C71FE32, "32fe719c"},
		{"PAT(510,0)", pat(510, 0), 0x932055B8, "b8552093"},
		{"PAT(510,0) and 2 x 00", append(pat(510, 0), 0, 0), 0xB32C01FF, "ff012cb3"},
	} {
		t.Run(v.name, func(t *testing.T) {
			require.Equal(t, v.crc, Digest(v.in))
			wire := AppendDigest(nil, v.crc)
			require.Equal(t, v.wire, hex.EncodeToString(wire))
			require.Equal(t, v.crc, ReadDigest(wire))
			for cut := range len(v.in) + 1 {
				require.Equal(t, v.crc, UpdateDigest(UpdateDigest(0, v.in[:cut]), v.in[cut:]), "cut at %d", cut)
			}
		})
	}
}

func TestDigests(t *testing.T) {
	for i, want := range strings.Fields("none header data header+data") {
		d := digestsOf(byte(i))
		require.Equal(t, want, d.String())
		require.EqualValues(t, i, d.bits())
		require.Equal(t, d, digestsOf(byte(i)|0xfc), "reserved bits must not matter")
	}
}
