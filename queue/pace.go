package queue

import "time"

// pace learns how long large payloads take to come, so that a queue looks for one about when it is there, and not
// all the time: each look is a system call, and takes a small slice. It only knows whether a rest was long enough.
type pace struct {
	perByte float64 // of rest, in nanoseconds
	wanted  int     // what the last rest was for; 0: there was none since got
	placed  uint64  // Stats.Placed at the last look
}

const (
	// restMost bounds what a rest may add to anybody's latency, and restEach does for each outstanding command.
	restMost = 32 * time.Microsecond
	restEach = 2 * time.Microsecond
	// restFor is how many bytes at most are waited for: more leave the cache before they are copied.
	restFor = 256 << 10
	// restAbove is how many outstanding commands let the queue rest for the first of them. With fewer the controller
	// waits for the host, and copying one half of a payload while the other comes is worth more than system calls.
	restAbove = 2

	perByteLeast, perByteStart, perByteMost = 0.001, 0.03, 0.25
	// Four rests of five should be long enough.
	longer, shorter = 1 + 1.0/8, 1 - 1.0/32
)

// got tells what came after a rest.
func (p *pace) got(n int) {
	switch {
	case p.wanted == 0:
		return
	case n >= p.wanted:
		p.perByte = max(p.perByte*shorter, perByteLeast)
	default:
		p.perByte = min(p.perByte*longer, perByteMost)
	}
	p.wanted = 0
}

// rest returns how long to rest for n bytes that are on their way, with so many commands outstanding.
func (p *pace) rest(n, outstanding int) time.Duration {
	if p.perByte == 0 {
		p.perByte = perByteStart
	}
	p.wanted = min(n, restFor)
	return min(max(lookEvery, time.Duration(float64(p.wanted)*p.perByte)), restMost, time.Duration(outstanding)*restEach)
}

// restForPayload rests while a large payload is on its way, after a look that found nothing or not all of it.
func (e *engine) restForPayload(nothing, sleeps bool) {
	flows := e.stats.Placed != e.pace.placed
	e.pace.placed = e.stats.Placed
	want := e.rx.left
	if !e.rx.placing() {
		want = 0
		if flows { // the next one follows, it need not wait for a disk
			want = e.rx.foreseen(&e.slots)
		}
	}
	switch {
	case want == 0:
	case e.used() > restAbove:
		rest(e.pace.rest(want, e.used()))
	case sleeps:
		rest(moreComing)
	case nothing:
		rest(lookEvery)
	}
}
