package fabrics

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

const (
	// DiscoveryNQN is the well-known name of the discovery subsystem.
	DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

	// UUIDNQNPrefix is what an NQN of the UUID form begins with.
	UUIDNQNPrefix = "nqn.2014-08.org.nvmexpress:uuid:"

	// NQNMaxLen is the greatest length of an NQN in bytes, without its NUL.
	NQNMaxLen = 223

	nqnMinLen = 11
)

// ValidateNQN reports what is wrong with an NQN by the rules of the
// specification, or nil: 11 to 223 bytes of UTF-8, either
// nqn.yyyy-mm.reverse.domain:name, or the UUID form, or [DiscoveryNQN].
// Targets are often laxer, so a name that fails here may still be one that a
// subsystem answers to.
func ValidateNQN(nqn string) error {
	fail := func(format string, args ...any) error {
		return fmt.Errorf("fabrics: NQN %q "+format, append([]any{nqn}, args...)...)
	}
	switch {
	case len(nqn) > NQNMaxLen:
		return fmt.Errorf("fabrics: NQN of %d bytes is longer than %d", len(nqn), NQNMaxLen)
	case len(nqn) < nqnMinLen:
		return fail("is shorter than %d bytes", nqnMinLen)
	case !utf8.ValidString(nqn):
		return fail("is not UTF-8")
	case strings.IndexByte(nqn, 0) >= 0:
		return fail("contains a NUL byte")
	case nqn == DiscoveryNQN:
		return nil
	}
	if id, ok := strings.CutPrefix(nqn, UUIDNQNPrefix); ok {
		if _, err := ParseHostID(id); err != nil {
			return fail("does not end with a UUID of 36 characters")
		}
		return nil
	}
	rest, ok := strings.CutPrefix(nqn, "nqn.")
	if !ok {
		return fail("does not begin with \"nqn.\"")
	}
	if len(rest) < 8 || !yearMonth(rest[:7]) || rest[7] != '.' {
		return fail("has no date yyyy-mm and dot after \"nqn.\"")
	}
	domain, user, ok := strings.Cut(rest[8:], ":")
	if !ok {
		return fail("has no colon after the domain")
	}
	for label := range strings.SplitSeq(domain, ".") {
		if !domainLabel(label) {
			return fail("has the domain label %q; labels are 1 to 63 letters, digits and inner hyphens", label)
		}
	}
	if user == "" {
		return fail("has no name after the colon")
	}
	return nil
}

// yearMonth tells whether s is a date yyyy-mm.
func yearMonth(s string) bool {
	for i := range s {
		if i == 4 {
			if s[i] != '-' {
				return false
			}
		} else if s[i] < '0' || s[i] > '9' {
			return false
		}
	}
	return s[5:] >= "01" && s[5:] <= "12"
}

func domainLabel(s string) bool {
	if s == "" || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-') {
			return false
		}
	}
	return true
}

// fitNQN tells whether an NQN can be put into a field, be it valid or not.
func fitNQN(field, nqn string) error {
	if nqn == "" {
		return fmt.Errorf("fabrics: %s is empty", field)
	}
	return fit(field, nqn, NQNMaxLen)
}

// fit tells whether a string can be put into a field of n bytes.
func fit(field, s string, n int) error {
	if len(s) > n {
		return fmt.Errorf("fabrics: %s of %d bytes is longer than %d", field, len(s), n)
	}
	if strings.IndexByte(s, 0) >= 0 {
		return fmt.Errorf("fabrics: %s %q contains a NUL byte", field, s)
	}
	return nil
}
