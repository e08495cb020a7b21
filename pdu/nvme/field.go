package nvme

import (
	"bytes"
	"encoding/binary"
)

// fields moves the fields of a structure to or from its wire form, so that each
// structure lists its offsets once, as the specification's table does.
type fields struct {
	b      []byte
	decode bool
}

// grow adds n zero bytes to b and returns it with the view of those bytes.
func grow(b []byte, n int) ([]byte, fields) {
	l := len(b)
	b = append(b, make([]byte, n)...)
	return b, fields{b: b[l : l+n : l+n]}
}

// open returns the view of the first n bytes of b for decoding.
func open(what string, b []byte, n int) (fields, error) {
	if err := need(what, b, n); err != nil {
		return fields{}, err
	}
	return fields{b: b[:n:n], decode: true}, nil
}

func (f fields) u8(off int, v *uint8) {
	if f.decode {
		*v = f.b[off]
	} else {
		f.b[off] = *v
	}
}

func (f fields) u16(off int, v *uint16) {
	if f.decode {
		*v = binary.LittleEndian.Uint16(f.b[off:])
	} else {
		binary.LittleEndian.PutUint16(f.b[off:], *v)
	}
}

func (f fields) u32(off int, v *uint32) {
	if f.decode {
		*v = binary.LittleEndian.Uint32(f.b[off:])
	} else {
		binary.LittleEndian.PutUint32(f.b[off:], *v)
	}
}

func (f fields) u64(off int, v *uint64) {
	if f.decode {
		*v = binary.LittleEndian.Uint64(f.b[off:])
	} else {
		binary.LittleEndian.PutUint64(f.b[off:], *v)
	}
}

func (f fields) u128(off int, v *Uint128) {
	f.u64(off, &v.Lo)
	f.u64(off+8, &v.Hi)
}

// raw moves bytes whose order on the wire is that of the value.
func (f fields) raw(off int, v []byte) {
	if f.decode {
		copy(v, f.b[off:])
	} else {
		copy(f.b[off:], v)
	}
}

// ascii moves a string that fills n bytes with spaces at its end. Some
// controllers pad with NUL; both are dropped when read.
func (f fields) ascii(off, n int, v *string) {
	w := f.b[off : off+n]
	if f.decode {
		*v = string(bytes.TrimRight(w, " \x00"))
		return
	}
	for i := copy(w, *v); i < n; i++ {
		w[i] = ' '
	}
}

// cstring moves a string that ends at its first NUL, or after n bytes.
func (f fields) cstring(off, n int, v *string) {
	w := f.b[off : off+n]
	if f.decode {
		if i := bytes.IndexByte(w, 0); i >= 0 {
			w = w[:i]
		}
		*v = string(w)
		return
	}
	copy(w, *v)
}

// flag moves a byte that is 0 or not.
func (f fields) flag(off int, v *bool) {
	if f.decode {
		*v = f.b[off] != 0
	} else if *v {
		f.b[off] = 1
	}
}

// status moves a status word, whose phase tag is dropped.
func (f fields) status(off int, v *Status) {
	w := uint16(*v &^ statusPhase)
	f.u16(off, &w)
	if f.decode {
		*v = Status(w) &^ statusPhase
	}
}
