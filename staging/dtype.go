package staging

import (
	"fmt"
	"slices"
)

// DType is the type of a tensor's elements, with the names that safetensors and GGML give them. Elements are little-endian.
type DType uint8

// The element types of safetensors, in its order of increasing alignment. GGUF has I8, I16, F16, BF16, I32, F32, F64 and I64, too.
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

// The quantized types that only GGUF has: elements come in blocks that share their scales, and a row is whole blocks.
const (
	Q1_0 DType = iota + U64 + 1
	Q2_0
	Q4_0
	Q4_1
	Q5_0
	Q5_1
	Q8_0
	Q8_1
	Q2_K
	Q3_K
	Q4_K
	Q5_K
	Q6_K
	Q8_K
	IQ1_S
	IQ1_M
	IQ2_XXS
	IQ2_XS
	IQ2_S
	IQ3_XXS
	IQ3_S
	IQ4_NL
	IQ4_XS
	TQ1_0
	TQ2_0
	MXFP4
	NVFP4
)

// dtypes holds the name of every type, and how many elements take how many whole bytes, by DType.
var dtypes = [...]struct {
	name            string
	elements, bytes int
}{
	BOOL: {"BOOL", 1, 1}, F4: {"F4", 2, 1}, F6_E2M3: {"F6_E2M3", 4, 3}, F6_E3M2: {"F6_E3M2", 4, 3}, U8: {"U8", 1, 1}, I8: {"I8", 1, 1},
	F8_E5M2: {"F8_E5M2", 1, 1}, F8_E4M3: {"F8_E4M3", 1, 1}, F8_E8M0: {"F8_E8M0", 1, 1}, F8_E4M3FNUZ: {"F8_E4M3FNUZ", 1, 1}, F8_E5M2FNUZ: {"F8_E5M2FNUZ", 1, 1},
	I16: {"I16", 1, 2}, U16: {"U16", 1, 2}, F16: {"F16", 1, 2}, BF16: {"BF16", 1, 2}, I32: {"I32", 1, 4}, U32: {"U32", 1, 4}, F32: {"F32", 1, 4},
	C64: {"C64", 1, 8}, F64: {"F64", 1, 8}, I64: {"I64", 1, 8}, U64: {"U64", 1, 8},

	Q1_0: {"Q1_0", 128, 18}, Q2_0: {"Q2_0", 64, 18}, Q4_0: {"Q4_0", 32, 18}, Q4_1: {"Q4_1", 32, 20}, Q5_0: {"Q5_0", 32, 22}, Q5_1: {"Q5_1", 32, 24},
	Q8_0: {"Q8_0", 32, 34}, Q8_1: {"Q8_1", 32, 36}, Q2_K: {"Q2_K", 256, 84}, Q3_K: {"Q3_K", 256, 110}, Q4_K: {"Q4_K", 256, 144}, Q5_K: {"Q5_K", 256, 176},
	Q6_K: {"Q6_K", 256, 210}, Q8_K: {"Q8_K", 256, 292}, IQ1_S: {"IQ1_S", 256, 50}, IQ1_M: {"IQ1_M", 256, 56}, IQ2_XXS: {"IQ2_XXS", 256, 66},
	IQ2_XS: {"IQ2_XS", 256, 74}, IQ2_S: {"IQ2_S", 256, 82}, IQ3_XXS: {"IQ3_XXS", 256, 98}, IQ3_S: {"IQ3_S", 256, 110}, IQ4_NL: {"IQ4_NL", 32, 18},
	IQ4_XS: {"IQ4_XS", 256, 136}, TQ1_0: {"TQ1_0", 256, 54}, TQ2_0: {"TQ2_0", 256, 66}, MXFP4: {"MXFP4", 32, 17}, NVFP4: {"NVFP4", 64, 36},
}

// ggmlTypes maps GGUF's numbers of types (ggml_type). 0 is a number that GGUF does not use any more.
var ggmlTypes = [...]DType{
	0: F32, 1: F16, 2: Q4_0, 3: Q4_1, 6: Q5_0, 7: Q5_1, 8: Q8_0, 9: Q8_1, 10: Q2_K, 11: Q3_K, 12: Q4_K, 13: Q5_K, 14: Q6_K, 15: Q8_K,
	16: IQ2_XXS, 17: IQ2_XS, 18: IQ3_XXS, 19: IQ1_S, 20: IQ4_NL, 21: IQ3_S, 22: IQ2_S, 23: IQ4_XS, 24: I8, 25: I16, 26: I32, 27: I64, 28: F64,
	29: IQ1_M, 30: BF16, 34: TQ1_0, 35: TQ2_0, 39: MXFP4, 40: NVFP4, 41: Q1_0, 42: Q2_0,
}

// ParseDType returns the type of that name, which is a safetensors one or a GGML one.
func ParseDType(name string) (DType, error) {
	for d := BOOL; int(d) < len(dtypes); d++ {
		if dtypes[d].name == name {
			return d, nil
		}
	}
	return 0, fmt.Errorf("unknown dtype %s", quoted(name))
}

// String is the name of the type, as in a safetensors header or in GGML.
func (d DType) String() string {
	if d < BOOL || int(d) >= len(dtypes) {
		return fmt.Sprintf("DType(%d)", uint8(d))
	}
	return dtypes[d].name
}

// Bits is the size of one element in bits: below 8 for F4, F6_E2M3 and F6_E3M2, whose tensors are packed, and 0 for a quantized type, whose
// elements have no size of their own (see [DType.Block]), and for one that is not known.
func (d DType) Bits() int {
	if !d.safetensors() {
		return 0
	}
	return dtypes[d].bytes * 8 / dtypes[d].elements
}

// Block is the fewest elements that take whole bytes, and how many bytes: 1 and 4 of F32, 2 and 1 of F4, 32 and 18 of Q4_0. Both are 0 for
// a type that is not known.
func (d DType) Block() (elements, bytes int) {
	if int(d) >= len(dtypes) {
		return 0, 0
	}
	return dtypes[d].elements, dtypes[d].bytes
}

// safetensors reports whether safetensors has the type.
func (d DType) safetensors() bool { return d >= BOOL && d <= U64 }

// ggml is GGUF's number of the type, negative if it has none.
func (d DType) ggml() int {
	if d == 0 {
		return -1
	}
	return slices.Index(ggmlTypes[:], d)
}
