package queue

import "time"

// trial finds out which rests cost no throughput: now and then the queue takes the best length so far and another by
// turns, until it is clear which is better. What rests cost or gain follows from the controller's latency, the sender's
// pacing and the price of a system call, none of which a queue knows.
type trial struct {
	best    restLength // short ones to begin with
	other   restLength // is tried against the best
	present restLength
	running bool
	score   [3]int // of each pair: epochs in which the longer rests cost too much, less those in which they did not

	begun int64 // when this trial began
	next  int64 // when the next one is to
	since int64 // when the epoch began, and
	from  uint64
	seen  int64 // when the last look was, and
	had   uint64
	rate  [3]float64 // in the last epochs of this trial, by length, in bytes per nanosecond
}

// restLength is how long a queue rests when it has to wait for data. The sum of all is 0.
type restLength int

const (
	noRests    restLength = iota - 1
	shortRests            // restShort
	longRests             // until a good part of what is outstanding is there
)

const (
	// An epoch should be longer than what is outstanding takes.
	trialEpoch = 4 * time.Millisecond
	// Between looks further apart than that the flow stood still, or somebody else had the CPU: neither this time
	// nor what has come in it counts.
	trialGap = time.Millisecond
	// trialSure is by how many epochs one of two has to be the better one; later one more will do. So the worse one
	// gets some 12 ms first, and 1 % of the time then.
	trialSure  = 4
	trialEvery = 500 * time.Millisecond
	// The longer rests may cost so much for what they save in system calls, and more if the queue is to spare them.
	trialCost, trialCostSleeps = 1.05, 1.33
)

// rests returns how long to rest after this look. bytes is how many have come since the queue began.
func (t *trial) rests(now int64, bytes uint64, cost float64) restLength {
	if gap := now - t.seen; gap > int64(trialGap) {
		t.since += gap
		t.from += bytes - t.had
	}
	t.seen, t.had = now, bytes
	switch {
	case !t.running && now < t.next:
		return t.best
	case !t.running:
		if t.other == t.best { // the first time
			t.other = longRests
		}
		t.running, t.begun, t.rate = true, now, [3]float64{}
		t.epoch(t.best, now, bytes)
	case now-t.since >= int64(trialEpoch):
		t.rate[t.present-noRests] = float64(bytes-t.from) / float64(now-t.since)
		next := t.best + t.other - t.present
		t.judge(now, cost)
		t.epoch(next, now, bytes)
	case now-t.begun > int64(trialEvery): // there is too little to go by
		t.end(now, false)
	}
	if !t.running {
		return t.best
	}
	return t.present
}

func (t *trial) epoch(l restLength, now int64, bytes uint64) {
	t.present, t.since, t.from = l, now, bytes
}

// judge compares an epoch with the one before. What becomes faster or slower by itself favours them by turns.
func (t *trial) judge(now int64, cost float64) {
	short, long := min(t.best, t.other), max(t.best, t.other)
	score := t.scoreOf(short, long)
	switch shorter, longer := t.rate[short-noRests], t.rate[long-noRests]; {
	case shorter == 0 || longer == 0: // it was the first one
		return
	case shorter > longer*cost:
		*score++
	default:
		*score--
	}
	if *score != trialSure && *score != -trialSure {
		return
	}
	was, loser := t.best, short
	if t.best = long; *score > 0 {
		t.best, loser = short, long
	}
	*score -= *score / trialSure
	t.other = -(t.best + loser)
	t.end(now, t.best != was || *t.scoreOf(t.best, t.other) == 0)
}

func (t *trial) scoreOf(a, b restLength) *int { return &t.score[a+b+1] }

// end is followed by the next trial after a while, or at once if there is news.
func (t *trial) end(now int64, news bool) {
	t.running, t.next = false, now
	if !news {
		t.next += int64(trialEvery)
	}
}
