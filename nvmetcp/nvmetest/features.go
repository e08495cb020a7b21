package nvmetest

import (
	"time"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// setFeatures executes Set Features.
func (c *Conn) setFeatures(cmd *command, data []byte) nvme.Status {
	fid, v := nvme.FID(cmd.sqe.CDW10), cmd.sqe.CDW11
	ctrl := c.ctrl
	if ctrl.sub.discovery && fid != nvme.FIDKATO && fid != nvme.FIDAsyncEventConfig {
		return c.fail(nvme.StatusInvalidField)
	}
	if cmd.sqe.CDW10&(1<<31) != 0 {
		return c.fail(nvme.StatusFeatureNotSaveable)
	}
	if n := len(data); n != 0 && fid != nvme.FIDHostBehavior {
		c.note("Set Features %#02x with %d bytes of data", uint8(fid), n)
		return c.fail(nvme.StatusInvalidField)
	}
	switch fid {
	case nvme.FIDNumberOfQueues:
		return c.numberOfQueues(cmd)
	case nvme.FIDKATO:
		if v == 0 && c.t.profile.Mode == ModeSPDK {
			return c.fail(nvme.StatusKeepAliveInvalid)
		}
		ctrl.setKATO(v)
		if c.t.profile.Mode == ModeNVMET {
			cmd.dw0 = (v + 999) / 1000
		}
		return 0
	case nvme.FIDAsyncEventConfig:
		if bad := v &^ (c.oaes() | nvme.AECSMARTMask); bad != 0 {
			c.note("Async Event Configuration with bits %#x, which OAES does not have", bad)
			if c.t.profile.Mode != ModeSPDK {
				return c.fail(nvme.StatusInvalidField)
			}
		}
		c.setAEC(v)
		return 0
	case nvme.FIDHostIdentifier:
		return c.fail(nvme.StatusCommandSequenceError)
	case nvme.FIDHostBehavior:
		if c.t.profile.Mode == ModeNVMET {
			return c.fail(nvme.StatusInvalidField)
		}
		var h nvme.HostBehavior
		if err := h.Decode(data); err != nil {
			return c.fail(nvme.StatusInvalidField)
		}
		ctrl.mu.Lock()
		ctrl.behavior = h
		ctrl.mu.Unlock()
		return 0
	}
	if !c.hasFeature(fid, true) {
		return c.fail(nvme.StatusInvalidField)
	}
	ctrl.mu.Lock()
	ctrl.features[fid] = v
	ctrl.mu.Unlock()
	return 0
}

// hasFeature reports whether a feature without rules of its own is there.
func (c *Conn) hasFeature(fid nvme.FID, set bool) bool {
	switch fid {
	case nvme.FIDVolatileWriteCache:
		return !set || c.t.profile.Mode != ModeNVMET
	case nvme.FIDArbitration:
		return true
	case nvme.FIDPowerManagement, nvme.FIDTemperatureThreshold, nvme.FIDErrorRecovery, nvme.FIDWriteAtomicity:
		return c.t.profile.Mode != ModeNVMET
	}
	return false
}

// numberOfQueues executes Set Features Number of Queues.
func (c *Conn) numberOfQueues(cmd *command) nvme.Status {
	v := cmd.sqe.CDW11
	if v&0xFFFF == 0xFFFF || v>>16 == 0xFFFF {
		c.note("Number of Queues %#08x", v)
		return c.fail(nvme.StatusInvalidField)
	}
	ctrl := c.ctrl
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if len(ctrl.queues) > 1 {
		c.note("Number of Queues is set while %d I/O queues are connected", len(ctrl.queues)-1)
		return c.fail(nvme.StatusCommandSequenceError)
	}
	n := c.t.profile.ioQueues
	if c.t.profile.Mode == ModeStrict {
		sqs, cqs := nvme.ParseNumberOfQueues(v)
		n = min(n, sqs, cqs)
	}
	if most := c.t.faults.Load().Controller.MaxQueues; most > 0 {
		n = min(n, most)
	}
	ctrl.granted = n
	cmd.dw0 = nvme.NumberOfQueues(n, n)
	return 0
}

// getFeatures executes Get Features.
func (c *Conn) getFeatures(cmd *command) nvme.Status {
	fid, sel := nvme.FID(cmd.sqe.CDW10), uint8(cmd.sqe.CDW10>>8)&7
	ctrl := c.ctrl
	if sel == nvme.SelectSaved || sel > nvme.SelectSupported {
		return c.fail(nvme.StatusInvalidField)
	}
	if ctrl.sub.discovery && fid != nvme.FIDKATO && fid != nvme.FIDAsyncEventConfig {
		return c.fail(nvme.StatusInvalidField)
	}
	switch fid {
	case nvme.FIDHostIdentifier:
		if cmd.sqe.CDW11&1 == 0 {
			return c.fail(nvme.StatusInvalidField)
		}
		return c.reply(cmd, ctrl.hostID[:])
	case nvme.FIDHostBehavior:
		if c.t.profile.Mode == ModeNVMET {
			return c.fail(nvme.StatusInvalidField)
		}
		ctrl.mu.Lock()
		h := ctrl.behavior
		ctrl.mu.Unlock()
		return c.reply(cmd, h.Append(nil))
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	switch fid {
	case nvme.FIDNumberOfQueues:
		n := ctrl.granted
		if n == 0 {
			n = c.t.profile.ioQueues
		}
		cmd.dw0 = nvme.NumberOfQueues(n, n)
	case nvme.FIDKATO:
		cmd.dw0 = uint32(ctrl.kato / time.Millisecond)
	case nvme.FIDAsyncEventConfig:
		cmd.dw0 = ctrl.events.enabled
	default:
		if !c.hasFeature(fid, false) {
			return c.fail(nvme.StatusInvalidField)
		}
		cmd.dw0 = ctrl.features[fid]
		if fid == nvme.FIDVolatileWriteCache {
			cmd.dw0 = 1
		}
	}
	return 0
}

// oaes is OAES of the controller: the events that can be switched on.
func (c *Conn) oaes() uint32 {
	if c.ctrl.sub.discovery {
		return nvme.AECDiscoveryLog
	}
	return nvme.AECNamespaceAttribute | nvme.AECANA
}
