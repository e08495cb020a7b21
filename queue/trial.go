package queue

import "time"

// trial finds out which rests cost no throughput: now and then the queue takes two neighbouring lengths by turns, until
// it is clear which is better. What rests cost or gain follows from the controller's latency, the sender's pacing and
// the price of a system call, none of which a queue knows.
type trial struct {
	best    restLength // so far
	pair    restLength // this one and the next are tried
	present restLength
	running bool
	score   [longRests]int // of each pair: epochs in which the longer rests cost too much, less those in which they did not

	begun int64 // when this trial began
	next  int64 // when the next one is to
	since int64 // when the epoch began, and
	from  uint64
	seen  int64 // when the last look was, and
	had   uint64
	rate  [2]float64 // in the pair's last epochs, in bytes per nanosecond
}

// restLength is how long a queue rests when it has to wait for data.
type restLength int

const (
	noRests    restLength = iota
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
	trialCost, trialCostSleeps = 1.03, 1.33
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
		t.running, t.begun, t.rate = true, now, [2]float64{}
		t.epoch(t.pair, now, bytes)
	case now-t.since >= int64(trialEpoch):
		t.rate[t.present-t.pair] = float64(bytes-t.from) / float64(now-t.since)
		t.judge(now, cost)
		t.epoch(t.pair+t.pair+1-t.present, now, bytes)
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
	shorter, longer := t.rate[0], t.rate[1]
	score := &t.score[t.pair]
	switch {
	case longer == 0: // it was the first one
		return
	case shorter > longer*cost:
		*score++
	default:
		*score--
	}
	if *score != trialSure && *score != -trialSure {
		return
	}
	was, isLonger := t.best, *score < 0
	*score -= *score / trialSure
	if t.best = t.pair; isLonger {
		t.best++
	}
	// Next is the neighbour on the other side, if there is one; at once, if there is news.
	if isLonger {
		t.pair = min(t.pair+1, longRests-1)
	} else {
		t.pair = max(t.pair-1, noRests)
	}
	t.end(now, t.best != was)
}

func (t *trial) end(now int64, again bool) {
	t.running, t.next = false, now
	if !again {
		t.next += int64(trialEvery)
	}
}
