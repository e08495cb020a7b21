package nvmetest

import (
	"slices"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// Limits that Identify Controller reports.
const (
	aerl      = 3 // 0's based
	anaGroups = 128
	maxNSID   = 1024
	anaTime   = 10 // ANATT, seconds
)

// identify executes Identify.
func (c *Conn) identify(cmd *command) nvme.Status {
	sub := c.ctrl.sub
	nsid := cmd.sqe.NSID
	cns, csi := nvme.CNS(cmd.sqe.CDW10), nvme.CSI(cmd.sqe.CDW11>>24)
	var b []byte
	switch {
	case cns == nvme.CNSController:
		b = c.identifyController()
	case sub.discovery:
		return c.fail(nvme.StatusInvalidField)
	case cns == nvme.CNSActiveNSList:
		if nsid >= 0xFFFFFFFE {
			return c.fail(nvme.StatusInvalidNamespace)
		}
		ids := sub.nsids()
		i, found := slices.BinarySearch(ids, nsid)
		if found {
			i++
		}
		b = nvme.NamespaceList(ids[i:]).Append(nil)
	case cns == nvme.CNSControllerIOCS && csi == nvme.CSINVM:
		b = (&nvme.IdentifyControllerNVM{}).Append(nil)
	case cns == nvme.CNSNamespace, cns == nvme.CNSNSDescriptors, cns == nvme.CNSNamespaceIndependent,
		cns == nvme.CNSNamespaceIOCS && csi == nvme.CSINVM:
		if nsid == 0 || nsid == nvme.NSIDAll {
			c.note("Identify CNS %#02x with NSID %#x", uint8(cns), nsid)
			return c.fail(nvme.StatusInvalidNamespace)
		}
		ns := sub.namespace(nsid)
		if ns == nil {
			if cns != nvme.CNSNamespace || nsid > maxNSID {
				return c.fail(nvme.StatusInvalidNamespace)
			}
			b = make([]byte, nvme.IdentifyLen)
			break
		}
		b = c.identifyNamespace(ns, cns)
	default:
		return c.fail(nvme.StatusInvalidField)
	}
	return c.reply(cmd, b)
}

func (c *Conn) identifyController() []byte {
	p, sub := &c.t.profile, c.ctrl.sub
	id := nvme.IdentifyController{
		SN: sub.serial, MN: sub.model, FR: "1",
		MDTS: p.mdts, CNTLID: c.ctrl.cntlid, VER: uint32(p.version()),
		CTRATT: nvme.CTRATTHostID128, CNTRLTYPE: nvme.ControllerTypeIO,
		ACL: 3, AERL: aerl, LPA: nvme.LPAExtended,
		KAS: p.kas, SQES: 0x66, CQES: 0x44, MAXCMD: uint16(min(p.entries, 0xFFFF)),
		SGLS: 1, SUBNQN: sub.nqn,
		IOCCSZ: uint32(nvme.SQELen+p.inCapsule) / 16, IORCSZ: 1, MSDBD: 1,
	}
	if p.inCapsule > 0 {
		id.SGLS |= nvme.SGLSOffset
	}
	if c.t.faults.Load().Controller.WrongCNTLID {
		id.CNTLID ^= 0x55
	}
	if p.tbkas {
		id.CTRATT |= nvme.CTRATTTBKAS
	}
	if sub.discovery {
		id.CNTRLTYPE = nvme.ControllerTypeDiscovery
		id.OAES = nvme.AECDiscoveryLog
		return id.Append(nil)
	}
	id.OAES = nvme.AECNamespaceAttribute | nvme.AECANA
	id.CMIC = nvme.CMICMultiPort | nvme.CMICMultiController | nvme.CMICANA
	id.LPA |= nvme.LPAEffects | nvme.LPASupportedPages
	id.NN, id.MNAN = maxNSID, maxNSID
	id.ONCS = nvme.ONCSDatasetManagement | nvme.ONCSWriteZeroes
	id.VWC = nvme.VWCPresent | nvme.VWCFlushAllYes
	id.ANATT, id.ANAGRPMAX, id.NANAGRPID = anaTime, anaGroups, anaGroups
	id.ANACAP = nvme.ANACAPOptimized | nvme.ANACAPNonOptimized | nvme.ANACAPInaccessible | nvme.ANACAPPersistentLoss | nvme.ANACAPChange
	if p.Mode != ModeNVMET {
		id.ONCS |= nvme.ONCSCompare
		id.SGLS |= nvme.SGLSKeyed // SPDK says so on TCP too
	}
	return id.Append(nil)
}

func (c *Conn) identifyNamespace(ns *namespace, cns nvme.CNS) []byte {
	var attr uint8
	if ns.readOnly {
		attr = 1
	}
	switch cns {
	case nvme.CNSNSDescriptors:
		ids := nvme.NamespaceIDs{EUI64: ns.eui64, NGUID: ns.nguid, UUID: ns.uuid, HasCSI: true}
		return ids.Append(nil)
	case nvme.CNSNamespaceIOCS:
		return (&nvme.IdentifyNamespaceNVM{}).Append(nil)
	case nvme.CNSNamespaceIndependent:
		id := nvme.IdentifyNamespaceIndependent{NMIC: 1, ANAGRPID: ns.anagrpid, NSATTR: attr, NSTAT: nvme.NSTATReady}
		return id.Append(nil)
	}
	id := nvme.IdentifyNamespace{
		NSZE: ns.blocks, NCAP: ns.blocks, NUSE: ns.blocks,
		NMIC: 1, DLFEAT: 1, ANAGRPID: ns.anagrpid, NSATTR: attr,
		NVMCAP: nvme.Uint128{Lo: ns.blocks << ns.shift},
		NGUID:  ns.nguid, EUI64: ns.eui64,
	}
	id.LBAF[0] = nvme.LBAFormat{MS: ns.metadata, LBADS: ns.shift}
	if ns.metadata > 0 {
		id.FLBAS, id.MC = 1<<4, 1
	}
	return id.Append(nil)
}
