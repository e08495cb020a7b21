package nvme

// FirmwareLogLen is the length of a [FirmwareLog] in bytes.
const FirmwareLogLen = 512

// FirmwareLog is the Firmware Slot Information log page (LID 03).
type FirmwareLog struct {
	AFI uint8     // active slot in bits 2:0, slot after the next reset in 6:4
	FRS [7]string // firmware revision of slots 1 to 7, 8 bytes, longer ones are cut; empty = none
}

// Append adds the 512 bytes of the structure to b.
func (l *FirmwareLog) Append(b []byte) []byte {
	b, f := grow(b, FirmwareLogLen)
	l.fields(f)
	return b
}

// Decode reads the structure from the first 512 bytes of b.
func (l *FirmwareLog) Decode(b []byte) error {
	f, err := open("Firmware Slot Information log", b, FirmwareLogLen)
	if err != nil {
		return err
	}
	l.fields(f)
	return nil
}

func (l *FirmwareLog) fields(f fields) {
	f.u8(0, &l.AFI)
	for i := range l.FRS {
		if f.decode || l.FRS[i] != "" { // an empty slot is zero, not spaces
			f.ascii(8+8*i, 8, &l.FRS[i])
		}
	}
}
