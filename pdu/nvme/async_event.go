package nvme

import "fmt"

// An AsyncEvent is the result of an Asynchronous Event Request. The controller
// holds further events of the same type back until LogPage is read without RAE.
type AsyncEvent struct {
	Type    AsyncEventType
	Info    uint8 // what happened, by Type; the Notice constants for [AsyncEventNotice]
	LogPage LID   // the page that tells more, and whose reading clears the event
}

// AsyncEventType is the kind of an event.
type AsyncEventType uint8

// Kinds of events.
const (
	AsyncEventError     AsyncEventType = 0
	AsyncEventSMART     AsyncEventType = 1
	AsyncEventNotice    AsyncEventType = 2
	AsyncEventImmediate AsyncEventType = 3
	AsyncEventOneShot   AsyncEventType = 4
	AsyncEventIOCS      AsyncEventType = 6 // I/O command set specific
	AsyncEventVendor    AsyncEventType = 7
)

// Info of [AsyncEventError].
const (
	EventInvalidDoorbell      uint8 = 0
	EventInvalidDoorbellValue uint8 = 1
	EventDiagnosticFailure    uint8 = 2
	EventPersistentError      uint8 = 3 // persistent internal error: the host should reset
	EventTransientError       uint8 = 4
	EventFirmwareLoadError    uint8 = 5
)

// Info of [AsyncEventSMART].
const (
	EventReliability uint8 = 0
	EventTemperature uint8 = 1
	EventSpare       uint8 = 2
)

// Info of [AsyncEventNotice].
const (
	NoticeNamespaceAttribute uint8 = 0x00 // LID 04
	NoticeFirmwareActivation uint8 = 0x01
	NoticeTelemetry          uint8 = 0x02
	NoticeANA                uint8 = 0x03 // LID 0C
	NoticePredictableLatency uint8 = 0x04
	NoticeLBAStatus          uint8 = 0x05
	NoticeEnduranceGroup     uint8 = 0x06
	NoticeZoneDescriptor     uint8 = 0xEF
	NoticeDiscoveryLog       uint8 = 0xF0 // LID 70
)

// Info of [AsyncEventIOCS].
const (
	EventReservationLog       uint8 = 0 // LID 80
	EventSanitizeCompleted    uint8 = 1
	EventSanitizeDeallocation uint8 = 2 // completed with unexpected deallocation
)

// ParseAsyncEvent reads DW0 of the completion.
func ParseAsyncEvent(dw0 uint32) AsyncEvent {
	return AsyncEvent{Type: AsyncEventType(dw0 & 7), Info: uint8(dw0 >> 8), LogPage: LID(dw0 >> 16)}
}

// DW0 returns the event as DW0 of the completion.
func (e AsyncEvent) DW0() uint32 {
	return uint32(e.LogPage)<<16 | uint32(e.Info)<<8 | uint32(e.Type&7)
}

// String describes the event.
func (e AsyncEvent) String() string {
	if s := e.name(); s != "" {
		return s
	}
	return fmt.Sprintf("event type %d info 0x%02X log page 0x%02X", uint8(e.Type), e.Info, uint8(e.LogPage))
}

func (e AsyncEvent) name() string {
	switch e.Type {
	case AsyncEventError:
		switch e.Info {
		case EventInvalidDoorbell:
			return "error: write to invalid doorbell register"
		case EventInvalidDoorbellValue:
			return "error: invalid doorbell write value"
		case EventDiagnosticFailure:
			return "error: diagnostic failure"
		case EventPersistentError:
			return "error: persistent internal error"
		case EventTransientError:
			return "error: transient internal error"
		case EventFirmwareLoadError:
			return "error: firmware image load"
		}
	case AsyncEventSMART:
		switch e.Info {
		case EventReliability:
			return "health: NVM subsystem reliability"
		case EventTemperature:
			return "health: temperature threshold"
		case EventSpare:
			return "health: spare below threshold"
		}
	case AsyncEventNotice:
		switch e.Info {
		case NoticeNamespaceAttribute:
			return "notice: namespace attribute changed"
		case NoticeFirmwareActivation:
			return "notice: firmware activation starting"
		case NoticeTelemetry:
			return "notice: telemetry log changed"
		case NoticeANA:
			return "notice: asymmetric namespace access changed"
		case NoticePredictableLatency:
			return "notice: predictable latency log changed"
		case NoticeLBAStatus:
			return "notice: LBA status information"
		case NoticeEnduranceGroup:
			return "notice: endurance group log changed"
		case NoticeZoneDescriptor:
			return "notice: zone descriptor changed"
		case NoticeDiscoveryLog:
			return "notice: discovery log changed"
		}
	case AsyncEventIOCS:
		switch e.Info {
		case EventReservationLog:
			return "reservation log page available"
		case EventSanitizeCompleted:
			return "sanitize completed"
		case EventSanitizeDeallocation:
			return "sanitize completed with unexpected deallocation"
		}
	}
	return ""
}
