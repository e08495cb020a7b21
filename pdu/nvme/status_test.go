package nvme

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// F34: a status code type with status code 0 is a failure, and so is any other
// bit of the 15-bit field.
func TestF34OnlyZeroIsSuccess(t *testing.T) {
	require.True(t, Status(0).OK())
	for w := 2; w < 1<<16; w += 2 {
		require.False(t, Status(w).OK(), "status word 0x%04X", w)
	}
	s := Status(1 << 9)
	require.Equal(t, SCTCommandSpecific, s.SCT())
	require.Zero(t, s.SC())
	require.False(t, s.OK())
	require.EqualError(t, s, "NVMe status 0x100 Completion Queue Invalid")
}

func TestStatusFields(t *testing.T) {
	for _, c := range []struct {
		s    Status
		sct  SCT
		sc   uint8
		crd  uint8
		more bool
		dnr  bool
	}{
		{0x0044, SCTGeneric, 0x22, 0, false, false},
		{0x8304, SCTCommandSpecific, 0x82, 0, false, true},
		{0x4502, SCTMedia, 0x81, 0, true, false},
		{0x3604, SCTPath, 0x02, 3, false, false},
		{0xFFFE, SCTVendor, 0xFF, 3, true, true},
		{0x801E, SCTGeneric, 0x0F, 0, false, true}, // as nvmet sends Data SGL Length Invalid
	} {
		require.Equal(t, c.sct, c.s.SCT())
		require.Equal(t, c.sc, c.s.SC())
		require.Equal(t, Code(c.sct)<<8|Code(c.sc), c.s.Code())
		require.Equal(t, c.crd, c.s.CRD())
		require.Equal(t, c.more, c.s.More())
		require.Equal(t, c.dnr, c.s.DNR())

		built := c.s.Code().Status().WithCRD(c.crd)
		if c.more {
			built = built.WithMore()
		}
		if c.dnr {
			built = built.WithDNR()
		}
		require.Equal(t, c.s, built)
	}
}

func TestStatusIsAnError(t *testing.T) {
	err := fmt.Errorf("read: %w", StatusInvalidField.Status().WithDNR().WithMore())
	require.ErrorIs(t, err, StatusInvalidField)
	require.NotErrorIs(t, err, StatusInvalidOpcode)
	var s Status
	require.True(t, errors.As(err, &s))
	require.True(t, s.DNR())
	require.EqualError(t, err, "read: NVMe status 0x002 Invalid Field, more in the error log, do not retry")
	require.EqualError(t, StatusCommandInterrupted.Status().WithCRD(2), "NVMe status 0x021 Command Interrupted, retry after CRDT2")
	require.EqualError(t, StatusInvalidField, "NVMe status 0x002 Invalid Field")
}

// The rows of commands.md section 3.
const knownCodes = `
00 01 02 03 04 05 06 07 08 09 0A 0B 0C 0D 0E 0F 10 11 12 13 14 15 16 18 19 1A 1B 1C 1D 1E 1F
20 21 22 23 24 25 26 27 28 29 2A 80 81 82 83 84 85 86 87 88 89
100 101 102 103 105 106 107 109 10A 10B 10C 10D 10E 10F 110 111 112 113 114 115 116 118 119 11A 11B
11C 11D 11E 11F 120 121 122 123 124 125 126 127 128 129 12A 12B 12C 12D 12F 130 131 132 134 17F
180 181 182 183 185 186 187 189 190 191 1B8 1B9 1BA 1BB 1BC 1BD 1BE 1BF
280 281 282 283 284 285 286 287 288 300 301 302 303 360 370 371`

// Those whose hint is to try again: yes, later, maybe, other path, other queue.
const retryCodes = `04 05 06 08 1C 1D 21 22 24 82 84 190 300 301 302 303 360 370 371`

func codes(t *testing.T, list string) map[Code]bool {
	m := map[Code]bool{}
	for _, w := range strings.Fields(list) {
		var c Code
		_, err := fmt.Sscanf(w, "%x", &c)
		require.NoError(t, err)
		m[c] = true
	}
	return m
}

func TestStatusTable(t *testing.T) {
	known, retry := codes(t, knownCodes), codes(t, retryCodes)
	names := map[string]Code{}
	for c := range Code(0x800) {
		s := c.Status()
		require.Equal(t, c, s.Code())
		require.Equal(t, known[c], !strings.HasPrefix(s.Name(), "unknown "), "0x%03X is %q", uint16(c), s.Name())
		if known[c] {
			other, dup := names[c.Name()]
			require.False(t, dup, "0x%03X and 0x%03X have the same name", uint16(c), uint16(other))
			names[c.Name()] = c
		}
		require.Equal(t, retry[c], s.Retryable(), "0x%03X %s", uint16(c), s.Name())
		require.False(t, s.WithDNR().Retryable(), "0x%03X with DNR", uint16(c))
	}
}

func TestStatusNames(t *testing.T) {
	for c, want := range map[Code]string{
		0x00:  "Success",
		0x0F:  "Data SGL Length Invalid",
		0x22:  "Transient Transport Error",
		0x80:  "LBA Out of Range",
		0x109: "Invalid Log Page",
		0x181: "Invalid Protection Information",
		0x191: "Authentication Required",
		0x281: "Unrecovered Read Error",
		0x302: "Asymmetric Access Inaccessible",
		0x17:  "unknown generic status 0x17",
		0x184: "unknown command specific status 0x84",
		0x7C1: "unknown vendor specific status 0xC1",
		0x400: "unknown reserved SCT 4 status 0x00",
	} {
		require.Equal(t, want, c.Name())
	}
}
