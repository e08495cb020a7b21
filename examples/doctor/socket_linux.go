package main

import (
	"fmt"
	"slices"
	"strings"
)

const (
	sysctlCore = "proc/sys/net/core"
	sysctlIPv4 = "proc/sys/net/ipv4"
)

func (m *machine) sockets(r *report, queues int) {
	t := topic{r: r, name: "Sockets"}
	s := &r.Sockets
	*s = socketFacts{
		RMemMax: m.number(-1, sysctlCore, "rmem_max"), WMemMax: m.number(-1, sysctlCore, "wmem_max"),
		TCPRMem: list(m.numbers(sysctlIPv4, "tcp_rmem")), TCPWMem: list(m.numbers(sysctlIPv4, "tcp_wmem")),
		Congestion: m.line(sysctlIPv4, "tcp_congestion_control"), Available: strings.Fields(m.line(sysctlIPv4, "tcp_available_congestion_control")),
		BusyPoll: m.number(-1, sysctlCore, "busy_poll"), BusyRead: m.number(-1, sysctlCore, "busy_read"),
	}
	t.buffers("tcp_rmem", "reads", s.TCPRMem, queues)
	t.buffers("tcp_wmem", "writes", s.TCPWMem, queues)
	if s.RMemMax >= 0 && s.WMemMax >= 0 {
		t.note("mem_max", "net.core.rmem_max %s, wmem_max %s: they bound only Options.Socket.ReceiveBuffer and SendBuffer, which are left to the kernel", bytesText(s.RMemMax), bytesText(s.WMemMax))
	} else {
		t.note("mem_max", "net.core.rmem_max and wmem_max are not shown here; they bound only Options.Socket.ReceiveBuffer and SendBuffer")
	}
	for _, c := range []struct{ name, without string }{
		{"tcp_window_scaling", "a connection has at most 64 KiB in flight"},
		{"tcp_sack", "one lost packet makes many be sent again"},
		{"tcp_moderate_rcvbuf", "receive buffers stay at their default size"},
	} {
		if m.number(-1, sysctlIPv4, c.name) == 0 {
			t.bad(c.name, fmt.Sprintf("sysctl -w net.ipv4.%s=1", c.name), "net.ipv4.%s is 0: %s", c.name, c.without)
		}
	}
	t.congestion(s, r.Target)
	switch {
	case s.BusyPoll < 0 && s.BusyRead < 0:
		t.note("busy_poll", "net.core.busy_poll and busy_read are not shown here")
	default:
		t.note("busy_poll", "net.core.busy_poll %d µs, busy_read %d µs: queues poll their sockets themselves; Options.Socket.BusyPoll polls the interface too", s.BusyPoll, s.BusyRead)
	}
}

// buffers says whether connections can have enough in flight. About half of a buffer is payload.
func (t topic) buffers(name, what string, v []int64, queues int) {
	const rtt = 1000 // µs, a long one within a data centre
	if len(v) != 3 || v[2] <= 0 {
		t.note(name, "net.ipv4.%s is not known", name)
		return
	}
	speed := 0 // of the interface that counts, Mbit/s
	for _, n := range t.r.NICs {
		if n.Up && (t.r.Target == nil || t.r.Target.Interface == n.Name) {
			speed = max(speed, n.Speed)
		}
	}
	flight := v[2] / 2 * int64(queues)
	reach := flight * 8 / rtt // bit per µs: Mbit/s
	text := fmt.Sprintf("net.ipv4.%s is up to %s: %s %s can have %s in flight, enough for %s at a round trip of 1 ms",
		name, bytesText(v[2]), what, "over "+count(queues, "I/O queue"), bytesText(flight), speedText(int(reach)))
	switch {
	case reach < int64(speed):
		want := (int64(speed)*rtt/8*2/int64(queues) + 1<<20 - 1) >> 20 << 20
		t.bad(name, fmt.Sprintf("sysctl -w net.ipv4.%s='%d %d %d'", name, v[0], v[1], want), "%s, and the interface has %s", text, speedText(speed))
	default:
		t.good(name, "%s", text)
	}
}

// congestion judges the congestion control of what this machine sends.
func (t topic) congestion(s *socketFacts, target *targetFacts) {
	switch {
	case s.Congestion == "":
		t.note("congestion", "net.ipv4.tcp_congestion_control is not known")
	case strings.HasPrefix(s.Congestion, "bbr") && target != nil && target.Loopback:
		other := "reno" // always there
		if slices.Contains(s.Available, "cubic") {
			other = "cubic"
		}
		t.bad("congestion", "sysctl -w net.ipv4.tcp_congestion_control="+other, "congestion control %s paces loopback, where the target is, to less than half", s.Congestion)
	case strings.HasPrefix(s.Congestion, "bbr"):
		t.note("congestion", "congestion control %s: it counts for writes only, and paces loopback; what is read the target sends, by its own", s.Congestion)
	default:
		t.good("congestion", "congestion control %s; it counts for writes only: what is read the target sends, by its own", s.Congestion)
	}
}
