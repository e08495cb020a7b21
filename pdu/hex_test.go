package pdu

import (
	"encoding/hex"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

var repeat = regexp.MustCompile(`\[(\d+)x00\]|\[PAT\((\d+),(\d+)\)\]`)

// unhex expands the notation of the test vectors: hex, blanks that mean nothing, [Nx00] for N zero
// bytes and [PAT(n,o)] for pat(n, o).
func unhex(t testing.TB, s string) []byte {
	t.Helper()
	s = strings.Join(strings.Fields(s), "")
	s = repeat.ReplaceAllStringFunc(s, func(m string) string {
		sub := repeat.FindStringSubmatch(m)
		num := func(i int) int {
			n, err := strconv.Atoi(sub[i])
			require.NoError(t, err)
			return n
		}
		if sub[1] != "" {
			return strings.Repeat("00", num(1))
		}
		return hex.EncodeToString(pat(num(2), num(3)))
	})
	b, err := hex.DecodeString(s)
	require.NoError(t, err)
	return b
}

// pat returns n bytes, byte i = (i+o) mod 256.
func pat(n, o int) []byte {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(i + o)
	}
	return b
}
