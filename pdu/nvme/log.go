package nvme

// LID is a log page identifier.
type LID uint8

// Log pages.
const (
	LIDSupported               LID = 0x00 // [SupportedLog]
	LIDErrorInformation        LID = 0x01 // [ErrorEntry], several
	LIDSMART                   LID = 0x02 // [SMARTLog]
	LIDFirmwareSlot            LID = 0x03 // [FirmwareLog]
	LIDChangedNamespaces       LID = 0x04 // [ChangedNamespaces]
	LIDEffects                 LID = 0x05 // [EffectsLog]
	LIDSelfTest                LID = 0x06
	LIDTelemetryHost           LID = 0x07
	LIDTelemetryController     LID = 0x08
	LIDEnduranceGroup          LID = 0x09
	LIDANA                     LID = 0x0C // [ANALog]
	LIDPersistentEvent         LID = 0x0D
	LIDDiscovery               LID = 0x70 // in package fabrics
	LIDReservationNotification LID = 0x80
	LIDSanitize                LID = 0x81
)
