package queue

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trialFlow looks every 10 µs at data that comes at 10 bytes per nanosecond times what rate says, in lumps of half a
// millisecond.
type trialFlow struct {
	trial
	now   int64
	bytes float64 // those that have come, and
	lump  float64 // those that are to come together
	cost  float64
	rate  func(long bool) float64
}

// run passes some time, and returns the share of it that had long rests.
func (f *trialFlow) run(d time.Duration) float64 {
	const step = 10 * time.Microsecond
	var long, all float64
	for end := f.now + int64(d); f.now < end; f.now += int64(step) {
		l := f.long(f.now, uint64(f.bytes), f.cost)
		f.lump += 10 * float64(step) * f.rate(l)
		if f.now/int64(step)%50 == 0 {
			f.bytes, f.lump = f.bytes+f.lump, 0
		}
		all++
		if l {
			long++
		}
	}
	return long / all
}

func longRests(relative float64) func(bool) float64 {
	return func(long bool) float64 {
		if long {
			return relative
		}
		return 1
	}
}

func TestTrial(t *testing.T) {
	for _, c := range []struct {
		name           string
		relative, cost float64
		long           bool
	}{
		{"they cost a fifth", 0.8, trialCost, false},
		{"they cost a little", 0.98, trialCost, true},
		{"they cost too much", 0.95, trialCost, false},
		{"a queue that sleeps is to make few calls", 0.8, trialCostSleeps, true},
		{"though not at any price", 0.7, trialCostSleeps, false},
		{"they gain", 1.1, trialCost, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := &trialFlow{now: 1 << 50, cost: c.cost, rate: longRests(c.relative)}
			f.run(30 * time.Millisecond)
			require.Equal(t, settled, f.phase, "soon")
			share := f.run(5 * time.Second)
			if c.long {
				share = 1 - share
			}
			require.Less(t, share, 0.015, "of the time for the worse kind")
			require.Positive(t, share, "what is better may change")
		})
	}
}

// The system call that is cheap now may be dear in a minute.
func TestTrialChanges(t *testing.T) {
	f := &trialFlow{now: 1 << 50, cost: trialCost}
	for range 3 {
		f.rate = longRests(0.9)
		f.run(5 * time.Second)
		require.Less(t, f.run(5*time.Second), 0.015)
		f.rate = longRests(1.1)
		f.run(5 * time.Second)
		require.Greater(t, f.run(5*time.Second), 0.985)
	}
}

// A flow that becomes faster by itself, as TCP does at first, favours neither.
func TestTrialStart(t *testing.T) {
	f := &trialFlow{now: 1 << 50, cost: trialCost}
	start := f.now
	f.rate = func(long bool) float64 {
		grown := min(1, 0.5+0.5*float64(f.now-start)/float64(60*time.Millisecond))
		return grown * longRests(0.9)(long)
	}
	f.run(100 * time.Millisecond)
	require.Equal(t, settled, f.phase)
	require.Positive(t, f.score, "long ones are worse")
}

// Time in which nothing flows belongs to neither kind.
func TestTrialGaps(t *testing.T) {
	f := &trialFlow{now: 1 << 50, cost: trialCost, rate: longRests(0.9)}
	for i := range 60 {
		f.run(1500 * time.Microsecond)
		f.now += int64(time.Duration(i%7) * 10 * time.Millisecond)
	}
	require.Equal(t, trialSure-1, f.score)
	f.rate = longRests(1.1)
	for i := range 2000 {
		f.run(1500 * time.Microsecond)
		f.now += int64(time.Duration(i%7) * 10 * time.Millisecond)
	}
	require.Equal(t, 1-trialSure, f.score)
}
