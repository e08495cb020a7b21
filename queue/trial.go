package queue

import "time"

// trial finds out whether long rests cost throughput: the queue runs with short and with long ones by turns, until it
// is clear which are better, and after a while again. What rests cost or gain follows from the controller's latency,
// the sender's pacing and the price of a system call, none of which a queue knows.
type trial struct {
	phase trialPhase
	score int   // epochs in which long rests cost too much, less those in which they did not
	seen  int64 // when the last look was
	since int64 // when the epoch began
	next  int64 // when to try again
	bytes uint64
	rate  [tryLong + 1]float64 // in the last epochs of this trial, in bytes per nanosecond
}

type trialPhase uint8

const (
	settled trialPhase = iota
	tryShort
	tryLong
)

const (
	// An epoch is many times as long as what is outstanding takes.
	trialEpoch = 4 * time.Millisecond
	// Between looks further apart than that the flow stood still, or somebody else had the CPU: it does not count.
	trialGap = time.Millisecond
	// trialSure is by how many epochs one kind has to be the better one; later one more will do. So the worse kind
	// gets some 12 ms first, and 1 % of the time then.
	trialSure  = 4
	trialEvery = 500 * time.Millisecond
	// Long rests may cost so much for what they save in system calls, and more if the queue is to spare them.
	trialCost, trialCostSleeps = 1.03, 1.33
)

// long tells whether the rest after this look may be a long one. bytes is how many have come since the queue began.
func (t *trial) long(now int64, bytes uint64, cost float64) bool {
	if gap := now - t.seen; gap > int64(trialGap) {
		t.since += gap
	}
	t.seen = now
	switch {
	case t.phase == settled && now >= t.next:
		t.rate = [tryLong + 1]float64{}
		t.begin(tryShort, now, bytes)
	case t.phase != settled && now-t.since >= int64(trialEpoch):
		t.rate[t.phase] = float64(bytes-t.bytes) / float64(now-t.since)
		t.judge(cost)
		t.begin(tryShort+tryLong-t.phase, now, bytes)
		if t.score == trialSure || t.score == -trialSure {
			t.score -= t.score / trialSure
			t.phase, t.next = settled, now+int64(trialEvery)
		}
	}
	return t.phase == tryLong || t.phase == settled && t.score < 0
}

// judge compares an epoch with the one before. What becomes faster or slower by itself favours them by turns.
func (t *trial) judge(cost float64) {
	switch short, long := t.rate[tryShort], t.rate[tryLong]; {
	case long == 0: // it was the first one
	case short > long*cost:
		t.score++
	default:
		t.score--
	}
}

func (t *trial) begin(p trialPhase, now int64, bytes uint64) {
	t.phase, t.since, t.bytes = p, now, bytes
}
