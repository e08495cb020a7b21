package nvme

// ErrorEntryLen is the length of an [ErrorEntry] in bytes.
const ErrorEntryLen = 64

// An ErrorEntry is one entry of the Error Information log page (LID 01), newest
// first.
type ErrorEntry struct {
	Count         uint64 // error count; 0 = the entry is empty
	SQID          uint16 // queue of the command
	CID           uint16 // command identifier
	Status        Status // of the command
	Location      uint16 // of the parameter that is wrong: byte in bits 7:0, bit in 10:8; FFFFh = none
	LBA           uint64 // first logical block with the error
	NSID          uint32 // namespace
	Vendor        uint8  // log page with vendor specific information
	TRTYPE        uint8  // transport type
	CommandInfo   uint64 // command specific information
	TransportInfo uint16 // transport type specific information
}

// Append adds the 64 bytes of the structure to b.
func (e *ErrorEntry) Append(b []byte) []byte {
	b, f := grow(b, ErrorEntryLen)
	e.fields(f)
	return b
}

// Decode reads the structure from the first 64 bytes of b.
func (e *ErrorEntry) Decode(b []byte) error {
	f, err := open("error log entry", b, ErrorEntryLen)
	if err != nil {
		return err
	}
	e.fields(f)
	return nil
}

func (e *ErrorEntry) fields(f fields) {
	f.u64(0, &e.Count)
	f.u16(8, &e.SQID)
	f.u16(10, &e.CID)
	f.status(12, &e.Status)
	f.u16(14, &e.Location)
	f.u64(16, &e.LBA)
	f.u32(24, &e.NSID)
	f.u8(28, &e.Vendor)
	f.u8(29, &e.TRTYPE)
	f.u64(32, &e.CommandInfo)
	f.u16(40, &e.TransportInfo)
}
