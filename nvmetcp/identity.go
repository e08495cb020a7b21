package nvmetcp

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

// HostID is the 128-bit host identifier (HOSTID), a UUID.
type HostID = fabrics.HostID

// ParseHostID reads a UUID of 36 characters.
func ParseHostID(s string) (HostID, error) { return fabrics.ParseHostID(s) }

// systemDir is where nvme-cli and the kernel's tools keep the host's identity.
const systemDir = "/etc/nvme"

// identity is a host NQN with the host ID that goes with it.
type identity struct {
	nqn string
	id  HostID
}

// Identity returns the NQN and ID that the host connects with. See [Host] for where they come from.
func (h Host) Identity() (nqn string, id HostID, err error) {
	i, err := h.identity(systemDir, userDir)
	return i.nqn, i.id, err
}

// UniqueHost returns a host with an identity of its own, made for this call and kept nowhere. It is
// for tests, and for processes that must not be taken for each other, as two that hold reservations on
// one machine.
func UniqueHost() Host {
	id := newHostID()
	return Host{NQN: id.NQN(), ID: id}
}

// newHostID makes a random UUID (version 4).
func newHostID() HostID {
	var id HostID
	rand.Read(id[:])
	id[6] = id[6]&0x0F | 0x40
	id[8] = id[8]&0x3F | 0x80
	return id
}

func userDir() (string, error) {
	dir, err := os.UserConfigDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(dir, "nvstage"), nil
}

// identity pairs NQN and ID, and checks them.
func (h Host) identity(system string, user func() (string, error)) (identity, error) {
	i := identity{h.NQN, h.ID}
	var err error
	switch {
	case h.NQN != "" && !h.ID.IsZero():
	case h.NQN != "":
		if i.id, err = idOf(h.NQN, system); err != nil {
			return identity{}, err
		}
	case !h.ID.IsZero():
		i.nqn = h.ID.NQN()
	default:
		if i, err = stored(system, user); err != nil {
			return identity{}, err
		}
	}
	if err := fabrics.ValidateNQN(i.nqn); err != nil {
		return identity{}, fmt.Errorf("nvmetcp: %w: %w", ErrIdentity, err)
	}
	return i, nil
}

// idOf finds the ID for an NQN that a caller gave alone.
func idOf(nqn, system string) (HostID, error) {
	if s, ok := strings.CutPrefix(nqn, fabrics.UUIDNQNPrefix); ok {
		id, err := fabrics.ParseHostID(s)
		if err != nil {
			return id, fmt.Errorf("nvmetcp: %w: %w", ErrIdentity, err)
		}
		return id, nil
	}
	if i, err := load(system); err == nil && i.nqn == nqn {
		return i.id, nil
	}
	return HostID{}, fmt.Errorf("nvmetcp: %w: host NQN %q comes without a host ID and contains none; "+
		"set Host.ID to a UUID that always goes with this NQN, since targets refuse or confuse hosts that mix them", ErrIdentity, nqn)
}

// stored returns the system's identity, or that of the user, which is made when there is none.
func stored(system string, user func() (string, error)) (identity, error) {
	i, err := load(system)
	if !errors.Is(err, fs.ErrNotExist) {
		return i, err
	}
	dir, err := user()
	if err == nil {
		i, err = load(dir)
		if errors.Is(err, fs.ErrNotExist) {
			if err = create(dir); err == nil {
				i, err = load(dir)
			}
		}
	}
	if err != nil && !errors.Is(err, ErrIdentity) {
		err = fmt.Errorf("nvmetcp: %w: there is none in %s and none can be kept: %w; set Host.NQN and Host.ID, or use UniqueHost", ErrIdentity, system, err)
	}
	return i, err
}

// load reads hostnqn and hostid in dir. One of them is enough where it tells the other. Neither is
// an fs.ErrNotExist.
func load(dir string) (identity, error) {
	nqn, nqnErr := readLine(filepath.Join(dir, "hostnqn"))
	uuid, idErr := readLine(filepath.Join(dir, "hostid"))
	for _, err := range []error{nqnErr, idErr} {
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return identity{}, fmt.Errorf("nvmetcp: %w: %w; set Host.NQN and Host.ID", ErrIdentity, err)
		}
	}
	bad := func(err error) (identity, error) {
		return identity{}, fmt.Errorf("nvmetcp: %w: in %s: %w", ErrIdentity, dir, err)
	}
	var (
		i   = identity{nqn: nqn}
		err error
	)
	switch {
	case nqn == "" && uuid == "":
		return i, fs.ErrNotExist
	case uuid != "":
		if i.id, err = fabrics.ParseHostID(uuid); err != nil {
			return bad(err)
		}
		if i.id.IsZero() {
			return bad(errors.New("hostid is zero"))
		}
		if nqn == "" {
			i.nqn = i.id.NQN()
		}
	default:
		s, ok := strings.CutPrefix(nqn, fabrics.UUIDNQNPrefix)
		if !ok {
			return bad(fmt.Errorf("there is hostnqn %q but no hostid to go with it; put a UUID there, as `uuidgen > %s` does", nqn, filepath.Join(dir, "hostid")))
		}
		if i.id, err = fabrics.ParseHostID(s); err != nil {
			return bad(err)
		}
	}
	return i, nil
}

// create puts a new identity into dir, unless another process was first. The ID decides: its file
// appears whole or not at all, and the NQN follows from it.
func create(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := createFile(dir, "hostid", newHostID().String()); err != nil {
		return err
	}
	i, err := load(dir)
	if err != nil {
		return err
	}
	return createFile(dir, "hostnqn", i.nqn)
}

// createFile makes a file with one line. One that is already there stays as it is.
func createFile(dir, name, line string) error {
	f, err := os.CreateTemp(dir, name+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(line + "\n")
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if e := f.Close(); err == nil {
		err = e
	}
	if err != nil {
		return err
	}
	if err = os.Link(f.Name(), filepath.Join(dir, name)); errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}

// readLine returns the first line of a file, which is never long.
func readLine(name string) (string, error) {
	f, err := os.Open(name)
	if err != nil {
		return "", err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, 4096))
	if err != nil {
		return "", err
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSpace(line), nil
}
