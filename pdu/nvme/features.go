package nvme

// FID is a feature identifier.
type FID uint8

// Features.
const (
	FIDArbitration          FID = 0x01
	FIDPowerManagement      FID = 0x02
	FIDTemperatureThreshold FID = 0x04
	FIDErrorRecovery        FID = 0x05
	FIDVolatileWriteCache   FID = 0x06
	FIDNumberOfQueues       FID = 0x07 // see [NumberOfQueues]
	FIDInterruptCoalescing  FID = 0x08 // not on fabrics
	FIDInterruptVector      FID = 0x09 // not on fabrics
	FIDWriteAtomicity       FID = 0x0A
	FIDAsyncEventConfig     FID = 0x0B // see the AEC constants
	FIDTimestamp            FID = 0x0E // data: [Timestamp]
	FIDKATO                 FID = 0x0F // keep alive timeout, milliseconds
	FIDHostBehavior         FID = 0x16 // data: [HostBehavior]
	FIDIOCSProfile          FID = 0x19
	FIDHostIdentifier       FID = 0x81 // data: 8 or 16 bytes
	FIDReservationMask      FID = 0x82
	FIDReservationPersist   FID = 0x83
	FIDWriteProtect         FID = 0x84
)

// Bits of CDW11 of the Asynchronous Event Configuration feature. The bits from
// AECNamespaceAttribute on are those of OAES in Identify Controller.
const (
	AECSMARTSpare         uint32 = 1 << 0
	AECSMARTTemperature   uint32 = 1 << 1
	AECSMARTReliability   uint32 = 1 << 2
	AECSMARTReadOnly      uint32 = 1 << 3
	AECSMARTBackup        uint32 = 1 << 4
	AECSMARTPMR           uint32 = 1 << 5
	AECSMARTMask          uint32 = 0xFF
	AECNamespaceAttribute uint32 = 1 << 8
	AECFirmwareActivation uint32 = 1 << 9
	AECTelemetry          uint32 = 1 << 10
	AECANA                uint32 = 1 << 11
	AECPredictableLatency uint32 = 1 << 12
	AECLBAStatus          uint32 = 1 << 13
	AECEnduranceGroup     uint32 = 1 << 14
	AECNormalShutdown     uint32 = 1 << 15
	AECZoneDescriptor     uint32 = 1 << 27
	AECDiscoveryLog       uint32 = 1 << 31
)

// NumberOfQueues returns the value of the Number of Queues feature, CDW11 of
// Set Features, for that many submission and completion queues. Both are 0's
// based on the wire and 65535 queues are the most, so counts are brought into
// 1 to 65535.
func NumberOfQueues(sqs, cqs int) uint32 {
	return zeroBased(cqs)<<16 | zeroBased(sqs)
}

func zeroBased(n int) uint32 { return uint32(min(max(n, 1), 0xFFFF) - 1) }

// ParseNumberOfQueues returns the counts that are in a value of the feature:
// CDW11 of the request, or DW0 of the answer, where they are what the controller
// allocated, which may be less than or more than what was asked for.
func ParseNumberOfQueues(v uint32) (sqs, cqs int) {
	return int(v&0xFFFF) + 1, int(v>>16) + 1
}

// HostBehaviorLen is the length of the Host Behavior Support data in bytes.
const HostBehaviorLen = 512

// HostBehavior is the data of the Host Behavior Support feature.
type HostBehavior struct {
	ACRE   bool   // advanced command retry: the controller may use CRD
	ETDAS  bool   // extended telemetry data area 4
	LBAFEE bool   // LBA formats beyond 16 and extended protection information
	HDISNS bool   // host dispersed namespaces
	CDFE   uint16 // copy descriptor formats enabled, bit n = format n
}

// Append adds the 512 bytes of the structure to b.
func (h *HostBehavior) Append(b []byte) []byte {
	b, f := grow(b, HostBehaviorLen)
	h.fields(f)
	return b
}

// Decode reads the structure from the first 512 bytes of b.
func (h *HostBehavior) Decode(b []byte) error {
	f, err := open("Host Behavior Support", b, HostBehaviorLen)
	if err != nil {
		return err
	}
	h.fields(f)
	return nil
}

func (h *HostBehavior) fields(f fields) {
	f.flag(0, &h.ACRE)
	f.flag(1, &h.ETDAS)
	f.flag(2, &h.LBAFEE)
	f.flag(3, &h.HDISNS)
	f.u16(4, &h.CDFE)
}

// TimestampLen is the length of the Timestamp data in bytes.
const TimestampLen = 8

// Timestamp is the data of the Timestamp feature.
type Timestamp struct {
	Milliseconds uint64 // since 1970-01-01 UTC, 48 bits
	Attributes   uint8  // bit 0 the clock stopped at times, bits 3:1 origin; 0 in Set Features
}

// Append adds the 8 bytes of the structure to b.
func (t *Timestamp) Append(b []byte) []byte {
	b, f := grow(b, TimestampLen)
	v := t.Milliseconds&(1<<48-1) | uint64(t.Attributes)<<48
	f.u64(0, &v)
	return b
}

// Decode reads the structure from the first 8 bytes of b.
func (t *Timestamp) Decode(b []byte) error {
	f, err := open("Timestamp", b, TimestampLen)
	if err != nil {
		return err
	}
	var v uint64
	f.u64(0, &v)
	t.Milliseconds, t.Attributes = v&(1<<48-1), uint8(v>>48)
	return nil
}
