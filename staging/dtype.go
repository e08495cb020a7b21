package staging

import "fmt"

// DType is the type of a tensor's elements, with the names that safetensors gives them. Elements are little-endian.
type DType uint8

// The element types of safetensors, in its order of increasing alignment.
const (
	BOOL DType = iota + 1
	F4
	F6_E2M3
	F6_E3M2
	U8
	I8
	F8_E5M2
	F8_E4M3
	F8_E8M0
	F8_E4M3FNUZ
	F8_E5M2FNUZ
	I16
	U16
	F16
	BF16
	I32
	U32
	F32
	C64
	F64
	I64
	U64
)

// dtypes holds the name and the size in bits of every type, by DType.
var dtypes = [...]struct {
	name string
	bits int
}{
	BOOL: {"BOOL", 8}, F4: {"F4", 4}, F6_E2M3: {"F6_E2M3", 6}, F6_E3M2: {"F6_E3M2", 6}, U8: {"U8", 8}, I8: {"I8", 8},
	F8_E5M2: {"F8_E5M2", 8}, F8_E4M3: {"F8_E4M3", 8}, F8_E8M0: {"F8_E8M0", 8}, F8_E4M3FNUZ: {"F8_E4M3FNUZ", 8}, F8_E5M2FNUZ: {"F8_E5M2FNUZ", 8},
	I16: {"I16", 16}, U16: {"U16", 16}, F16: {"F16", 16}, BF16: {"BF16", 16}, I32: {"I32", 32}, U32: {"U32", 32}, F32: {"F32", 32},
	C64: {"C64", 64}, F64: {"F64", 64}, I64: {"I64", 64}, U64: {"U64", 64},
}

// ParseDType returns the type of that name.
func ParseDType(name string) (DType, error) {
	for d := BOOL; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %s", quoted(name))
}

// String is the name of the type, as in a safetensors header.
func (d DType) String() string {
	if d < BOOL || int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits is the size of one element in bits, 0 for a type that is not known. Below 8 for F4, F6_E2M3 and F6_E3M2, whose tensors are packed.
func (d DType) Bits() int {
	if int(d) >= len(dtypes) {
		return 0
	}
	return dtypes[d].bits
}
