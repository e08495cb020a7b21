package nvmetest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

// Target is a running target. Its methods may be called at any time from any goroutine.
type Target struct {
	config  Config
	profile profile
	log     *slog.Logger
	pool    buffers
	faults  atomic.Pointer[activeFaults]
	genctr  atomic.Uint64 // of the discovery log
	procs   int           // GOMAXPROCS
	ioConns atomic.Int32  // connections that are I/O queues
	done    chan struct{}
	tasks   sync.WaitGroup

	mu         sync.Mutex
	closed     bool
	ports      []*port
	conns      map[*Conn]struct{}
	subsystems map[string]*subsystem // the discovery subsystem too
	order      []*subsystem          // as configured, without the discovery subsystem
	past       counters              // of connections that ended
	accepted   int
	expired    int
	violations []string
	termReqs   []HostTermReq
}

// acceptPause is how long accepting rests after an error, as for want of file descriptors.
const acceptPause = 10 * time.Millisecond

// port is one address that the target listens on.
type port struct {
	id uint16 // PORTID
	l  net.Listener
}

// Start starts a target. Close it when done.
func Start(config Config) (*Target, error) {
	if len(config.Subsystems) == 0 {
		config.Subsystems = []Subsystem{{
			NQN:        DefaultNQN,
			Namespaces: []Namespace{{Backend: Memory(64 << 20)}},
		}}
	}
	if err := config.check(); err != nil {
		return nil, err
	}
	t := &Target{
		config: config, profile: config.profile(), log: config.Logger, procs: runtime.GOMAXPROCS(0),
		done: make(chan struct{}), conns: map[*Conn]struct{}{}, subsystems: map[string]*subsystem{},
	}
	if t.log == nil {
		t.log = slog.New(slog.DiscardHandler)
	}
	t.genctr.Store(1)
	t.faults.Store(newFaults(Faults{}))
	for i := range config.Subsystems {
		s, err := newSubsystem(t, &config.Subsystems[i])
		if err != nil {
			return nil, err
		}
		if t.subsystems[s.nqn] != nil {
			return nil, fmt.Errorf("nvmetest: two subsystems have the NQN %s", s.nqn)
		}
		t.subsystems[s.nqn] = s
		t.order = append(t.order, s)
	}
	t.subsystems[fabrics.DiscoveryNQN] = newDiscovery(t)
	addr := config.Addr
	if addr == "" {
		addr = "127.0.0.1:0"
	}
	if _, err := t.Listen(addr); err != nil {
		return nil, err
	}
	return t, nil
}

// Listen makes the target listen on one more address, host:port, and returns the address with the
// port that it got. The discovery log then shows every subsystem there too.
func (t *Target) Listen(addr string) (string, error) {
	l, err := (&net.ListenConfig{}).Listen(context.Background(), "tcp", addr)
	if err != nil {
		return "", fmt.Errorf("nvmetest: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		_ = l.Close()
		return "", net.ErrClosed
	}
	p := &port{id: uint16(len(t.ports) + 1), l: l}
	t.ports = append(t.ports, p)
	t.tasks.Go(func() { t.accept(p) })
	if len(t.ports) > 1 {
		t.tasks.Go(t.changeDiscovery)
	}
	return l.Addr().String(), nil
}

// Addr returns the first address that the target listens on, host:port.
func (t *Target) Addr() string { return t.Addrs()[0] }

// Addrs returns all addresses that the target listens on.
func (t *Target) Addrs() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s []string
	for _, p := range t.ports {
		s = append(s, p.l.Addr().String())
	}
	return s
}

// NQN returns the NQN of the first subsystem.
func (t *Target) NQN() string { return t.order[0].nqn }

// SetFaults makes the target do wrong what f says, from now on, in place of what it was told before.
// Counters of rules start anew.
func (t *Target) SetFaults(f Faults) { t.faults.Store(newFaults(f)) }

// Faults returns what the target does wrong.
func (t *Target) Faults() Faults { return t.faults.Load().Faults }

// Conns returns the connections that are open, in no order.
func (t *Target) Conns() []*Conn {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.connList()
}

// CloseConnections ends every connection that is open, as if the target had vanished. It goes on
// taking new ones.
func (t *Target) CloseConnections() {
	for _, c := range t.Conns() {
		c.Close()
	}
}

func (t *Target) connList() []*Conn {
	list := make([]*Conn, 0, len(t.conns))
	for c := range t.conns {
		list = append(list, c)
	}
	return list
}

func (t *Target) subsystemList() []*subsystem {
	list := make([]*subsystem, 0, len(t.subsystems))
	for _, s := range t.subsystems {
		list = append(list, s)
	}
	return list
}

// Close ends all connections and waits until nothing of the target runs.
func (t *Target) Close() error {
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		t.tasks.Wait()
		return nil
	}
	t.closed = true
	close(t.done)
	ports, conns := t.ports, t.connList()
	t.mu.Unlock()
	var err error
	for _, p := range ports {
		err = errors.Join(err, p.l.Close())
	}
	for _, c := range conns {
		c.Close()
	}
	t.tasks.Wait()
	return err
}

// accept takes connections of one port until that is closed.
func (t *Target) accept(p *port) {
	for {
		nc, err := p.l.Accept()
		if err != nil {
			if !errors.Is(err, net.ErrClosed) {
				t.log.Warn("nvmetest: accept", "addr", p.l.Addr(), "err", err)
			}
			select {
			case <-t.done:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) || !t.sleep(acceptPause) {
				return
			}
			continue
		}
		t.begin(p, nc)
	}
}

// begin serves a new connection.
func (t *Target) begin(p *port, nc net.Conn) {
	f := t.faults.Load()
	c := newConn(t, p, nc)
	if f.Conn.Refuse {
		c.Reset()
		return
	}
	c.setWire(&f.Conn, f.nextConn())
	t.mu.Lock()
	if t.closed {
		t.mu.Unlock()
		c.Close()
		return
	}
	t.accepted++
	t.conns[c] = struct{}{}
	t.tasks.Go(func() {
		if f.OnConn != nil {
			f.OnConn(c)
		}
		c.serve()
	})
	t.mu.Unlock()
}

// forget takes a connection that ended out of the target.
func (t *Target) forget(c *Conn) {
	c.mu.Lock()
	count := c.count
	c.mu.Unlock()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.past.add(&count)
	delete(t.conns, c)
}

// addrFields returns the discovery log's form of an address.
func addrFields(addr net.Addr) (fam fabrics.ADRFAM, traddr, trsvcid string) {
	ap, err := netip.ParseAddrPort(addr.String())
	if err != nil {
		return fabrics.ADRFAMIPv4, addr.String(), ""
	}
	fam = fabrics.ADRFAMIPv4
	if ap.Addr().Unmap().Is6() {
		fam = fabrics.ADRFAMIPv6
	}
	return fam, ap.Addr().Unmap().String(), fmt.Sprint(ap.Port())
}
