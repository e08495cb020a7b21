package nvmetest

import (
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// readyDelay is how long the strict mode takes to become ready.
const readyDelay = 10 * time.Millisecond

// timeout is CAP.TO, units of 500 ms.
func (p *profile) timeout() uint64 {
	switch p.Mode {
	case ModeNVMET:
		return 15
	case ModeSPDK:
		return 30
	}
	return 4
}

// capabilities is the property CAP.
func (p *profile) capabilities() uint64 {
	v := uint64(p.entries-1) | p.timeout()<<24 | 1<<37
	if p.Mode != ModeNVMET {
		v |= 1<<16 | 1<<59 // CQR, CRWMS
	}
	return v
}

func (p *profile) version() fabrics.VS {
	if p.Mode == ModeNVMET {
		return fabrics.VS21
	}
	return fabrics.VS20
}

// badProperty is the status of an access to a property that is not there, or of another size.
func (c *Conn) badProperty() nvme.Status {
	if c.t.profile.Mode == ModeSPDK {
		return fabrics.StatusConnectInvalidParameters.Status()
	}
	return c.fail(nvme.StatusInvalidField)
}

func (c *Conn) propertyGet(cmd *command) nvme.Status {
	var get fabrics.PropertyGet
	if err := get.DecodeSQE(&cmd.sqe); err != nil {
		c.note("%v", err)
		return c.badProperty()
	}
	if get.OFST == fabrics.PropertyCRTO && c.t.profile.Mode == ModeNVMET || get.Wide != get.OFST.Wide() {
		return c.badProperty()
	}
	var v uint64
	switch get.OFST {
	case fabrics.PropertyCAP:
		v = c.t.profile.capabilities()
	case fabrics.PropertyVS:
		v = uint64(c.t.profile.version())
	case fabrics.PropertyCC:
		v = uint64(c.ctrl.config())
	case fabrics.PropertyCSTS:
		v = uint64(c.ctrl.status())
	case fabrics.PropertyCRTO:
		v = c.t.profile.timeout()
	default:
		return c.badProperty()
	}
	cmd.dw0, cmd.dw1 = uint32(v), uint32(v>>32)
	return 0
}

func (c *Conn) propertySet(cmd *command) nvme.Status {
	var set fabrics.PropertySet
	if err := set.DecodeSQE(&cmd.sqe); err != nil {
		c.note("%v", err)
		return c.badProperty()
	}
	if set.OFST != fabrics.PropertyCC || set.Wide {
		return c.badProperty()
	}
	if cc := fabrics.CC(set.Value); uint32(cc)&0xFE00000E != 0 {
		c.note("CC %#08x has reserved bits set", uint32(cc))
	}
	dropped := c.ctrl.configure(fabrics.CC(set.Value))
	for _, q := range dropped {
		q.Close()
	}
	if len(dropped) > 0 || !c.ctrl.config().EN() {
		c.dropAERs()
	}
	return 0
}

func (ctrl *controller) config() fabrics.CC {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	return ctrl.cc
}

// configure writes CC. It returns the I/O queues whose connections end with that.
func (ctrl *controller) configure(cc fabrics.CC) (dropped []*Conn) {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	old := ctrl.cc
	ctrl.cc = cc
	mode := ctrl.t.profile.Mode
	switch {
	case cc.EN() && !old.EN():
		ctrl.enabledAt = time.Now()
		ctrl.csts = ctrl.csts.WithSHST(fabrics.SHSTNormal)
		entries := ctrl.sub.discovery || cc.IOSQES() == 6 && cc.IOCQES() == 4
		if !entries || cc.MPS() != 0 || cc.AMS() != 0 || cc.CSS() != fabrics.CCCSSNVM && cc.CSS() != fabrics.CCCSSAll {
			ctrl.csts |= fabrics.CSTSFatal
		}
	case !cc.EN() && old.EN():
		ctrl.csts = 0
		ctrl.isReady.Store(false)
		if mode != ModeNVMET { // whose I/O queues stay, but answer Command Sequence Error
			dropped = ctrl.queueList(1)
		}
	}
	if cc.SHN() != fabrics.SHNNone && old.SHN() == fabrics.SHNNone {
		switch mode {
		case ModeNVMET:
			ctrl.cc = 0
			ctrl.csts = fabrics.CSTS(0).WithSHST(fabrics.SHSTComplete)
			ctrl.isReady.Store(false)
		case ModeSPDK:
			ctrl.csts = ctrl.csts.WithSHST(fabrics.SHSTComplete)
			dropped = ctrl.queueList(1)
		default:
			ctrl.csts = ctrl.csts.WithSHST(fabrics.SHSTInProgress)
			dropped = ctrl.queueList(1)
		}
	}
	ctrl.settle()
	return dropped
}

// settle brings RDY up to date.
func (ctrl *controller) settle() {
	f := &ctrl.t.faults.Load().Controller
	delay := f.ReadyDelay
	if delay == 0 && ctrl.t.profile.Mode == ModeStrict {
		delay = readyDelay
	}
	if ctrl.cc.EN() && !ctrl.csts.CFS() && !f.NeverReady && time.Since(ctrl.enabledAt) >= delay {
		ctrl.csts |= fabrics.CSTSReady
		ctrl.isReady.Store(true)
	}
}

// status reads CSTS.
func (ctrl *controller) status() fabrics.CSTS {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	f := &ctrl.t.faults.Load().Controller
	ctrl.settle()
	csts := ctrl.csts
	if csts.SHST() == fabrics.SHSTInProgress {
		ctrl.csts = csts.WithSHST(fabrics.SHSTComplete) // the next time
	}
	if f.NeverShutdown && csts.SHST() != fabrics.SHSTNormal {
		csts = csts.WithSHST(fabrics.SHSTInProgress)
	}
	if f.Fatal {
		csts |= fabrics.CSTSFatal
	}
	return csts
}
