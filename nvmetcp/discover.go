package nvmetcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

const (
	maxDiscoveryEntries = 16384    // NUMREC that is believed
	maxDiscoveryReads   = 10       // tries to read a log that keeps changing; nvme-cli has the same
	discoveryChunk      = 64 << 10 // bytes of one Get Log Page
	maxReferralDepth    = 8        // referrals of referrals of …
	maxReferrals        = 64       // discovery controllers that one DiscoverAll reads
)

// DiscoveryLog is what a discovery controller knows: the ways to subsystems that this host may use.
type DiscoveryLog struct {
	Addr    string                   // of the controller, host:port
	GENCTR  uint64                   // generation counter of the log
	Entries []fabrics.DiscoveryEntry // in the controller's order, referrals and the entry of itself included
}

// Discover reads the discovery log at an address, once, with a connection that lasts as long as that
// takes. The port defaults to 8009, the NQN to the well-known one; of opts the timeouts, digests and
// the driver apply. Which entries there are depends on the host's NQN.
func (h Host) Discover(ctx context.Context, t Target, opts *Options) (*DiscoveryLog, error) {
	d, err := h.discoverer(opts)
	if err != nil {
		return nil, err
	}
	return d.read(ctx, t)
}

// DiscoverAll is Discover that follows referrals to other discovery controllers, each once, and
// returns the entries of all of them without duplicates. When a referral cannot be followed the
// entries come with an error that says why.
func (h Host) DiscoverAll(ctx context.Context, t Target, opts *Options) ([]fabrics.DiscoveryEntry, error) {
	d, err := h.discoverer(opts)
	if err != nil {
		return nil, err
	}
	log, err := d.read(ctx, t)
	if err != nil {
		return nil, err
	}
	if t.NQN == "" {
		t.NQN = fabrics.DiscoveryNQN
	}
	w := walk{d: d, visited: map[place]bool{placeOf(log.Addr, t.NQN): true}, seen: map[entryKey]bool{}}
	w.take(ctx, t, log, 0)
	return w.entries, w.err
}

// TargetOf returns the target that a discovery entry leads to. Entries of other transports than TCP are
// an error.
func TargetOf(e *fabrics.DiscoveryEntry) (Target, error) {
	if e.TRTYPE != fabrics.TRTYPETCP {
		return Target{}, fmt.Errorf("nvmetcp: discovery entry for %q is for transport %v, not tcp", e.SubNQN, e.TRTYPE)
	}
	port := e.TRSVCID
	if port == "" {
		port = DefaultPort
		if e.SUBTYPE != fabrics.SUBTYPENVM {
			port = DefaultDiscoveryPort
		}
	}
	return Target{Addr: net.JoinHostPort(e.TRADDR, port), NQN: e.SubNQN}, nil
}

// discoverer reads discovery logs for a host.
type discoverer struct {
	id   identity
	opts Options
}

func (h Host) discoverer(opts *Options) (*discoverer, error) {
	o, err := opts.resolve()
	if err != nil {
		return nil, err
	}
	id, err := h.identity(systemDir, userDir)
	return &discoverer{id, o}, err
}

// read connects to a discovery controller without keep alive, reads its log, and leaves.
func (d *discoverer) read(ctx context.Context, t Target) (*DiscoveryLog, error) {
	if t.NQN == "" {
		t.NQN = fabrics.DiscoveryNQN
	}
	var err error
	if t.Addr, err = withPort(t.Addr, DefaultDiscoveryPort); err != nil {
		return nil, err
	}
	var log *DiscoveryLog
	err = again(ctx, &d.opts, t, func() error {
		c := newController(d.id, t, &d.opts, 0)
		c.discovery = true
		defer c.abandon()
		if err := c.enable(ctx); err != nil {
			return err
		}
		log, err = c.discoveryLog(ctx)
		return err
	})
	return log, err
}

// discoveryLog reads the log until it has not changed meanwhile.
func (c *controller) discoveryLog(ctx context.Context) (*DiscoveryLog, error) {
	const op = "read discovery log"
	for range maxDiscoveryReads {
		log, err := c.readDiscoveryLog(ctx, op)
		switch {
		case errors.Is(err, fabrics.StatusDiscoverRestart):
		case err != nil:
			return nil, c.wrap(op, 0, err)
		case log != nil:
			return log, nil
		}
	}
	return nil, c.wrap(op, 0, fmt.Errorf("%w: the log changed each of the %d times that it was read; try again", ErrController, maxDiscoveryReads))
}

// readDiscoveryLog reads header, entries, and the header again. It returns nil when the generation is
// not the same in both.
func (c *controller) readDiscoveryLog(ctx context.Context, op string) (*DiscoveryLog, error) {
	var before, after fabrics.DiscoveryHeader
	if err := c.discoveryHeader(ctx, op, &before, true); err != nil {
		return nil, err
	}
	total, err := before.LogBytes(maxDiscoveryEntries)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrController, err)
	}
	log := &DiscoveryLog{Addr: c.addr, GENCTR: before.GENCTR}
	chunk := discoveryChunk
	if mdts := c.identify.MaxTransfer(); mdts != 0 {
		chunk = int(min(uint64(chunk), mdts))
	}
	buf := make([]byte, min(chunk, total))
	for off := fabrics.DiscoveryHeaderLen; off < total; {
		b := buf[:min(len(buf), total-off)]
		if err := c.getLog(ctx, op, uint64(off), b, true); err != nil {
			return nil, err
		}
		off += len(b)
		for ; len(b) > 0; b = b[fabrics.DiscoveryEntryLen:] {
			var e fabrics.DiscoveryEntry
			if err := e.Decode(b); err != nil {
				return nil, fmt.Errorf("%w: entry %d: %w", ErrController, len(log.Entries), err)
			}
			log.Entries = append(log.Entries, e)
		}
	}
	// The last read is the one that re-arms the controller's event.
	if err := c.discoveryHeader(ctx, op, &after, false); err != nil {
		return nil, err
	}
	if before.GENCTR != after.GENCTR || before.NUMREC != after.NUMREC {
		return nil, nil
	}
	return log, nil
}

func (c *controller) discoveryHeader(ctx context.Context, op string, h *fabrics.DiscoveryHeader, rae bool) error {
	var b [fabrics.DiscoveryHeaderLen]byte
	if err := c.getLog(ctx, op, 0, b[:], rae); err != nil {
		return err
	}
	return h.Decode(b[:])
}

func (c *controller) getLog(ctx context.Context, op string, off uint64, b []byte, rae bool) error {
	_, err := c.do(ctx, op, nvme.GetLogPage(0, nvme.LIDDiscovery, uint32(len(b)/4), off, rae), b)
	return err
}

// walk follows referrals.
type walk struct {
	d       *discoverer
	visited map[place]bool
	seen    map[entryKey]bool
	entries []fabrics.DiscoveryEntry
	err     error
}

// place is a discovery subsystem, with addresses that compare equal when they are the same.
type place struct {
	ip         netip.Addr // not valid when the address is a name
	name, port string
	nqn        string
}

func placeOf(addr, nqn string) place {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return place{name: addr, nqn: nqn}
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return place{ip: ip.Unmap(), port: port, nqn: nqn}
	}
	return place{name: strings.ToLower(host), port: port, nqn: nqn}
}

type entryKey struct {
	place
	trtype  fabrics.TRTYPE
	subtype fabrics.SUBTYPE
}

// take keeps the entries of a log that are new, and reads the logs that they refer to.
func (w *walk) take(ctx context.Context, t Target, log *DiscoveryLog, depth int) {
	var referrals []Target
	for _, e := range log.Entries {
		k := entryKey{placeOf(net.JoinHostPort(e.TRADDR, e.TRSVCID), e.SubNQN), e.TRTYPE, e.SUBTYPE}
		if w.seen[k] {
			continue
		}
		w.seen[k] = true
		w.entries = append(w.entries, e)
		if e.SUBTYPE != fabrics.SUBTYPEReferral || e.TRTYPE != fabrics.TRTYPETCP {
			continue
		}
		next, err := TargetOf(&e)
		if err != nil {
			w.fail(err)
			continue
		}
		next.HostTraddr, next.HostIface = t.HostTraddr, t.HostIface
		referrals = append(referrals, next)
	}
	for _, next := range referrals {
		w.follow(ctx, next, depth+1)
	}
}

// follow reads the log at t, unless that has been done.
func (w *walk) follow(ctx context.Context, t Target, depth int) {
	p := placeOf(t.Addr, t.NQN)
	switch {
	case w.visited[p]:
		return
	case depth > maxReferralDepth:
		w.fail(fmt.Errorf("nvmetcp: referral to %s not followed: more than %d referrals deep", t.Addr, maxReferralDepth))
		return
	case len(w.visited) >= maxReferrals:
		w.fail(fmt.Errorf("nvmetcp: referral to %s not followed: already %d discovery controllers", t.Addr, maxReferrals))
		return
	}
	w.visited[p] = true
	log, err := w.d.read(ctx, t)
	if err != nil {
		w.fail(err)
		return
	}
	w.take(ctx, t, log, depth)
}

func (w *walk) fail(err error) {
	if w.err == nil {
		w.err = err
	} else {
		w.err = fmt.Errorf("%w; %w", w.err, err)
	}
}
