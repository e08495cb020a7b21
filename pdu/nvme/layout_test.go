package nvme

import "testing"

// The layouts are the tables of the specification: offset, size, field.

func TestIdentifyControllerLayout(t *testing.T) {
	checkLayout[IdentifyController](t, IdentifyLen, `
0 2 VID
2 2 SSVID
4 20 SN
24 40 MN
64 8 FR
72 1 RAB
73 3 IEEE
76 1 CMIC
77 1 MDTS
78 2 CNTLID
80 4 VER
84 4 RTD3R
88 4 RTD3E
92 4 OAES
96 4 CTRATT
100 2 RRLS
111 1 CNTRLTYPE
112 16 FGUID
128 2 CRDT1
130 2 CRDT2
132 2 CRDT3
256 2 OACS
258 1 ACL
259 1 AERL
260 1 FRMW
261 1 LPA
262 1 ELPE
263 1 NPSS
264 1 AVSCC
265 1 APSTA
266 2 WCTEMP
268 2 CCTEMP
270 2 MTFA
272 4 HMPRE
276 4 HMMIN
280 16 TNVMCAP
296 16 UNVMCAP
312 4 RPMBS
316 2 EDSTT
318 1 DSTO
319 1 FWUG
320 2 KAS
322 2 HCTMA
324 2 MNTMT
326 2 MXTMT
328 4 SANICAP
332 4 HMMINDS
336 2 HMMAXD
338 2 NSETIDMAX
340 2 ENDGIDMAX
342 1 ANATT
343 1 ANACAP
344 4 ANAGRPMAX
348 4 NANAGRPID
352 4 PELS
356 2 DOMAINID
368 16 MEGCAP
512 1 SQES
513 1 CQES
514 2 MAXCMD
516 4 NN
520 2 ONCS
522 2 FUSES
524 1 FNA
525 1 VWC
526 2 AWUN
528 2 AWUPF
530 1 NVSCC
531 1 NWPC
532 2 ACWU
534 2 CDFS
536 4 SGLS
540 4 MNAN
544 16 MAXDNA
560 4 MAXCNA
768 256 SUBNQN
1792 4 IOCCSZ
1796 4 IORCSZ
1800 2 ICDOFF
1802 1 FCATT
1803 1 MSDBD
1804 2 OFCS
1806 1 DCTYPE
2048 1024 PSD
`)
}

func TestIdentifyNamespaceLayout(t *testing.T) {
	checkLayout[IdentifyNamespace](t, IdentifyLen, `
0 8 NSZE
8 8 NCAP
16 8 NUSE
24 1 NSFEAT
25 1 NLBAF
26 1 FLBAS
27 1 MC
28 1 DPC
29 1 DPS
30 1 NMIC
31 1 RESCAP
32 1 FPI
33 1 DLFEAT
34 2 NAWUN
36 2 NAWUPF
38 2 NACWU
40 2 NABSN
42 2 NABO
44 2 NABSPF
46 2 NOIOB
48 16 NVMCAP
64 2 NPWG
66 2 NPWA
68 2 NPDG
70 2 NPDA
72 2 NOWS
74 2 MSSRL
76 4 MCL
80 1 MSRC
92 4 ANAGRPID
99 1 NSATTR
100 2 NVMSETID
102 2 ENDGID
104 16 NGUID
120 8 EUI64
128 256 LBAF
`)
}

func TestIdentifyNamespaceIndependentLayout(t *testing.T) {
	checkLayout[IdentifyNamespaceIndependent](t, IdentifyLen, `
0 1 NSFEAT
1 1 NMIC
2 1 RESCAP
3 1 FPI
4 4 ANAGRPID
8 1 NSATTR
10 2 NVMSETID
12 2 ENDGID
14 1 NSTAT
`)
}

func TestIdentifyNamespaceNVMLayout(t *testing.T) {
	checkLayout[IdentifyNamespaceNVM](t, IdentifyLen, `
0 8 LBSTM
8 1 PIC
12 256 ELBAF
`)
}

func TestIdentifyControllerNVMLayout(t *testing.T) {
	checkLayout[IdentifyControllerNVM](t, IdentifyLen, `
0 1 VSL
1 1 WZSL
2 1 WUSL
3 1 DMRL
4 4 DMRSL
8 8 DMSL
`)
}

func TestErrorEntryLayout(t *testing.T) {
	checkLayout[ErrorEntry](t, ErrorEntryLen, `
0 8 Count
8 2 SQID
10 2 CID
12 2 Status
14 2 Location
16 8 LBA
24 4 NSID
28 1 Vendor
29 1 TRTYPE
32 8 CommandInfo
40 2 TransportInfo
`)
}

func TestSMARTLogLayout(t *testing.T) {
	checkLayout[SMARTLog](t, SMARTLogLen, `
0 1 CriticalWarning
1 2 Temperature
3 1 AvailableSpare
4 1 AvailableSpareThreshold
5 1 PercentageUsed
6 1 EnduranceGroupSummary
32 16 DataUnitsRead
48 16 DataUnitsWritten
64 16 HostReads
80 16 HostWrites
96 16 ControllerBusyTime
112 16 PowerCycles
128 16 PowerOnHours
144 16 UnsafeShutdowns
160 16 MediaErrors
176 16 ErrorEntries
192 4 WarningTemperatureTime
196 4 CriticalTemperatureTime
200 16 TemperatureSensors
216 8 ThermalTransitions
224 8 ThermalTime
`)
}

func TestFirmwareLogLayout(t *testing.T) {
	checkLayout[FirmwareLog](t, FirmwareLogLen, `
0 1 AFI
8 56 FRS
`)
}

func TestSupportedLogLayout(t *testing.T) {
	checkLayout[SupportedLog](t, SupportedLogLen, `
0 1024 LIDs
`)
}

func TestEffectsLogLayout(t *testing.T) {
	checkLayout[EffectsLog](t, EffectsLogLen, `
0 1024 Admin
1024 1024 IO
`)
}

func TestHostBehaviorLayout(t *testing.T) {
	checkLayout[HostBehavior](t, HostBehaviorLen, `
0 1 ACRE
1 1 ETDAS
2 1 LBAFEE
3 1 HDISNS
4 2 CDFE
`)
}

func TestDSMRangeLayout(t *testing.T) {
	checkLayout[DSMRange](t, DSMRangeLen, `
0 4 Attributes
4 4 NLB
8 8 SLBA
`)
}
