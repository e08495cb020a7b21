package staging

import (
	"fmt"
	"strings"
)

// PoolInfo says what a pool got, and why not more.
type PoolInfo struct {
	Bytes       int64 // Buffers × BufferSize
	BufferSize  int   // bytes
	Buffers     int
	MemoryBytes int64 // what the pool takes of the machine and of its Limit: Bytes, in whole pages

	HugePages        bool   // reserved hugepages back the pool
	PageSize         int64  // of the reserved hugepages, or of ordinary pages, in bytes; 0 if not known
	HugePagesNote    string // why not, or what was done instead; empty when HugePages
	TransparentBytes int64  // of ordinary memory, what transparent hugepages back at the start, as far as it can be told

	LockedBytes int64  // what cannot be swapped: locked, or in reserved hugepages, which never are
	LockNote    string // why not all of it; empty when LockedBytes == Bytes

	Node     int    // the NUMA node that the memory lies on; -1 for several, or if it cannot be told
	NodeNote string // why it is not bound to the node asked for, or that there is no other; empty if bound, or none was asked for

	Registered   []string // the devices that registered the memory, by name
	RegisterNote string   // why others did not; empty if none refused

	Debug     bool   // PoolConfig.Debug
	Guards    int    // buffers with a guard page behind them: all, or with a note none
	GuardNote string // why there are none; empty without Debug
}

// String is one line for a log.
func (i PoolInfo) String() string {
	parts := []string{fmt.Sprintf("%d buffers of %s", i.Buffers, sizeText(int64(i.BufferSize)))}
	add := func(format string, args ...any) { parts = append(parts, fmt.Sprintf(format, args...)) }
	if i.HugePages {
		add("%s pages", sizeText(i.PageSize))
	} else {
		add("no reserved hugepages (%s)", i.HugePagesNote)
	}
	if i.LockedBytes == i.Bytes {
		add("locked")
	} else {
		add("%s of %s locked (%s)", sizeText(i.LockedBytes), sizeText(i.Bytes), i.LockNote)
	}
	if i.Node >= 0 {
		add("NUMA node %d%s", i.Node, inBrackets(i.NodeNote))
	} else if i.NodeNote != "" {
		add("NUMA node not known (%s)", i.NodeNote)
	}
	if len(i.Registered) > 0 {
		add("registered with %s", strings.Join(i.Registered, " and "))
	}
	if i.RegisterNote != "" {
		add("not registered with %s", i.RegisterNote)
	}
	if i.Debug {
		add("debug mode, %d guard pages%s", i.Guards, inBrackets(i.GuardNote))
	}
	return strings.Join(parts, ", ")
}

func inBrackets(note string) string {
	if note == "" {
		return ""
	}
	return " (" + note + ")"
}

// sizeText writes a number of bytes in the largest unit that leaves at most one digit behind the point without rounding.
func sizeText(n int64) string {
	for _, u := range []struct {
		unit int64
		name string
	}{{1 << 30, "GiB"}, {1 << 20, "MiB"}, {1 << 10, "KiB"}} {
		if n >= u.unit && n%u.unit == 0 {
			return fmt.Sprintf("%d %s", n/u.unit, u.name)
		}
	}
	return fmt.Sprintf("%d bytes", n)
}
