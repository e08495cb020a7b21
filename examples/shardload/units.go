package main

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"
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
	s := strconv.FormatFloat(v, 'f', 1, 64)
	return strings.TrimSuffix(s, ".0") + " " + units[u:u+1] + "iB"
}

// gib is a number of bytes in GiB.
func gib(n int64) float64 { return float64(n) / (1 << 30) }

// digits3 is a number with three digits, or all of them if it has more before the point.
func digits3(v float64) string {
	if v >= 100 {
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// durationText is a duration with three digits or so.
func durationText(d time.Duration) string {
	for _, unit := range []time.Duration{time.Second, time.Millisecond, time.Microsecond} {
		if d >= 100*unit {
			return d.Round(unit / 10).String()
		}
		if d >= unit {
			return d.Round(unit / 100).String()
		}
	}
	return d.String()
}

// count is "1 queue" or "2 queues".
func count(n int, thing string) string {
	if n != 1 {
		thing += "s"
	}
	return fmt.Sprintf("%d %s", n, thing)
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

// byteSize is a flag value like 64M or 1GiB.
type byteSize int64

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

func (b *byteSize) Type() string { return "SIZE" }

// seconds is a flag value like 30, 30s or 500ms.
type seconds time.Duration

func (d *seconds) String() string { return time.Duration(*d).String() }

func (d *seconds) Set(s string) error {
	v, err := time.ParseDuration(s)
	if err != nil {
		var n int64
		if n, err = strconv.ParseInt(s, 10, 32); err == nil {
			v = time.Duration(n) * time.Second
		}
	}
	if err != nil || v <= 0 {
		return errors.New("want seconds, or a duration like 500ms")
	}
	*d = seconds(v)
	return nil
}

func (d *seconds) Type() string { return "DURATION" }
