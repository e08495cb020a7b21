package nvmetcp

import "time"

// TCPInfo is what the kernel knows about the TCP connection of a queue (TCP_INFO). Figures that the kernel
// is too old for are 0.
type TCPInfo struct {
	QID         uint16
	LocalAddr   string        // host:port
	RemoteAddr  string        // likewise
	Congestion  string        // name of the congestion control of what is sent; for reads the target's counts
	RTT         time.Duration // smoothed round trip time, to the target's acknowledgements
	RTTVar      time.Duration // its mean deviation
	MinRTT      time.Duration // shortest seen lately
	RTO         time.Duration // until what is not acknowledged is sent again
	PMTU        int           // path MTU in bytes, as far as it is known; a path that carries less swallows packets
	SendMSS     int           // bytes in a segment that is sent
	ReceiveMSS  int           // bytes in the segments that came, an estimate
	Window      int           // congestion window in segments
	Retransmits uint64        // segments that were sent again since it connected: what is lost on the way to the target
	OutOfOrder  uint64        // segments that came out of order: what was lost on the way from the target, or overtaken
}

// TCPInfo asks the kernel about the connections: the admin queue's first, then those of the I/O queues. It
// is for people and graphs, not for hot paths: it wakes every queue, and waits for it, so it must not be
// called from a Feed's functions. Not on Linux the error wraps [errors.ErrUnsupported].
func (s *Subsystem) TCPInfo() ([]TCPInfo, error) {
	c, err := s.path()
	if err != nil {
		return nil, c.wrap("TCP info", 0, err)
	}
	var all []TCPInfo
	for _, q := range c.queues() {
		i := q.Info()
		t := TCPInfo{QID: i.QID, LocalAddr: i.LocalAddr, RemoteAddr: i.RemoteAddr}
		var asked error
		if err := q.Control(func(fd uintptr) { asked = t.ask(fd) }); err != nil {
			return nil, c.wrap("TCP info", i.QID, err)
		}
		if asked != nil {
			return nil, c.wrap("TCP info", i.QID, asked)
		}
		all = append(all, t)
	}
	return all, nil
}
