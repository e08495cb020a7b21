package nvme

// DSMRangeLen is the length of a [DSMRange] in bytes.
const DSMRangeLen = 16

// A DSMRange is one range of a Dataset Management command.
type DSMRange struct {
	Attributes uint32 // context attributes, hints
	NLB        uint32 // logical blocks, not 0's based
	SLBA       uint64
}

// Append adds the 16 bytes of the range to b.
func (r *DSMRange) Append(b []byte) []byte {
	b, f := grow(b, DSMRangeLen)
	r.fields(f)
	return b
}

// Decode reads the range from the first 16 bytes of b.
func (r *DSMRange) Decode(b []byte) error {
	f, err := open("Dataset Management range", b, DSMRangeLen)
	if err != nil {
		return err
	}
	r.fields(f)
	return nil
}

func (r *DSMRange) fields(f fields) {
	f.u32(0, &r.Attributes)
	f.u32(4, &r.NLB)
	f.u64(8, &r.SLBA)
}
