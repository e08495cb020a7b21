package nvmetest

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// controller is one association with a host.
type controller struct {
	t       *Target
	sub     *subsystem
	cntlid  uint16
	hostNQN string
	hostID  fabrics.HostID

	traffic atomic.Bool // a command came since the keep alive timer looked
	isReady atomic.Bool

	mu        sync.Mutex
	gone      bool
	queues    map[uint16]*Conn
	cc        fabrics.CC
	csts      fabrics.CSTS
	enabledAt time.Time
	granted   int // I/O queues that Number of Queues gave; 0 = not asked
	kato      time.Duration
	timer     *time.Timer
	events    events
	features  map[nvme.FID]uint32
	behavior  nvme.HostBehavior
}

// discoveryKATO is how long a discovery controller without KATO lives without a command.
const discoveryKATO = 120 * time.Second

// setKATO sets the keep alive timeout, rounded as the mode does.
func (ctrl *controller) setKATO(ms uint32) {
	unit := time.Duration(ctrl.t.profile.kas) * 100 * time.Millisecond
	d := time.Duration(ms) * time.Millisecond
	d = (d + unit - 1) / unit * unit
	if d == 0 && ctrl.sub.discovery {
		d = discoveryKATO
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	ctrl.kato = d
	if ctrl.timer != nil {
		ctrl.timer.Stop()
	}
	if d > 0 && !ctrl.gone {
		ctrl.timer = time.AfterFunc(d, ctrl.tick)
	}
}

// keepAlive restarts the keep alive timer.
func (ctrl *controller) keepAlive() {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	if ctrl.timer != nil && !ctrl.gone {
		ctrl.timer.Reset(ctrl.kato)
	}
}

// tick runs when no Keep Alive came in time.
func (ctrl *controller) tick() {
	if ctrl.traffic.Swap(false) {
		ctrl.keepAlive()
		return
	}
	ctrl.mu.Lock()
	gone := ctrl.gone
	ctrl.mu.Unlock()
	if gone {
		return
	}
	ctrl.t.log.Info("nvmetest: keep alive timeout", "cntlid", ctrl.cntlid, "host", ctrl.hostNQN)
	ctrl.t.mu.Lock()
	ctrl.t.expired++
	ctrl.t.mu.Unlock()
	ctrl.destroy()
}

// ready reports CSTS.RDY.
func (ctrl *controller) ready() bool {
	if ctrl.isReady.Load() {
		return true
	}
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	ctrl.settle()
	return ctrl.isReady.Load()
}

// fail is the controller's fatal error, which c met.
func (ctrl *controller) fail(c *Conn) {
	ctrl.mu.Lock()
	ctrl.csts |= fabrics.CSTSFatal
	for qid, q := range ctrl.queues {
		if q == c {
			delete(ctrl.queues, qid) // it ends by itself
		}
	}
	ctrl.mu.Unlock()
	ctrl.destroy()
}

// lost takes a queue whose connection ended out of the controller. clean means that the host closed
// it.
func (ctrl *controller) lost(c *Conn, qid int, clean bool) {
	ctrl.mu.Lock()
	if ctrl.queues[uint16(qid)] == c {
		delete(ctrl.queues, uint16(qid))
	}
	ctrl.mu.Unlock()
	if qid == 0 || ctrl.t.profile.wholeCtrl && !clean {
		ctrl.destroy()
	}
}

// destroy ends the association: all of its connections.
func (ctrl *controller) destroy() {
	ctrl.mu.Lock()
	ctrl.gone = true
	if ctrl.timer != nil {
		ctrl.timer.Stop()
	}
	queues := ctrl.queueList(0)
	ctrl.mu.Unlock()
	ctrl.sub.mu.Lock()
	if ctrl.sub.controllers[ctrl.cntlid] == ctrl {
		delete(ctrl.sub.controllers, ctrl.cntlid)
	}
	ctrl.sub.mu.Unlock()
	for _, c := range queues {
		c.Close()
	}
}

// queueList returns the connections of queues from a QID on.
func (ctrl *controller) queueList(from uint16) []*Conn {
	var list []*Conn
	for qid, c := range ctrl.queues {
		if qid >= from {
			list = append(list, c)
		}
	}
	return list
}

func (ctrl *controller) queue(qid uint16) *Conn {
	ctrl.mu.Lock()
	defer ctrl.mu.Unlock()
	return ctrl.queues[qid]
}
