package main

import (
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

const systemIdentity = "/etc/nvme"

// identity says who this host is to targets, by the rules that nvmetcp.Host has. It makes nothing.
func (m *machine) identity(r *report, f *flags) {
	t := topic{r: r, name: "Host identity"}
	const mend = "mkdir -p /etc/nvme; u=$(uuidgen); echo $u > /etc/nvme/hostid; echo " + fabrics.UUIDNQNPrefix + "$u > /etc/nvme/hostnqn"
	user, userErr := m.userIdentity()
	for _, dir := range []string{systemIdentity, user} {
		i, err := m.identityIn(dir)
		if dir == "" || errors.Is(err, fs.ErrNotExist) {
			continue
		}
		r.Identity = i
		switch {
		case err == nil:
			t.good("files", "%s, ID %s, from %s", i.HostNQN, i.HostID, dir)
			return
		case f.hostnqn != "" || f.hostid != "":
			t.bad("files", mend, "in %s: %v; --hostnqn and --hostid are used instead", dir, err)
		default:
			t.blocked("files", mend, "in %s: %v", dir, err)
		}
		r.Identity.Error = err.Error()
		return
	}
	if userErr != nil && f.hostnqn == "" && f.hostid == "" {
		r.Identity.Error = userErr.Error()
		t.blocked("files", mend, "there is no identity in %s, and none can be kept: %v", systemIdentity, userErr)
		return
	}
	t.add(finding{ID: "files", Mark: neutral, Mend: mend, Text: fmt.Sprintf("no hostnqn and hostid in %s: an identity is made once and kept in %s; targets that allow hosts by name have to know it", systemIdentity, user)})
}

// identityIn reads the identity in a directory: hostnqn and hostid, or one of them where it tells the other. Neither is an
// fs.ErrNotExist.
func (m *machine) identityIn(dir string) (i identityFacts, err error) {
	lines := map[string]*string{"hostnqn": &i.HostNQN, "hostid": &i.HostID}
	for name, line := range lines {
		text, err := m.text(dir, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return i, err
		}
		*line, _, _ = strings.Cut(text, "\n")
		*line = strings.TrimSpace(*line)
	}
	if i.HostNQN == "" && i.HostID == "" {
		return i, fs.ErrNotExist
	}
	uuid, inNQN := strings.CutPrefix(i.HostNQN, fabrics.UUIDNQNPrefix)
	if i.HostID == "" && inNQN {
		i.HostID = uuid
	}
	if i.HostID == "" {
		return i, fmt.Errorf("there is hostnqn %q but no hostid to go with it", i.HostNQN)
	}
	id, err := fabrics.ParseHostID(i.HostID)
	if err == nil && id.IsZero() {
		err = errors.New("hostid is zero")
	}
	if err == nil && i.HostNQN == "" {
		i.HostNQN = id.NQN()
	}
	if err == nil {
		err = fabrics.ValidateNQN(i.HostNQN)
	}
	if err != nil {
		return i, errors.New(strings.TrimPrefix(err.Error(), "fabrics: "))
	}
	return i, nil
}

// userIdentity is the directory where an identity is kept that is not in /etc/nvme, or why none can be.
func (m *machine) userIdentity() (string, error) {
	dir := m.env("XDG_CONFIG_HOME")
	if dir == "" {
		if dir = m.env("HOME"); dir == "" {
			return "", errors.New("neither $XDG_CONFIG_HOME nor $HOME is set")
		}
		dir = filepath.Join(dir, ".config")
	}
	if !filepath.IsAbs(dir) {
		return "", fmt.Errorf("the path %q in $XDG_CONFIG_HOME or $HOME is not absolute", dir)
	}
	dir = filepath.Join(dir, "nvstage")
	there := dir
	for !m.exists(there) && there != "/" {
		there = filepath.Dir(there)
	}
	if err := unix.Access(m.path(there), unix.W_OK); err != nil {
		return dir, fmt.Errorf("%s may not be written to: %w", there, err)
	}
	return dir, nil
}
