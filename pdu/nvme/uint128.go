package nvme

import (
	"fmt"
	"math/bits"
)

// A Uint128 is a 16-byte counter or capacity.
type Uint128 struct{ Lo, Hi uint64 }

// Uint64 returns the value, and whether it fits into 64 bits; if not, the
// value returned is the largest that does.
func (u Uint128) Uint64() (v uint64, ok bool) {
	if u.Hi != 0 {
		return ^uint64(0), false
	}
	return u.Lo, true
}

// String returns the value in decimal.
func (u Uint128) String() string {
	const e19 = 1e19 // the largest power of ten in 64 bits
	hi, r := u.Hi/e19, u.Hi%e19
	lo, r := bits.Div64(r, u.Lo, e19)
	if hi == 0 && lo == 0 {
		return fmt.Sprintf("%d", r)
	}
	// hi:lo is at most 2^128/1e19 < 2^65, so one more division is enough.
	q, m := bits.Div64(hi, lo, e19)
	if q == 0 {
		return fmt.Sprintf("%d%019d", m, r)
	}
	return fmt.Sprintf("%d%019d%019d", q, m, r)
}
