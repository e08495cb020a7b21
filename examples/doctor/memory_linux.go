package main

import (
	"fmt"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
)

const (
	hugeDir  = "sys/kernel/mm/hugepages"
	hugePage = 2 << 20
)

// hugePages reads the sets in a directory of sysfs, smallest first.
func (t tree) hugePages(dir string) []hugeSet {
	sets := []hugeSet{}
	for _, name := range t.dir(dir) {
		size, ok := strings.CutPrefix(name, "hugepages-")
		kb, err := strconv.ParseInt(strings.TrimSuffix(size, "kB"), 10, 64)
		if !ok || err != nil || kb <= 0 || kb > 1<<40 {
			continue
		}
		set := hugeSet{kb << 10, t.number(-1, dir, name, "nr_hugepages"), t.number(-1, dir, name, "free_hugepages")}
		if promised := t.number(0, dir, name, "resv_hugepages"); set.Free >= 0 && promised > 0 {
			set.Free = max(0, set.Free-promised)
		}
		if kb<<10 == hugePage {
			sets = append([]hugeSet{set}, sets...)
		} else {
			sets = append(sets, set)
		}
	}
	return sets
}

func (m *machine) memory(r *report, pool int64) {
	t := topic{r: r, name: "Memory"}
	f := &r.Memory
	*f = memoryFacts{
		Pool: pool, HugePages: m.hugePages(hugeDir), Available: -1, Limit: m.memoryLimit(),
		THP: chosen(m.line("sys/kernel/mm/transparent_hugepage/enabled")), Lock: m.limit("Max locked memory"), MayLock: m.mayLock(r.Container.UserNamespace),
	}
	if n, err := topo.AvailableBelow(m.root); err == nil && n >= 0 {
		f.Available = n
	}
	t.room(f)
	t.pages(f)
	t.lock(f)
}

// room says whether the pool fits into memory.
func (t topic) room(f *memoryFacts) {
	const rest = 64 << 20 // what the process needs besides
	switch {
	case f.Limit > 0 && f.Limit < f.Pool+rest:
		t.blocked("room", fmt.Sprintf("docker run --memory=%d   # Kubernetes: resources.limits.memory; or ask for less with --memory", (f.Pool+rest+1<<20-1)>>20<<20),
			"the cgroup allows %s, less than a pool of %s and 64 MiB for the rest: the process will be killed", bytesText(f.Limit), bytesText(f.Pool))
	case f.Available >= 0 && f.Available < f.Pool && f.huge() == 0:
		t.blocked("room", "ps aux --sort=-rss | head   # end what is not needed, or ask for less with --memory",
			"%s of memory is available, less than a pool of %s", bytesText(f.Available), bytesText(f.Pool))
	case f.Available < 0:
		t.note("room", "the available memory is not known; the pool is %s", bytesText(f.Pool))
	default:
		text := ""
		if f.Limit > 0 {
			text = ", and the cgroup allows " + bytesText(f.Limit)
		}
		t.good("room", "%s of memory is available%s, for a pool of %s (--memory)", bytesText(f.Available), text, bytesText(f.Pool))
	}
}

// huge is the size of the reserved huge pages that the pool will get, by the rules that staging.NewPool has; 0 if there are too few.
func (f *memoryFacts) huge() int64 {
	for _, size := range []int64{1 << 30, hugePage} {
		for _, s := range f.HugePages {
			if s.Size == size && s.Free >= (f.Pool+size-1)/size && (size == hugePage || f.Pool%size == 0) {
				return size
			}
		}
	}
	return 0
}

// reservedText lists the reserved huge pages, "" if there are none.
func reservedText(sets []hugeSet) string {
	var reserved []string
	for _, s := range sets {
		if s.Total > 0 {
			reserved = append(reserved, fmt.Sprintf("%d of %s (%d free)", s.Total, bytesText(s.Size), s.Free))
		}
	}
	return strings.Join(reserved, ", ")
}

// pages says what pages the pool will get.
func (t topic) pages(f *memoryFacts) {
	pages := (f.Pool + hugePage - 1) / hugePage
	have := "none"
	if reserved := reservedText(f.HugePages); reserved != "" {
		have = reserved
	}
	reserve := pages
	for _, s := range f.HugePages {
		if s.Size == hugePage && s.Total >= 0 && s.Free >= 0 {
			reserve = s.Total + pages - s.Free
		}
	}
	mend := fmt.Sprintf("sysctl -w vm.nr_hugepages=%d   # on a certain node: /sys/devices/system/node/node*/hugepages/hugepages-2048kB/nr_hugepages", reserve)
	switch {
	case f.huge() > 0:
		t.good("hugepages", "reserved huge pages: %s; the pool takes %d of %s", have, (f.Pool+f.huge()-1)/f.huge(), bytesText(f.huge()))
	case f.THP == "always" || f.THP == "madvise":
		t.add(finding{
			ID: "hugepages", Mark: neutral, Mend: mend,
			Text: fmt.Sprintf("reserved huge pages: %s; the pool needs %d free ones of 2 MiB for certain, and asks for transparent ones (%s) otherwise", have, pages, f.THP),
		})
	case f.THP == "":
		t.note("hugepages", "reserved huge pages: %s; transparent ones: not known", have)
	default:
		t.bad("hugepages", mend, "reserved huge pages: %s; the pool needs %d free ones of 2 MiB, and there are no transparent ones (%s): it is mapped in pages of 4 KiB", have, pages, f.THP)
	}
}

// lock says whether the pool can be locked.
func (t topic) lock(f *memoryFacts) {
	switch {
	case f.MayLock:
		t.good("memlock", "memory may be locked without limit (CAP_IPC_LOCK)")
	case f.Lock.Soft == -1:
		t.good("memlock", "memory may be locked without limit (RLIMIT_MEMLOCK)")
	case f.Lock.Soft == unknownLimit:
		t.note("memlock", "RLIMIT_MEMLOCK is not known")
	case f.Lock.Soft >= f.Pool:
		t.good("memlock", "%s of memory may be locked (RLIMIT_MEMLOCK), as much as the pool", bytesText(f.Lock.Soft))
	default:
		mend := "ulimit -l unlimited   # as root; in a unit LimitMEMLOCK=infinity, in a container docker run --ulimit memlock=-1"
		if f.Lock.Hard == -1 || f.Lock.Hard >= f.Pool {
			mend = fmt.Sprintf("ulimit -S -l %d   # in a unit LimitMEMLOCK=infinity", (f.Pool+1023)/1024)
		}
		t.bad("memlock", mend, "%s of memory may be locked (RLIMIT_MEMLOCK), of a pool of %s", bytesText(f.Lock.Soft), bytesText(f.Pool))
	}
}

// mayLock reports CAP_IPC_LOCK, which counts in the first user namespace only.
func (m *machine) mayLock(userns bool) bool {
	caps, err := strconv.ParseUint(m.field("CapEff", "proc/self/status"), 16, 64)
	return err == nil && caps&(1<<unix.CAP_IPC_LOCK) != 0 && !userns
}

// chosen is the word in brackets of a list such as "always [madvise] never", "" if there is none.
func chosen(list string) string {
	_, s, _ := strings.Cut(list, "[")
	s, _, ok := strings.Cut(s, "]")
	if !ok {
		return ""
	}
	return s
}

// unknownLimit is a limit that is not known.
const unknownLimit = -2

// limit reads a line of /proc/self/limits.
func (t tree) limit(name string) limitFacts {
	f := limitFacts{unknownLimit, unknownLimit}
	text, _, _ := t.head(maxText, "proc/self/limits")
	for l := range strings.Lines(text) {
		rest, ok := strings.CutPrefix(l, name+" ")
		fields := strings.Fields(rest)
		if !ok || len(fields) < 2 {
			continue
		}
		for i, p := range []*int64{&f.Soft, &f.Hard} {
			if fields[i] == "unlimited" {
				*p = -1
			} else if n, err := strconv.ParseInt(fields[i], 10, 64); err == nil && n >= 0 {
				*p = n
			}
		}
	}
	return f
}

// files says whether there are enough descriptors for the queues.
func (m *machine) files(r *report, queues int) {
	t := topic{r: r, name: "Limits"}
	r.Files = m.limit("Max open files")
	// Standard streams and the runtime; each queue has a socket, an epoll or a ring, and an event, and is connected with one more.
	need := int64(16 + 4*(queues+1))
	switch l := r.Files.Soft; {
	case l == unknownLimit:
		t.note("nofile", "RLIMIT_NOFILE is not known")
	case l == -1 || l >= need:
		text := "without limit"
		if l >= 0 {
			text = strconv.FormatInt(l, 10)
		}
		t.good("nofile", "open files: %s (RLIMIT_NOFILE); a connection of %s needs up to %d", text, count(queues, "I/O queue"), need)
	default:
		t.blocked("nofile", fmt.Sprintf("ulimit -n %d", max(1024, need)), "open files: %d (RLIMIT_NOFILE); a connection of %s needs up to %d", l, count(queues, "I/O queue"), need)
	}
}
