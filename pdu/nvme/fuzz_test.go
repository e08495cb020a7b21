package nvme

import "testing"

func FuzzSQE(f *testing.F)                { fuzz[SQE](f, SQELen) }
func FuzzCQE(f *testing.F)                { fuzz[CQE](f, CQELen) }
func FuzzIdentifyController(f *testing.F) { fuzz[IdentifyController](f, IdentifyLen) }
func FuzzIdentifyNamespace(f *testing.F)  { fuzz[IdentifyNamespace](f, IdentifyLen) }
func FuzzIdentifyNamespaceIndependent(f *testing.F) {
	fuzz[IdentifyNamespaceIndependent](f, IdentifyLen)
}
func FuzzIdentifyNamespaceNVM(f *testing.F)  { fuzz[IdentifyNamespaceNVM](f, IdentifyLen) }
func FuzzIdentifyControllerNVM(f *testing.F) { fuzz[IdentifyControllerNVM](f, IdentifyLen) }
func FuzzNamespaceList(f *testing.F)         { fuzz[NamespaceList](f, IdentifyLen) }
func FuzzControllerList(f *testing.F)        { fuzz[ControllerList](f, IdentifyLen) }
func FuzzNamespaceIDs(f *testing.F)          { fuzz[NamespaceIDs](f, IdentifyLen) }
func FuzzSupportedLog(f *testing.F)          { fuzz[SupportedLog](f, SupportedLogLen) }
func FuzzErrorEntry(f *testing.F)            { fuzz[ErrorEntry](f, ErrorEntryLen) }
func FuzzSMARTLog(f *testing.F)              { fuzz[SMARTLog](f, SMARTLogLen) }
func FuzzFirmwareLog(f *testing.F)           { fuzz[FirmwareLog](f, FirmwareLogLen) }
func FuzzChangedNamespaces(f *testing.F)     { fuzz[ChangedNamespaces](f, ChangedNamespacesLen) }
func FuzzEffectsLog(f *testing.F)            { fuzz[EffectsLog](f, EffectsLogLen) }
func FuzzANALog(f *testing.F)                { fuzz[ANALog](f, anaHeaderLen) }
func FuzzHostBehavior(f *testing.F)          { fuzz[HostBehavior](f, HostBehaviorLen) }
func FuzzTimestamp(f *testing.F)             { fuzz[Timestamp](f, TimestampLen) }
func FuzzDSMRange(f *testing.F)              { fuzz[DSMRange](f, DSMRangeLen) }
