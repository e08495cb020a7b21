package nvme

// Lengths of two log pages in bytes.
const (
	SupportedLogLen = 1024
	EffectsLogLen   = 4096
)

// SupportedLog is the Supported Log Pages log page (LID 00): one value for each
// LID, bit 0 says that the page is supported.
type SupportedLog struct {
	LIDs [256]uint32 // by LID
}

// Append adds the 1024 bytes of the structure to b.
func (l *SupportedLog) Append(b []byte) []byte {
	b, f := grow(b, SupportedLogLen)
	l.fields(f)
	return b
}

// Decode reads the structure from the first 1024 bytes of b.
func (l *SupportedLog) Decode(b []byte) error {
	f, err := open("Supported Log Pages log", b, SupportedLogLen)
	if err != nil {
		return err
	}
	l.fields(f)
	return nil
}

func (l *SupportedLog) fields(f fields) {
	for i := range l.LIDs {
		f.u32(4*i, &l.LIDs[i])
	}
}

// Supports tells whether the page is supported.
func (l *SupportedLog) Supports(lid LID) bool { return l.LIDs[lid]&1 != 0 }

// EffectsLog is the Commands Supported and Effects log page (LID 05).
type EffectsLog struct {
	Admin [256]Effects // by opcode
	IO    [256]Effects // by opcode
}

// Append adds the 4096 bytes of the structure to b.
func (l *EffectsLog) Append(b []byte) []byte {
	b, f := grow(b, EffectsLogLen)
	l.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b.
func (l *EffectsLog) Decode(b []byte) error {
	f, err := open("Commands Supported and Effects log", b, EffectsLogLen)
	if err != nil {
		return err
	}
	l.fields(f)
	return nil
}

func (l *EffectsLog) fields(f fields) {
	for i := range l.Admin {
		f.u32(4*i, (*uint32)(&l.Admin[i]))
	}
	for i := range l.IO {
		f.u32(1024+4*i, (*uint32)(&l.IO[i]))
	}
}

// Effects tells what a command does.
type Effects uint32

// Bits of Effects.
const (
	EffectsSupported           Effects = 1 << 0 // CSUPP
	EffectsLBAContent          Effects = 1 << 1 // LBCC: changes the content of logical blocks
	EffectsNamespaceCapability Effects = 1 << 2 // NCC
	EffectsNamespaceInventory  Effects = 1 << 3 // NIC
	EffectsController          Effects = 1 << 4 // CCC: changes controller capabilities
)

// CSE returns the submission and execution rule: 0 none, 1 no other command to
// the same namespace at the same time, 2 none to any namespace.
func (e Effects) CSE() uint8 { return uint8(e >> 16 & 7) }
