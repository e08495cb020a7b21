package load

import (
	"fmt"
	"math/bits"
	"math/rand/v2"
)

// Pattern is which I/Os there are.
type Pattern struct {
	Random bool
	Reads  int // percent; the others are writes
}

// ParsePattern reads a workload's name as spdk_nvme_perf and fio have them. mix is the percentage of
// reads in rw and randrw, -1 for none given, which is half.
func ParsePattern(name string, mix int) (Pattern, error) {
	p := Pattern{Random: len(name) > 4 && name[:4] == "rand"}
	base := name
	if p.Random {
		base = name[4:]
	}
	mixed := base == "rw"
	switch base {
	case "read":
		p.Reads = 100
	case "write":
	case "rw":
		if p.Reads = mix; mix < 0 {
			p.Reads = 50
		}
	default:
		return p, fmt.Errorf("workload %q: want read, write, randread, randwrite, rw or randrw", name)
	}
	switch {
	case !mixed && mix >= 0:
		return p, fmt.Errorf("workload %q is no mix: a percentage of reads goes with rw and randrw", name)
	case mix > 100:
		return p, fmt.Errorf("%d %% reads: want 0 to 100", mix)
	}
	return p, nil
}

// String is the workload's name.
func (p Pattern) String() string {
	base := "rw"
	switch p.Reads {
	case 100:
		base = "read"
	case 0:
		base = "write"
	}
	if p.Random {
		return "rand" + base
	}
	return base
}

// generator makes the I/Os of one queue or goroutine.
type generator struct {
	pattern Pattern
	size    int64
	count   uint64 // I/Os that fit the namespace
	at      uint64 // the next one in sequence
	rnd     *rand.PCG
}

// newGenerator is the i-th of n, which begin at different places.
func newGenerator(p Pattern, size, namespace int64, i, n int) *generator {
	count := uint64(namespace / size)
	return &generator{pattern: p, size: size, count: count, at: count / uint64(n) * uint64(i), rnd: rand.NewPCG(uint64(i), 0x6e76)}
}

func (g *generator) next() (off int64, write bool) {
	k := g.at
	if g.pattern.Random {
		k, _ = bits.Mul64(g.rnd.Uint64(), g.count)
	} else if g.at++; g.at == g.count {
		g.at = 0
	}
	switch g.pattern.Reads {
	case 100:
	case 0:
		write = true
	default:
		write = int(g.rnd.Uint64()%100) >= g.pattern.Reads
	}
	return int64(k) * g.size, write
}
