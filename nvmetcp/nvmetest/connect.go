package nvmetest

import (
	"errors"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

const discoveryNQN = fabrics.DiscoveryNQN

// fabrics executes a fabrics command.
func (c *Conn) fabrics(cmd *command, data []byte) nvme.Status {
	t := fabrics.Type(&cmd.sqe)
	if t == fabrics.TypeConnect {
		return c.connect(cmd, data)
	}
	if c.QID() != 0 {
		c.note("%v on an I/O queue", t)
		return c.fail(nvme.StatusInvalidOpcode)
	}
	switch t {
	case fabrics.TypePropertyGet:
		return c.propertyGet(cmd)
	case fabrics.TypePropertySet:
		return c.propertySet(cmd)
	}
	return c.fail(nvme.StatusInvalidOpcode)
}

// connectInvalid is the status Connect Invalid Parameters, with the offset of the field in DW0.
func (c *Conn) connectInvalid(cmd *command, ipo uint16, inData bool) nvme.Status {
	cmd.dw0 = uint32(ipo)
	if inData {
		cmd.dw0 |= 1 << 16
	}
	return c.fail(fabrics.StatusConnectInvalidParameters)
}

// connect makes the connection a queue of a controller.
func (c *Conn) connect(cmd *command, data []byte) nvme.Status {
	if c.connected {
		c.note("a second Connect")
		return c.fail(nvme.StatusCommandSequenceError)
	}
	if len(data) != fabrics.ConnectDataLen {
		c.note("Connect with %d bytes of data, want %d", len(data), fabrics.ConnectDataLen)
		return c.fail(nvme.StatusDataSGLLengthInvalid)
	}
	var req fabrics.Connect
	var who fabrics.ConnectData
	if err := req.DecodeSQE(&cmd.sqe); err != nil {
		return c.fail(nvme.StatusInvalidField)
	}
	if req.RECFMT != 0 {
		c.note("Connect with RECFMT %d", req.RECFMT)
		return c.fail(fabrics.StatusConnectIncompatibleFormat)
	}
	if err := who.Decode(data); err != nil {
		c.note("%v", err)
		var bad *fabrics.ConnectDataError
		if errors.As(err, &bad) {
			return c.connectInvalid(cmd, bad.Field, true)
		}
		return c.fail(nvme.StatusInvalidField)
	}
	c.checkConnect(&req, &who, data)

	c.t.mu.Lock()
	sub := c.t.subsystems[who.SubNQN]
	c.t.mu.Unlock()
	if sub == nil {
		return c.connectInvalid(cmd, fabrics.IPOSubNQN, true)
	}
	if !sub.allows(who.HostNQN) {
		if c.t.profile.Mode == ModeNVMET {
			cmd.dw0 = uint32(fabrics.IPOHostNQN)
		}
		return c.fail(fabrics.StatusConnectInvalidHost)
	}
	most := c.t.profile.entries - 1
	if req.QID == 0 {
		most = max(most, 31)
	}
	if req.SQSIZE == 0 || int(req.SQSIZE) > most {
		c.note("Connect of queue %d with SQSIZE %d, want 1 to %d", req.QID, req.SQSIZE, most)
		return c.connectInvalid(cmd, fabrics.IPOSQSIZE, false)
	}
	if req.QID == 0 {
		return c.connectAdmin(cmd, &req, &who, sub)
	}
	return c.connectIO(cmd, &req, &who, sub)
}

// checkConnect notes what a host may not send in a Connect, but targets do not mind.
func (c *Conn) checkConnect(req *fabrics.Connect, who *fabrics.ConnectData, data []byte) {
	if who.HostID.IsZero() {
		c.note("Connect with HOSTID 0")
	}
	if err := fabrics.ValidateNQN(who.HostNQN); err != nil {
		c.note("Connect with a bad HOSTNQN: %v", err)
	}
	if req.QID > 0 && req.KATO != 0 {
		c.note("Connect of I/O queue %d with KATO %d", req.QID, req.KATO)
	}
	if req.CATTR&^(fabrics.CATTRDisableSQFlowControl|fabrics.CATTRQueueDeletion) != 0 {
		c.note("Connect with CATTR %#02x", uint8(req.CATTR))
	}
	if !zero(data[18:256]) || !zero(data[768:]) {
		c.note("Connect with reserved bytes that are not 0")
	}
	if !zero(data[256+len(who.SubNQN):512]) || !zero(data[512+len(who.HostNQN):768]) {
		c.note("Connect with an NQN that is not padded with NUL")
	}
}

func zero(b []byte) bool {
	for _, v := range b {
		if v != 0 {
			return false
		}
	}
	return true
}

func (c *Conn) connectAdmin(cmd *command, req *fabrics.Connect, who *fabrics.ConnectData, sub *subsystem) nvme.Status {
	if who.CNTLID != fabrics.CNTLIDDynamic {
		c.note("Connect of an admin queue with CNTLID %#x, want 0xFFFF", who.CNTLID)
		return c.connectInvalid(cmd, fabrics.IPOCNTLID, true)
	}
	ctrl := sub.newController()
	if ctrl == nil {
		return fabrics.StatusConnectControllerBusy.Status()
	}
	ctrl.hostNQN, ctrl.hostID = who.HostNQN, who.HostID
	ctrl.queues[0] = c
	ctrl.features = map[nvme.FID]uint32{}
	ctrl.setKATO(req.KATO)
	c.join(cmd, ctrl, req)
	return 0
}

func (c *Conn) connectIO(cmd *command, req *fabrics.Connect, who *fabrics.ConnectData, sub *subsystem) nvme.Status {
	ctrl, known := sub.controller(who.CNTLID)
	switch {
	case ctrl == nil:
		if !known { // else it may just have ended
			c.note("Connect of I/O queue %d to CNTLID %#x, which no Connect returned", req.QID, who.CNTLID)
		}
		return c.connectInvalid(cmd, fabrics.IPOCNTLID, true)
	case who.HostNQN != ctrl.hostNQN:
		c.note("Connect of I/O queue %d with another HOSTNQN than the admin queue's", req.QID)
		return c.connectInvalid(cmd, fabrics.IPOHostNQN, true)
	case who.HostID != ctrl.hostID:
		c.note("Connect of I/O queue %d with another HOSTID than the admin queue's", req.QID)
		return c.connectInvalid(cmd, fabrics.IPOHostID, true)
	case sub.discovery:
		c.note("Connect of I/O queue %d to a discovery controller", req.QID)
		return c.connectInvalid(cmd, fabrics.IPOQID, false)
	case !ctrl.ready():
		c.note("Connect of I/O queue %d before CSTS.RDY is 1", req.QID)
		if c.t.profile.Mode == ModeSPDK {
			return c.connectInvalid(cmd, fabrics.IPOQID, false)
		}
		return c.fail(nvme.StatusCommandSequenceError)
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	most := c.t.profile.ioQueues
	if ctrl.granted > 0 {
		most = ctrl.granted
	} else {
		c.note("Connect of I/O queue %d before Number of Queues was set", req.QID)
	}
	switch {
	case int(req.QID) > most:
		c.note("Connect of I/O queue %d, %d were granted", req.QID, most)
		return c.connectInvalid(cmd, fabrics.IPOQID, false)
	case ctrl.queues[req.QID] != nil:
		c.note("Connect of I/O queue %d, which is connected", req.QID)
		if c.t.profile.Mode == ModeSPDK {
			return nvme.StatusInvalidQueueID.Status()
		}
		return c.fail(nvme.StatusCommandSequenceError)
	case ctrl.gone:
		return c.connectInvalid(cmd, fabrics.IPOCNTLID, true)
	}
	ctrl.queues[req.QID] = c
	c.join(cmd, ctrl, req)
	return 0
}

// join is the success of a Connect.
func (c *Conn) join(cmd *command, ctrl *controller, req *fabrics.Connect) {
	c.connected, c.ctrl = true, ctrl
	c.qid.Store(int32(req.QID))
	if req.QID > 0 {
		c.t.ioConns.Add(1)
	}
	c.sqsize, c.sqhd = int(req.SQSIZE)+1, 0
	// SPDK was seen to keep flow control although the host asks to do without.
	c.flowControl = req.CATTR&fabrics.CATTRDisableSQFlowControl == 0 || c.t.profile.Mode == ModeSPDK
	cmd.dw0 = uint32(ctrl.cntlid)
}
