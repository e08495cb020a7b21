package nvme

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// structure is what every data structure of the package can do.
type structure[T any] interface {
	*T
	Append([]byte) []byte
	Decode([]byte) error
}

// checkLayout decodes random bytes and compares every field with the bytes that
// a table of the specification gives it, then encodes and compares the bytes.
// The lines of the table are: offset, size, field.
func checkLayout[T any, P structure[T]](t *testing.T, size int, layout string) {
	t.Helper()
	r := rand.New(rand.NewPCG(1, 2))
	wire := make([]byte, size)
	for i := range wire {
		wire[i] = byte('A' + r.UintN(26)) // printable, so that strings come whole
	}
	p := P(new(T))
	require.NoError(t, p.Decode(wire))
	enc := p.Append([]byte("head"))
	require.Equal(t, "head", string(enc[:4]), "Append must keep what was there")
	enc = enc[4:]
	require.Len(t, enc, size)

	seen := map[string]bool{}
	sc := bufio.NewScanner(strings.NewReader(strings.TrimSpace(layout)))
	for sc.Scan() {
		var off, n int
		var name string
		_, err := fmt.Sscan(sc.Text(), &off, &n, &name)
		require.NoError(t, err, sc.Text())
		seen[name] = true
		v := reflect.ValueOf(p).Elem().FieldByName(name)
		require.True(t, v.IsValid(), "no field %s", name)
		got, mask := fieldBytes(t, v, n)
		want := bytes.Clone(wire[off : off+n])
		have := bytes.Clone(enc[off : off+n])
		if mask != nil {
			for i := range want {
				want[i] &= mask[i]
				have[i] &= mask[i]
			}
		}
		require.Equal(t, want, got, "%s decoded from offset %d", name, off)
		if v.Kind() == reflect.Bool {
			require.Equal(t, byte(1), have[0], "%s encoded at offset %d", name, off)
			continue
		}
		require.Equal(t, want, have, "%s encoded at offset %d", name, off)
	}
	for i := range reflect.TypeFor[T]().NumField() {
		require.True(t, seen[reflect.TypeFor[T]().Field(i).Name], "%s is not in the layout", reflect.TypeFor[T]().Field(i).Name)
	}
}

// fieldBytes returns the wire form of a field, and which of its bits count.
func fieldBytes(t *testing.T, v reflect.Value, n int) (b, mask []byte) {
	switch x := v.Interface().(type) {
	case Uint128:
		b = binary.LittleEndian.AppendUint64(b, x.Lo)
		return binary.LittleEndian.AppendUint64(b, x.Hi), nil
	case Status:
		return binary.LittleEndian.AppendUint16(nil, uint16(x)), []byte{0xFE, 0xFF}
	case LBAFormat:
		b = binary.LittleEndian.AppendUint16(nil, x.MS)
		return append(b, x.LBADS, x.RP), []byte{0xFF, 0xFF, 0xFF, 3}
	case string:
		if n == 256 { // a SUBNQN always ends with NUL
			mask = append(bytes.Repeat([]byte{0xFF}, 255), 0)
			return append([]byte(x[:255]), 0), mask
		}
		return []byte(x), nil
	case bool:
		require.True(t, x)
		return []byte{1}, []byte{1}
	}
	switch v.Kind() {
	case reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		b = binary.LittleEndian.AppendUint64(nil, v.Uint())
		require.Equal(t, make([]byte, 8-n), b[n:])
		return b[:n], nil
	case reflect.Array:
		for i := range v.Len() {
			eb, em := fieldBytes(t, v.Index(i), n/v.Len())
			b, mask = append(b, eb...), append(mask, em...)
		}
		return b, mask
	}
	require.Fail(t, "field of unknown kind", v.Kind().String())
	return nil, nil
}

// roundTrip decodes a whole structure, encodes it, and decodes that: the two
// must be the same. It is also what the fuzz targets check.
func roundTrip[T any, P structure[T]](t *testing.T, b []byte) P {
	t.Helper()
	in := bytes.Clone(b)
	p := P(new(T))
	if err := p.Decode(b); err != nil {
		require.NotEmpty(t, err.Error())
		return nil
	}
	require.Equal(t, in, b, "Decode must not write to its input")
	enc := p.Append(nil)
	q := P(new(T))
	require.NoError(t, q.Decode(enc), "what Append made must decode")
	require.Equal(t, p, q)
	require.Equal(t, enc, q.Append(nil))

	for i := range b { // nothing decoded may refer to the input
		b[i] ^= 0xFF
	}
	require.Equal(t, enc, p.Append(nil), "Decode must not keep its input")
	return p
}

// fuzz checks a decoder of size bytes: shorter input is an error, and whole
// input survives a round trip. Inputs are filled with zeros, to keep the corpus
// small.
func fuzz[T any, P structure[T]](f *testing.F, size int) {
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) < size {
			var short *ShortError
			require.ErrorAs(t, P(new(T)).Decode(b), &short)
			require.Equal(t, len(b), short.Got)
			b = append(bytes.Clone(b), make([]byte, size-len(b))...)
		}
		roundTrip[T, P](t, bytes.Clone(b))
	})
}
