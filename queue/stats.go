package queue

import "sync/atomic"

// published is a copy of the engine's Stats that others may read. The engine counts in plain
// integers and copies them here now and then, since an atomic store costs more than a count.
type published struct {
	v [10]atomic.Uint64
}

func (p *published) store(s *Stats) {
	for i, n := range s.all() {
		p.v[i].Store(*n)
	}
}

func (p *published) load() (s Stats) {
	for i, n := range s.all() {
		*n = p.v[i].Load()
	}
	return s
}

func (s *Stats) all() [10]*uint64 {
	return [10]*uint64{
		&s.Commands, &s.Errors, &s.BytesIn, &s.BytesOut, &s.Turns,
		&s.Syscalls, &s.Sleeps, &s.Placed, &s.Copied, &s.DataErrors,
	}
}
