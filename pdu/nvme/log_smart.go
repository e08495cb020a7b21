package nvme

// SMARTLogLen is the length of a [SMARTLog] in bytes.
const SMARTLogLen = 512

// SMARTLog is the SMART / Health Information log page (LID 02).
type SMARTLog struct {
	CriticalWarning         uint8   // see the SMART constants
	Temperature             uint16  // composite, K
	AvailableSpare          uint8   // percent
	AvailableSpareThreshold uint8   // percent
	PercentageUsed          uint8   // percent of the life, may be above 100
	EnduranceGroupSummary   uint8   // critical warnings of endurance groups
	DataUnitsRead           Uint128 // units of 1000*512 bytes
	DataUnitsWritten        Uint128 // units of 1000*512 bytes
	HostReads               Uint128 // commands
	HostWrites              Uint128 // commands
	ControllerBusyTime      Uint128 // minutes
	PowerCycles             Uint128
	PowerOnHours            Uint128
	UnsafeShutdowns         Uint128
	MediaErrors             Uint128
	ErrorEntries            Uint128   // over the life of the controller
	WarningTemperatureTime  uint32    // minutes
	CriticalTemperatureTime uint32    // minutes
	TemperatureSensors      [8]uint16 // K; 0 = none
	ThermalTransitions      [2]uint32 // by thermal management temperature 1 and 2
	ThermalTime             [2]uint32 // by thermal management temperature 1 and 2, seconds
}

// Append adds the 512 bytes of the structure to b.
func (l *SMARTLog) Append(b []byte) []byte {
	b, f := grow(b, SMARTLogLen)
	l.fields(f)
	return b
}

// Decode reads the structure from the first 512 bytes of b.
func (l *SMARTLog) Decode(b []byte) error {
	f, err := open("SMART / Health Information log", b, SMARTLogLen)
	if err != nil {
		return err
	}
	l.fields(f)
	return nil
}

func (l *SMARTLog) fields(f fields) {
	f.u8(0, &l.CriticalWarning)
	f.u16(1, &l.Temperature)
	f.u8(3, &l.AvailableSpare)
	f.u8(4, &l.AvailableSpareThreshold)
	f.u8(5, &l.PercentageUsed)
	f.u8(6, &l.EnduranceGroupSummary)
	f.u128(32, &l.DataUnitsRead)
	f.u128(48, &l.DataUnitsWritten)
	f.u128(64, &l.HostReads)
	f.u128(80, &l.HostWrites)
	f.u128(96, &l.ControllerBusyTime)
	f.u128(112, &l.PowerCycles)
	f.u128(128, &l.PowerOnHours)
	f.u128(144, &l.UnsafeShutdowns)
	f.u128(160, &l.MediaErrors)
	f.u128(176, &l.ErrorEntries)
	f.u32(192, &l.WarningTemperatureTime)
	f.u32(196, &l.CriticalTemperatureTime)
	for i := range l.TemperatureSensors {
		f.u16(200+2*i, &l.TemperatureSensors[i])
	}
	for i := range l.ThermalTransitions {
		f.u32(216+4*i, &l.ThermalTransitions[i])
	}
	for i := range l.ThermalTime {
		f.u32(224+4*i, &l.ThermalTime[i])
	}
}

// Bits of CriticalWarning.
const (
	SMARTSpareLow     uint8 = 1 << 0
	SMARTTemperature  uint8 = 1 << 1
	SMARTReliability  uint8 = 1 << 2
	SMARTReadOnly     uint8 = 1 << 3
	SMARTBackupFailed uint8 = 1 << 4
	SMARTPMR          uint8 = 1 << 5
)
