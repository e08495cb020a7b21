package staging

import (
	"fmt"
	"math"
	"strconv"
	"strings"
	"unicode/utf16"
)

// jsonScanner reads JSON as strictly as the reference implementation's parser, which encoding/json does not: no repaired
// surrogates, no numbers but integers where integers are due, and the callers see every key and so can refuse duplicates.
// Strings without escapes are substrings of the input. The input is valid UTF-8.
type jsonScanner struct {
	s string
	i int
}

// maxJSONDepth bounds the nesting of values that are skipped (serde_json's own limit).
const maxJSONDepth = 127

func (j *jsonScanner) errorf(format string, args ...any) error {
	return fmt.Errorf("byte %d: %s", j.i, fmt.Sprintf(format, args...))
}

// peek skips white space and returns the next byte, 0 at the end.
func (j *jsonScanner) peek() byte {
	for ; j.i < len(j.s); j.i++ {
		switch c := j.s[j.i]; c {
		case ' ', '\t', '\n', '\r':
		default:
			return c
		}
	}
	return 0
}

// expect takes the byte c, after white space.
func (j *jsonScanner) expect(c byte) error {
	if got := j.peek(); got != c || j.i == len(j.s) {
		return j.unexpected(strconv.QuoteRune(rune(c)))
	}
	j.i++
	return nil
}

func (j *jsonScanner) unexpected(want string) error {
	if j.peek() == 0 && j.i == len(j.s) {
		return j.errorf("the JSON ends where %s is due", want)
	}
	return j.errorf("%q where %s is due", j.s[j.i], want)
}

// object calls member for each key, with the scanner at the value.
func (j *jsonScanner) object(member func(key string) error) error {
	return j.list('{', '}', func() error {
		key, err := j.str()
		if err != nil {
			return err
		}
		if err := j.expect(':'); err != nil {
			return err
		}
		return member(key)
	})
}

// array calls element for each element, with the scanner at it.
func (j *jsonScanner) array(element func() error) error { return j.list('[', ']', element) }

func (j *jsonScanner) list(opening, closing byte, element func() error) error {
	if err := j.expect(opening); err != nil {
		return err
	}
	if j.peek() == closing {
		j.i++
		return nil
	}
	for {
		if err := element(); err != nil {
			return err
		}
		switch j.peek() {
		case ',':
			j.i++
		case closing:
			j.i++
			return nil
		default:
			return j.unexpected(fmt.Sprintf("',' or %q", closing))
		}
	}
}

// str takes a string.
func (j *jsonScanner) str() (string, error) {
	if j.peek() != '"' {
		return "", j.unexpected("a string")
	}
	j.i++
	start := j.i
	for ; j.i < len(j.s); j.i++ {
		switch c := j.s[j.i]; {
		case c == '"':
			j.i++
			return j.s[start : j.i-1], nil
		case c == '\\':
			return j.escaped(start)
		case c < 0x20:
			return "", j.errorf("control character %q in a string", c)
		}
	}
	return "", j.errorf("a string does not end")
}

// escaped takes the rest of a string that began at start and has an escape here.
func (j *jsonScanner) escaped(start int) (string, error) {
	var b strings.Builder
	for plain := start; j.i < len(j.s); {
		switch c := j.s[j.i]; {
		case c == '"':
			b.WriteString(j.s[plain:j.i])
			j.i++
			return b.String(), nil
		case c == '\\':
			b.WriteString(j.s[plain:j.i])
			r, err := j.escape()
			if err != nil {
				return "", err
			}
			b.WriteRune(r)
			plain = j.i
		case c < 0x20:
			return "", j.errorf("control character %q in a string", c)
		default:
			j.i++
		}
	}
	return "", j.errorf("a string does not end")
}

// escape takes one escape sequence, or two that make a surrogate pair.
func (j *jsonScanner) escape() (rune, error) {
	if j.i+1 >= len(j.s) {
		return 0, j.errorf("a string does not end")
	}
	c := j.s[j.i+1]
	if c != 'u' {
		at := strings.IndexByte(`"\/bfnrt`, c)
		if at < 0 {
			return 0, j.errorf("unknown escape \\%c", c)
		}
		j.i += 2
		return rune("\"\\/\b\f\n\r\t"[at]), nil
	}
	r, err := j.hex4()
	if err != nil || !utf16.IsSurrogate(r) {
		return r, err
	}
	if !strings.HasPrefix(j.s[j.i:], `\u`) {
		return 0, j.errorf("half a surrogate pair")
	}
	low, err := j.hex4()
	if err != nil {
		return 0, err
	}
	if r = utf16.DecodeRune(r, low); r == '\uFFFD' {
		return 0, j.errorf("not a surrogate pair")
	}
	return r, nil
}

// hex4 takes \u and its four digits.
func (j *jsonScanner) hex4() (rune, error) {
	if j.i+6 > len(j.s) {
		return 0, j.errorf("a string does not end")
	}
	var r rune
	for _, c := range []byte(j.s[j.i+2 : j.i+6]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c && c <= 'f':
			c -= 'a' - 10
		case 'A' <= c && c <= 'F':
			c -= 'A' - 10
		default:
			return 0, j.errorf("bad hexadecimal digit %q in an escape", c)
		}
		r = r<<4 | rune(c)
	}
	j.i += 6
	return r, nil
}

// int takes a whole number from 0 to 2^63 - 1.
func (j *jsonScanner) int() (int64, error) {
	j.peek()
	start := j.i
	j.digits()
	text := j.s[start:j.i]
	if text == "" {
		return 0, j.unexpected("a number that is whole and not negative")
	}
	if len(text) > 1 && text[0] == '0' {
		return 0, j.errorf("a number begins with 0")
	}
	if j.i < len(j.s) && strings.IndexByte(".eE", j.s[j.i]) >= 0 {
		return 0, j.errorf("a number that is not written as a whole one")
	}
	v, err := strconv.ParseInt(text, 10, 64)
	if err != nil {
		return 0, j.errorf("number %s is too large", clip(text))
	}
	return v, nil
}

// wholeNumber takes a number from 0 to 2^63 - 1 that is whole, however it is written: 1e3 and 7.0 are.
func (j *jsonScanner) wholeNumber() (int64, error) {
	if c := j.peek(); c < '0' || c > '9' {
		return 0, j.unexpected("a number that is whole and not negative")
	}
	start := j.i
	if err := j.skipNumber(); err != nil {
		return 0, err
	}
	text := j.s[start:j.i]
	if v, err := strconv.ParseInt(text, 10, 64); err == nil {
		return v, nil
	}
	v, err := strconv.ParseFloat(text, 64)
	if err != nil || v >= 1<<63 || v != math.Trunc(v) {
		return 0, j.errorf("number %s is too large or not whole", clip(text))
	}
	return int64(v), nil
}

func (j *jsonScanner) digits() (n int) {
	for ; j.i < len(j.s) && '0' <= j.s[j.i] && j.s[j.i] <= '9'; j.i++ {
		n++
	}
	return n
}

// skip takes any value and forgets it.
func (j *jsonScanner) skip(depth int) error {
	if depth > maxJSONDepth {
		return j.errorf("nested more than %d deep", maxJSONDepth)
	}
	switch c := j.peek(); {
	case c == '{':
		return j.object(func(string) error { return j.skip(depth + 1) })
	case c == '[':
		return j.array(func() error { return j.skip(depth + 1) })
	case c == '"':
		_, err := j.str()
		return err
	case c == '-' || '0' <= c && c <= '9':
		return j.skipNumber()
	}
	for _, word := range [...]string{"true", "false", "null"} {
		if strings.HasPrefix(j.s[j.i:], word) {
			j.i += len(word)
			return nil
		}
	}
	return j.unexpected("a value")
}

func (j *jsonScanner) skipNumber() error {
	if j.s[j.i] == '-' {
		j.i++
	}
	zero := j.i < len(j.s) && j.s[j.i] == '0'
	if n := j.digits(); n == 0 || zero && n > 1 {
		return j.errorf("bad number")
	}
	if strings.HasPrefix(j.s[j.i:], ".") {
		j.i++
		if j.digits() == 0 {
			return j.errorf("bad number")
		}
	}
	if j.i < len(j.s) && j.s[j.i]|0x20 == 'e' {
		j.i++
		if j.i < len(j.s) && (j.s[j.i] == '+' || j.s[j.i] == '-') {
			j.i++
		}
		if j.digits() == 0 {
			return j.errorf("bad number")
		}
	}
	return nil
}

// clip shortens text from a header for an error message.
func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "…"
	}
	return s
}

func quoted(s string) string { return strconv.Quote(clip(s)) }
