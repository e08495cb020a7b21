package main

import (
	"fmt"
	"strconv"

	"github.com/nvstage/nvstage/queue"
)

// row is one line of the comparison: subjects that do the same work, measured in turns.
type row struct {
	name     string
	subjects []subject
}

// subject is one way to do it. The first of a row is what the others are held against.
type subject struct {
	name string
	kind kind
	args []string // of nvmeperf, or of the peer
}

// kind says what a subject needs.
type kind int

const (
	kindRaw  kind = iota // raw serve
	kindOurs             // the target, and the default options of this library
	kindPeer             // the target, and somebody else's program
)

// work is what a row of the main table does.
type work struct {
	pattern string
	size    int
	depth   int
	digests bool
}

// mainTable is what this library wants to be measured by.
var mainTable = []work{
	{"randread", 4 << 10, 1, false},
	{"randread", 4 << 10, 32, false},
	{"randread", 4 << 10, 128, false},
	{"randread", 16 << 10, 32, false},
	{"randread", 64 << 10, 32, false},
	{"randread", 128 << 10, 8, false},
	{"randread", 128 << 10, 32, false},
	{"randread", 1 << 20, 8, false},
	{"randwrite", 4 << 10, 128, false},
	{"randwrite", 128 << 10, 8, false},
	{"randwrite", 1 << 20, 8, false},
	{"randread", 4 << 10, 128, true},
	{"randread", 128 << 10, 8, true},
}

func (w work) String() string {
	s := fmt.Sprintf("%s %s QD%d", sizeText(int64(w.size)), w.pattern, w.depth)
	if w.digests {
		s += " HDGST DDGST"
	}
	return s
}

// raw is the measure of the wire: a ping-pong where there is one I/O at a time, otherwise a stream of
// calls as large as the I/Os. A stream is measured both ways, since either may be the faster one.
func (w work) raw(blocking bool) subject {
	dir := "read"
	if w.pattern == "randwrite" {
		dir = "write"
	}
	s := subject{"raw stream", kindRaw, []string{"raw", "stream", "-w", dir, "-o", strconv.Itoa(w.size), "-q", strconv.Itoa(w.depth)}}
	if w.depth == 1 {
		s = subject{"raw pingpong", kindRaw, []string{"raw", "pingpong", "-w", dir, "-o", strconv.Itoa(w.size)}}
	}
	if blocking {
		s.name += ", sleeping"
		s.args = append(s.args, "--blocking")
	}
	return s
}

// ours is a load of nvmeperf; more are flags besides those of the work.
func (w work) ours(name string, more ...string) subject {
	args := []string{"-w", w.pattern, "-o", strconv.Itoa(w.size), "-q", strconv.Itoa(w.depth)}
	if w.digests {
		args = append(args, "--hdgst", "--ddgst")
	}
	return subject{name, kindOurs, append(args, more...)}
}

// peer is spdk_nvme_perf, or a program that takes the same flags.
func (w work) peer() subject {
	args := []string{"-w", w.pattern, "-o", strconv.Itoa(w.size), "-q", strconv.Itoa(w.depth), "-L"}
	if w.digests {
		args = append(args, "-H", "-I")
	}
	return subject{"peer", kindPeer, args}
}

// rows is the whole comparison. pin are the flags that give a queue's thread the CPU to itself. Where
// goroutines call ReadAt they share the CPU with the queue, whose thread then is better not locked.
func rows(drivers []queue.Driver, peer bool, spinFlag spin, pin []string) []row {
	var all []row
	spinning := []string{"--spin", spinFlag.String()}
	for _, w := range mainTable {
		r := row{name: w.String(), subjects: []subject{w.raw(false)}}
		if w.depth > 1 {
			r.subjects = []subject{w.raw(true), w.raw(false)}
		}
		for _, d := range drivers {
			r.subjects = append(r.subjects, w.ours(string(d), append(append([]string{"--driver", string(d)}, spinning...), pin...)...))
		}
		if peer {
			r.subjects = append(r.subjects, w.peer())
		}
		all = append(all, r)
	}

	one, many := mainTable[0], mainTable[2]
	sleep := append([]string{"--spin", "0"}, pin...)
	r := row{name: "sleeping, " + one.String(), subjects: []subject{one.raw(true)}}
	for _, d := range drivers {
		r.subjects = append(r.subjects, one.ours(string(d)+", sleeping", append([]string{"--driver", string(d)}, sleep...)...))
	}
	all = append(all, r)
	r = row{name: "sleeping, " + many.String()}
	for _, d := range drivers {
		r.subjects = append(r.subjects,
			many.ours(string(d), append(append([]string{"--driver", string(d)}, spinning...), pin...)...),
			many.ours(string(d)+", sleeping", append([]string{"--driver", string(d)}, sleep...)...))
	}
	all = append(all, r)

	some := work{"randread", 4 << 10, 64, false}
	return append(
		all,
		row{"hand-off, " + one.String(), []subject{
			one.ours("feed", pin...),
			one.ours("ReadAt from 1 goroutine", "--api", "readat"),
		}},
		row{"hand-off, " + some.String(), []subject{
			some.ours("feed", pin...),
			some.ours("ReadAt from 64 goroutines", "--api", "readat", "--threads", "64"),
			some.ours("ReadBatch of 64", "--api", "batch"),
		}},
	)
}
