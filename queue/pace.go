package queue

import "time"

// pace learns how long data takes to come, so that a queue looks when a good part of it is there, and not all the
// time: each look is a system call, and small slices make small batches, at the controller, too. It only knows whether
// a rest was long enough.
type pace struct {
	perByte float64 // of rest, in nanoseconds
	wanted  int     // what the last rest was for; 0: there was none since got
	payload uint64  // bytes that had come at the last look
	trial
}

const (
	// A rest is for this part of what is outstanding: the controller is busy with the others meanwhile.
	restPart = 6
	// restMost bounds a long rest, and restEach does for each outstanding command.
	restMost = 32 * time.Microsecond
	restEach = 3 * time.Microsecond
	// restShort halves the system calls, and what has come is still in the cache.
	restShort = 3 * time.Microsecond
	// restFor is how many bytes at most are waited for: what one receive takes.
	restFor = readBuffer - scatterTail
	// restAbove is how many outstanding commands let the queue rest. With fewer the controller waits for the host,
	// and copying one half of a payload while the other comes is worth more than system calls.
	restAbove = 2

	perByteLeast, perByteStart, perByteMost = 0.001, 0.03, 0.25
	// Four rests of five should be long enough.
	longer, shorter = 1 + 1.0/8, 1 - 1.0/32
)

// got tells what came after a rest, and whether that was all that could be received.
func (p *pace) got(n int, full bool) {
	switch {
	case p.wanted == 0:
		return
	case n >= p.wanted || full:
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

// pause returns how long to rest before the next look, after one that found nothing or not all that is outstanding.
func (e *engine) pause(nothing, sleeps bool) time.Duration {
	got := e.stats.Placed + e.stats.Copied
	// Callers that wait for small reads have theirs at once. And if nothing came, the controller may wait for a disk.
	flows := e.rx.placing() || len(e.feeds) > 0 && got != e.pace.payload
	e.pace.payload = got
	// Large payloads that come in no order are received one by one, and each wait would be for one only.
	large := e.rx.placing() || e.oldest != nil && e.oldest.length > aheadAbove
	want := (e.awaited + e.rx.left) / restPart
	if flows && !(large && e.rx.inOrder < inOrderFor) && want > 0 && e.used() > restAbove {
		cost := trialCost
		if sleeps {
			cost = trialCostSleeps
		}
		switch l := e.pace.rests(e.now, got, cost); {
		case l == longRests:
			return e.pace.rest(want, e.used())
		case l == shortRests && large:
			return restShort
		}
	}
	switch {
	case sleeps && e.rx.placing():
		return moreComing
	case nothing:
		return lookEvery
	}
	return 0
}
