package main

import (
	"strings"
)

// Inodes of the first namespaces, the same on every Linux (include/linux/proc_ns.h).
const (
	firstUserNS = "user:[4026531837]"
	firstPIDNS  = "pid:[4026531836]"
)

// container says what stands between the process and the machine.
func (m *machine) container(r *report) {
	t := topic{r: r, name: "System"}
	c := &r.Container
	status := "proc/self/status"
	*c = containerFacts{
		Kind: m.containerKind(), VM: strings.Contains(" "+m.field("flags", "proc/cpuinfo")+" ", " hypervisor "),
		UserNamespace: m.otherNamespace("user", firstUserNS), PIDNamespace: m.otherNamespace("pid", firstPIDNS),
		Seccomp: map[string]string{"0": "off", "1": "strict", "2": "filter"}[m.field("Seccomp", status)], NoNewPrivs: m.field("NoNewPrivs", status) == "1",
	}
	if g := m.cgroupOf("cpu"); g != nil {
		c.CgroupVersion = g.version
	}
	var what []string
	if c.VM {
		what = append(what, "a virtual machine")
	}
	switch {
	case c.Kind != "":
		what = append(what, "a container ("+c.Kind+")")
	case c.UserNamespace || c.PIDNamespace:
		what = append(what, "namespaces of its own")
	}
	if c.UserNamespace {
		what = append(what, "a user namespace (root is not root)")
	}
	if c.Seccomp == "filter" {
		what = append(what, "a seccomp filter")
	}
	if len(what) == 0 {
		t.note("container", "no container or virtual machine is seen around this process")
		return
	}
	t.note("container", "this process is in %s", strings.Join(what, ", in "))
}

// containerKind guesses who runs the container that the process is in, "" where there are no signs of one.
func (m *machine) containerKind() string {
	group, _, _ := m.head(maxText, "proc/self/cgroup")
	first := m.line("run/systemd/container")
	switch {
	case m.env("KUBERNETES_SERVICE_HOST") != "" || strings.Contains(group, "kubepods"):
		return "kubernetes"
	case m.exists("run/.containerenv"):
		return "podman"
	case m.exists(".dockerenv") || strings.Contains(group, "/docker"):
		return "docker"
	case first != "":
		return first
	}
	return m.env("container") // systemd-nspawn, lxc
}

// otherNamespace tells whether the process is in another namespace than the machine's first one.
func (m *machine) otherNamespace(kind, first string) bool {
	name := m.linkName("proc/self/ns", kind)
	return name != "" && name != first
}
