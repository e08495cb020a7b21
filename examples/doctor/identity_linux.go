package main

import (
	"errors"
	"io/fs"
	"strings"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

// identity says who this host is to targets, by the rules that nvmetcp.Host has.
func (m *machine) identity(r *report, f *flags) {
	t := topic{r: r, name: "Host identity"}
	i := &r.Identity
	var nqnErr, idErr error
	i.HostNQN, nqnErr = m.firstLine("etc/nvme/hostnqn")
	i.HostID, idErr = m.firstLine("etc/nvme/hostid")
	for _, err := range []error{nqnErr, idErr} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			i.Error = err.Error()
		}
	}
	if i.Error == "" {
		i.Error = identityError(i.HostNQN, i.HostID)
	}
	const mend = "mkdir -p /etc/nvme; u=$(uuidgen); echo $u > /etc/nvme/hostid; echo " + fabrics.UUIDNQNPrefix + "$u > /etc/nvme/hostnqn"
	switch {
	case i.Error != "" && f.hostnqn != "":
		t.bad("files", mend, "in /etc/nvme: %s; --hostnqn is used instead", i.Error)
	case i.Error != "":
		t.blocked("files", mend, "in /etc/nvme: %s", i.Error)
	case i.HostNQN == "" && i.HostID == "":
		t.add(finding{ID: "files", Mark: neutral, Mend: mend, Text: "no /etc/nvme/hostnqn and hostid: an identity is made once and kept in the user's configuration directory; targets that allow hosts by NQN need to know it"})
	case i.HostNQN == "":
		t.good("files", "/etc/nvme/hostid %s; the NQN is made of it", i.HostID)
	case i.HostID == "":
		t.good("files", "/etc/nvme/hostnqn %s, which contains the ID", i.HostNQN)
	case strings.HasPrefix(i.HostNQN, fabrics.UUIDNQNPrefix) && !strings.EqualFold(strings.TrimPrefix(i.HostNQN, fabrics.UUIDNQNPrefix), i.HostID):
		t.note("files", "/etc/nvme/hostnqn %s, hostid %s: two UUIDs, which is allowed; they must stay together", i.HostNQN, i.HostID)
	default:
		t.good("files", "/etc/nvme/hostnqn %s, hostid %s", i.HostNQN, i.HostID)
	}
}

// identityError is what is wrong with the files' contents, "" if nothing is.
func identityError(nqn, id string) string {
	if nqn != "" {
		if err := fabrics.ValidateNQN(nqn); err != nil {
			return "hostnqn: " + strings.TrimPrefix(err.Error(), "fabrics: ")
		}
	}
	switch {
	case id != "":
		h, err := fabrics.ParseHostID(id)
		if err != nil {
			return "hostid: " + strings.TrimPrefix(err.Error(), "fabrics: ")
		}
		if h.IsZero() {
			return "hostid is zero"
		}
	case nqn != "" && !strings.HasPrefix(nqn, fabrics.UUIDNQNPrefix):
		return "hostnqn is there, and no hostid to go with it"
	}
	return ""
}

// firstLine is the first line of a file, "" if there is none.
func (t tree) firstLine(name string) (string, error) {
	text, err := t.text(name)
	line, _, _ := strings.Cut(text, "\n")
	return strings.TrimSpace(line), err
}
