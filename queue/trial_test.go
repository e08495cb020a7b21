package queue

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// trialFlow looks every 10 µs at data that comes at 10 bytes per nanosecond times the rate of the rests, in lumps of
// half a millisecond.
type trialFlow struct {
	trial
	now   int64
	bytes float64 // those that have come, and
	lump  float64 // those that are to come together
	cost  float64
	rates [3]float64 // by restLength
}

func newTrialFlow(no, short, long float64) *trialFlow {
	return &trialFlow{now: 1 << 50, cost: trialCost, rates: [3]float64{no, short, long}}
}

// run passes some time, and returns the share of it that each length had.
func (f *trialFlow) run(d time.Duration) (share [3]float64) {
	const step = 10 * time.Microsecond
	for end := f.now + int64(d); f.now < end; f.now += int64(step) {
		l := f.rests(f.now, uint64(f.bytes), f.cost)
		share[l-noRests] += float64(step) / float64(d)
		f.lump += 10 * float64(step) * f.rates[l-noRests]
		if f.now/int64(step)%50 == 0 {
			f.bytes, f.lump = f.bytes+f.lump, 0
		}
	}
	return share
}

func TestTrial(t *testing.T) {
	for _, c := range []struct {
		name            string
		no, short, long float64
		cost            float64
		want            restLength
	}{
		{"all cost", 1, 0.9, 0.8, trialCost, noRests},
		{"long ones cost", 1, 1, 0.9, trialCost, shortRests},
		{"they cost a little", 1, 0.98, 0.98, trialCost, longRests},
		{"they cost too much", 1, 0.93, 0.93, trialCost, noRests},
		{"a queue that sleeps is to make few calls", 1, 0.8, 0.8, trialCostSleeps, longRests},
		{"though not at any price", 1, 1, 0.7, trialCostSleeps, shortRests},
		{"they gain", 1, 1.1, 1.2, trialCost, longRests},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newTrialFlow(c.no, c.short, c.long)
			f.cost = c.cost
			require.Equal(t, 1.0, f.run(10 * time.Microsecond)[shortRests-noRests], "nothing is known")
			f.run(50 * time.Millisecond)
			require.Equal(t, c.want, f.best, "soon")
			share := f.run(10 * time.Second)
			require.Greater(t, share[c.want-noRests], 0.98)
			require.Less(t, share[c.want-noRests], 0.995, "what is best may change")
		})
	}
}

// The system call that is cheap now may be dear in a minute.
func TestTrialChanges(t *testing.T) {
	f := newTrialFlow(1, 1, 1)
	for range 3 {
		for best, rates := range [][3]float64{{1, 0.9, 0.8}, {0.9, 1, 0.9}, {0.8, 0.9, 1}, {0.9, 1, 0.9}} {
			f.rates = rates
			f.run(8 * time.Second)
			require.Greater(t, f.run(5 * time.Second)[min(best, 4-best)], 0.98)
		}
	}
}

// A flow that becomes faster by itself, as TCP does at first, favours none.
func TestTrialStart(t *testing.T) {
	f := newTrialFlow(0, 0, 0)
	for ms := range 100 {
		grown := min(1, 0.5+0.5*float64(ms)/60)
		f.rates = [3]float64{grown, grown, 0.9 * grown}
		f.run(time.Millisecond)
	}
	require.Equal(t, shortRests, f.best)
}

// Time in which nothing flows, or somebody else had the CPU, and what came in it, belongs to none.
func TestTrialGaps(t *testing.T) {
	for name, came := range map[string]float64{"the flow stops": 0, "preempted": 10, "callers read": 1000} {
		t.Run(name, func(t *testing.T) {
			r := rand.New(rand.NewPCG(1, 2))
			f := newTrialFlow(1, 1, 0.85)
			gaps := func(n int) (share [3]float64) {
				for range n {
					for i, s := range f.run(time.Duration((0.5 + r.Float64()) * 5e6)) {
						share[i] += s / float64(n)
					}
					gap := time.Duration((0.5 + r.Float64()) * 3e6)
					f.now += int64(gap)
					f.bytes += came * float64(gap)
				}
				return share
			}
			gaps(60)
			require.Greater(t, gaps(1000)[shortRests-noRests], 0.97)
			f.rates = [3]float64{0.9, 1, 1.1}
			gaps(800)
			require.Greater(t, gaps(1000)[longRests-noRests], 0.97)
		})
	}
}

// With hardly any looks there is nothing to learn, and no end to wait for.
func TestTrialEnds(t *testing.T) {
	f := newTrialFlow(1, 1, 1)
	var running int
	for range 10_000 {
		f.now += int64(2 * time.Millisecond)
		f.bytes += 1000
		require.Equal(t, shortRests, f.rests(f.now, uint64(f.bytes), trialCost))
		if f.running {
			running++
		}
	}
	require.Less(t, running, 5100)
}
