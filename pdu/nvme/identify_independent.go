package nvme

// IdentifyNamespaceIndependent is the I/O Command Set Independent Identify
// Namespace data structure (CNS 08).
type IdentifyNamespaceIndependent struct {
	NSFEAT   uint8  // features: bit 3 ids not reused, bit 4 rotational, bit 5 no volatile write cache
	NMIC     uint8  // multi-path and sharing, bit 0 shared
	RESCAP   uint8  // reservation capabilities
	FPI      uint8  // format progress
	ANAGRPID uint32 // ANA group identifier
	NSATTR   uint8  // attributes, bit 0 write protected
	NVMSETID uint16 // NVM set identifier
	ENDGID   uint16 // endurance group identifier
	NSTAT    uint8  // status, see [NSTATReady]
}

// Append adds the 4096 bytes of the structure to b.
func (n *IdentifyNamespaceIndependent) Append(b []byte) []byte {
	b, f := grow(b, IdentifyLen)
	n.fields(f)
	return b
}

// Decode reads the structure from the first 4096 bytes of b.
func (n *IdentifyNamespaceIndependent) Decode(b []byte) error {
	f, err := open("Identify Namespace, I/O Command Set Independent", b, IdentifyLen)
	if err != nil {
		return err
	}
	n.fields(f)
	return nil
}

func (n *IdentifyNamespaceIndependent) fields(f fields) {
	f.u8(0, &n.NSFEAT)
	f.u8(1, &n.NMIC)
	f.u8(2, &n.RESCAP)
	f.u8(3, &n.FPI)
	f.u32(4, &n.ANAGRPID)
	f.u8(8, &n.NSATTR)
	f.u16(10, &n.NVMSETID)
	f.u16(12, &n.ENDGID)
	f.u8(14, &n.NSTAT)
}

// NSTATReady is the bit of NSTAT that says that the namespace is ready.
const NSTATReady uint8 = 1 << 0
