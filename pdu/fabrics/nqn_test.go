package fabrics

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestValidateNQN(t *testing.T) {
	label63 := strings.Repeat("a", 63)
	for _, good := range []string{
		DiscoveryNQN,
		vecHostNQN,
		vecSubNQN,
		"nqn.2014-08.org.nvmexpress:uuid:12345678-9ABC-DEF0-1234-56789ABCDEF0",
		"nqn.1992-08.com.netapp:sn.d646dc63336511e995cb00a0988fb732:subsystem.x",
		"nqn.2010-06.com.3par:a:b:c",
		"nqn.2025-12.de.x-y:grüße",
		"nqn.2025-01." + label63 + ":x",
		"nqn.2025-01.a:" + strings.Repeat("x", NQNMaxLen-len("nqn.2025-01.a:")),
	} {
		require.NoError(t, ValidateNQN(good), good)
	}
	for bad, want := range map[string]string{
		"":           "is shorter than 11 bytes",
		"nqn.2025-0": "is shorter than 11 bytes",
		"nqn.2025-01.a:" + strings.Repeat("x", 224):   "NQN of 238 bytes is longer than 223",
		"nqn.2025-01.a:\xff\xfe":                      "is not UTF-8",
		"nqn.2025-01.a:b\x00c":                        "contains a NUL byte",
		"iqn.2025-01.a:b":                             `does not begin with "nqn."`,
		"NQN.2025-01.a:b":                             `does not begin with "nqn."`,
		"nqn.2025-13.a:b":                             "has no date yyyy-mm",
		"nqn.2025-00.a:b":                             "has no date yyyy-mm",
		"nqn.2o25-01.a:b":                             "has no date yyyy-mm",
		"nqn.2025/01.a:b":                             "has no date yyyy-mm",
		"nqn.2025-01-a:b":                             "has no date yyyy-mm",
		"nqn.2025-01.a.b.c":                           "has no colon",
		DiscoveryNQN + "x":                            "has no colon",
		"nqn.2025-01.:xyz":                            `has the domain label ""`,
		"nqn.2025-01.a..b:x":                          `has the domain label ""`,
		"nqn.2025-01.a_b:x":                           `has the domain label "a_b"`,
		"nqn.2025-01.-a:xy":                           `has the domain label "-a"`,
		"nqn.2025-01.a-:xy":                           `has the domain label "a-"`,
		"nqn.2025-01." + label63 + "a:x":              "has the domain label",
		"nqn.2025-01.grüße:x":                         "has the domain label",
		"nqn.2025-01.a.b:":                            "has no name after the colon",
		UUIDNQNPrefix + "12345678":                    "does not end with a UUID",
		vecHostNQN + "0":                              "does not end with a UUID",
		strings.ReplaceAll(vecHostNQN, "abc", "xyz"):  "does not end with a UUID",
		strings.ReplaceAll(vecHostNQN, "8-9", "8:9a"): "does not end with a UUID",
	} {
		require.ErrorContains(t, ValidateNQN(bad), want, bad)
	}
}

func TestHostID(t *testing.T) {
	h, err := ParseHostID("12345678-9ABC-def0-1234-56789abcdeF0")
	require.NoError(t, err)
	require.Equal(t, HostID{0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0, 0x12, 0x34, 0x56, 0x78, 0x9A, 0xBC, 0xDE, 0xF0}, h)
	require.Equal(t, vecHostID, h.String())
	require.Equal(t, vecHostNQN, h.NQN())
	require.False(t, h.IsZero())
	require.True(t, HostID{}.IsZero())
	require.Equal(t, "00000000-0000-0000-0000-000000000000", HostID{}.String())

	for _, bad := range []string{
		"", "12345678", vecHostID + "0", vecHostID[1:], strings.ReplaceAll(vecHostID, "-", ""),
		strings.ReplaceAll(vecHostID, "a", "g"), strings.ReplaceAll(vecHostID, "-", "_"), "{" + vecHostID[:34] + "}",
	} {
		_, err := ParseHostID(bad)
		require.ErrorContains(t, err, "is not a UUID", bad)
	}
}
