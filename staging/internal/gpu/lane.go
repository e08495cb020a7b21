package gpu

import "sync"

const (
	// fenceBytes is how much is copied before the next event. Copies smaller than this share one: an event costs more than they do.
	fenceBytes = 256 << 10
	// maxFences is the number of events of a lane. Copies behind the last one wait for one to become free before they get theirs.
	maxFences = 64
)

// lane is one stream, the copies in flight on it in their order, and the goroutine that waits for them.
type lane struct {
	d      *Device
	dir    direction
	stream handle
	events []handle

	mu      sync.Mutex
	wake    sync.Cond // for run
	flights ring[flight]
	fences  ring[fence]
	next    int   // the event to record next: events[next]
	open    int   // copies behind the last fence
	bytes   int64 // of those
	err     error // the lane takes no more copies
	closing bool

	landed []flight // of run
}

// flight is a copy in flight.
type flight struct {
	done func(error)
	mem  *Memory
	reg  *registration
	span uint64 // range of the profiler
	err  error  // it could not even be started
}

// fence is an event behind some copies.
type fence struct {
	event  handle
	copies int // since the fence before
}

func newLane(d *Device, dir direction) (*lane, error) {
	l := &lane{d: d, dir: dir}
	l.wake.L = &l.mu
	var err error
	if l.stream, err = d.drv.newStream(); err != nil {
		return nil, err
	}
	for range maxFences {
		e, err := d.drv.newEvent()
		if err != nil {
			return l, err
		}
		l.events = append(l.events, e)
	}
	return l, nil
}

// submit starts a copy, unless the lane has failed: then done is not called.
func (l *lane) submit(f flight, ptr uintptr, host []byte) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	if l.d.tracing {
		f.span = l.d.drv.rangeStart(l.dir)
	}
	// If it fails, done is called all the same when everything before it is through: nothing can be using host any more by then.
	f.err = l.d.drv.copy(l.dir, ptr, host, l.stream)
	l.flights.push(f)
	l.open++
	l.bytes += int64(len(host))
	if l.bytes >= fenceBytes || l.fences.n == 0 {
		l.fence()
	}
	l.wake.Signal()
	return nil
}

// fence records an event behind the copies that have none, if one is free. The caller holds mu.
func (l *lane) fence() {
	if l.fences.n == len(l.events) {
		return
	}
	e := l.events[l.next]
	if err := l.d.drv.record(e, l.stream); err != nil {
		l.err = err
		return
	}
	l.next = (l.next + 1) % len(l.events)
	l.fences.push(fence{e, l.open})
	l.open, l.bytes = 0, 0
}

// run lands the copies until the lane is closed and empty.
func (l *lane) run() {
	for {
		l.mu.Lock()
		for l.flights.n == 0 && !l.closing {
			l.wake.Wait()
		}
		if l.flights.n == 0 {
			l.mu.Unlock()
			return
		}
		if l.fences.n == 0 && l.err == nil {
			l.fence()
		}
		if err := l.err; err != nil {
			l.mu.Unlock()
			l.fail(err)
			continue
		}
		event := l.fences.front().event // it stays in the ring: until the wait is over nobody may record it again
		l.mu.Unlock()
		if err := l.d.drv.waitEvent(event); err != nil {
			l.fail(err)
			continue
		}
		l.mu.Lock()
		l.take(l.fences.pop().copies)
		if l.bytes >= fenceBytes {
			l.fence()
		}
		l.mu.Unlock()
		l.land(nil)
	}
}

// fail ends all copies in flight with err, and makes the device refuse others.
func (l *lane) fail(err error) {
	l.d.fail(err)
	l.mu.Lock()
	l.err = err
	l.mu.Unlock()
	// Whatever this returns, the device has stopped working on the stream by then, and done may be called.
	_ = l.d.drv.waitStream(l.stream)
	l.mu.Lock()
	l.fences = ring[fence]{}
	l.take(l.flights.n)
	l.mu.Unlock()
	l.land(err)
}

// take moves the n oldest copies from flights to landed. The caller holds mu.
func (l *lane) take(n int) {
	for range n {
		l.landed = append(l.landed, l.flights.pop())
	}
}

// land tells the owners of the landed copies.
func (l *lane) land(err error) {
	for i := range l.landed {
		f := l.landed[i]
		l.landed[i] = flight{} // for the garbage collector
		if l.d.tracing {
			l.d.drv.rangeEnd(f.span)
		}
		if f.err == nil {
			f.err = err
		}
		l.d.landed(f)
		f.done(f.err)
	}
	l.landed = l.landed[:0]
}

// close makes run return when nothing is in flight any more.
func (l *lane) close() {
	l.mu.Lock()
	l.closing = true
	l.mu.Unlock()
	l.wake.Signal()
}

// destroy gives the stream and its events back. Nothing is in flight.
func (l *lane) destroy() []error {
	var errs []error
	for _, e := range l.events {
		errs = append(errs, l.d.drv.destroyEvent(e))
	}
	return append(errs, l.d.drv.destroyStream(l.stream))
}
