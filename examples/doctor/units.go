package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode"
)

// bytesText is a number of bytes for people.
func bytesText(n int64) string {
	const units = "KMGT"
	if n < 1<<10 {
		return fmt.Sprintf("%d B", n)
	}
	v, u := float64(n)/(1<<10), 0
	for v >= 1023.95 && u < len(units)-1 {
		v /= 1 << 10
		u++
	}
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0") + " " + units[u:u+1] + "iB"
}

// nameText is a name that somebody else has chosen, fit for a terminal.
func nameText(s string) string {
	for _, r := range s {
		if !unicode.IsGraphic(r) || r == unicode.ReplacementChar {
			return strconv.QuoteToASCII(s)
		}
	}
	return s
}

// lineText is nameText of what may be much too long for a line.
func lineText(s string) string {
	const longest = 1000
	if s = nameText(s); len(s) > longest {
		s = strings.ToValidUTF8(s[:longest], "") + "…"
	}
	return s
}

// count is a number of things: one thing, two things.
func count(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return fmt.Sprintf("%d %ss", n, thing)
}

// byteSize is a flag value like 64M or 1GiB.
type byteSize int64

func (b *byteSize) Type() string { return "SIZE" }

func (b *byteSize) String() string {
	for i, u := range []string{"T", "G", "M", "K"} {
		if unit := int64(1) << (40 - 10*i); *b != 0 && int64(*b)%unit == 0 {
			return strconv.FormatInt(int64(*b)/unit, 10) + u
		}
	}
	return strconv.FormatInt(int64(*b), 10)
}

func (b *byteSize) Set(s string) error {
	num := strings.TrimRight(strings.ToUpper(s), "IB")
	shift := 0
	if n := len(num); n > 0 {
		if i := strings.IndexByte("KMGT", num[n-1]); i >= 0 {
			num, shift = num[:n-1], 10*(i+1)
		}
	}
	n, err := strconv.ParseInt(num, 10, 64)
	if err != nil || n <= 0 || n > math.MaxInt64>>shift {
		return errors.New("want a number of bytes like 64M or 1G")
	}
	*b = byteSize(n << shift)
	return nil
}
