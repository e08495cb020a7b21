package main

import (
	"fmt"
	"strings"
)

// features are what a kernel can have that matters, with the version that brought it. Those that are operations of
// io_uring can be asked for.
var features = []struct {
	name         string
	major, minor int
	op           int // 0: none
}{
	{"MADV_POPULATE_WRITE", 5, 14, 0},
	{"io_uring SEND_ZC", 6, 0, 47},
	{"io_uring SENDMSG_ZC", 6, 1, 48},
	{"TCP devmem receive", 6, 12, 0},
	{"io_uring RECV_ZC", 6, 15, 58},
}

// kernel says what Linux it is.
func (m *machine) kernel(r *report) {
	t := topic{r: r, name: "System"}
	r.Kernel = kernelFacts{Release: m.line("proc/sys/kernel/osrelease"), Arch: m.arch, Features: []featureFacts{}}
	major, minor := release(r.Kernel.Release)
	text := fmt.Sprintf("Linux %s on %s", r.Kernel.Release, m.arch)
	switch {
	case major == 0:
		t.note("kernel", "the kernel's version is not known")
	case before(major, minor, 5, 19):
		t.note("kernel", "%s: older than 5.19, the first whose io_uring will do; the driver epoll needs none", text)
	default:
		t.good("kernel", "%s", text)
	}
}

// release reads the first two numbers of a kernel's version, 0 and 0 if it has none.
func release(s string) (major, minor int) {
	if n, _ := fmt.Sscanf(s, "%d.%d", &major, &minor); n != 2 || major < 0 || minor < 0 {
		return 0, 0
	}
	return major, minor
}

func before(major, minor, thanMajor, thanMinor int) bool {
	return major < thanMajor || major == thanMajor && minor < thanMinor
}

// features says what the kernel has of them: as asked, else by its version.
func (t topic) features(k *kernelFacts, ops []bool) {
	major, minor := release(k.Release)
	var has, lacks []string
	for _, f := range features {
		fact := featureFacts{Name: f.name, Since: fmt.Sprintf("%d.%d", f.major, f.minor), How: "version"}
		fact.Has = major > 0 && !before(major, minor, f.major, f.minor)
		if f.op > 0 && ops != nil {
			fact.Has, fact.How = f.op < len(ops) && ops[f.op], "asked"
		}
		k.Features = append(k.Features, fact)
		if fact.Has {
			has = append(has, fact.Name)
		} else {
			lacks = append(lacks, fact.Name+" (Linux "+fact.Since+")")
		}
	}
	if major == 0 && ops == nil {
		t.note("features", "what the kernel has is not known")
		return
	}
	t.note("features", "the kernel has: %s; has not: %s; of these only MADV_POPULATE_WRITE is in use yet", orNone(has), orNone(lacks))
}

// orNone lists words.
func orNone(l []string) string {
	if len(l) == 0 {
		return "none"
	}
	return strings.Join(l, ", ")
}
