package nvmetcp

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

const someUUID = "6ba7b810-9dad-41d1-80b4-00c04fd430c8"

// dirWith makes a folder with the files that are not "".
func dirWith(t *testing.T, nqn, id string) string {
	t.Helper()
	dir := t.TempDir()
	for name, s := range map[string]string{"hostnqn": nqn, "hostid": id} {
		if s != "" {
			require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(s), 0o644))
		}
	}
	return dir
}

func in(dir string) func() (string, error) { return func() (string, error) { return dir, nil } }

func TestF23SystemIdentityIsPaired(t *testing.T) {
	id, err := ParseHostID(someUUID)
	require.NoError(t, err)
	for name, c := range map[string]struct {
		nqn, id  string
		want     string
		wantFail string
	}{
		"both":             {"nqn.2025-01.io.example:host\n", someUUID + "\n", "nqn.2025-01.io.example:host", ""},
		"uuid nqn alone":   {fabrics.UUIDNQNPrefix + someUUID, "", fabrics.UUIDNQNPrefix + someUUID, ""},
		"id alone":         {"", strings.ToUpper(someUUID), fabrics.UUIDNQNPrefix + someUUID, ""},
		"other nqn alone":  {"nqn.2025-01.io.example:host", "", "", "no hostid to go with it"},
		"id is no uuid":    {"", "12345", "", "is not a UUID"},
		"id is zero":       {"", "00000000-0000-0000-0000-000000000000", "", "hostid is zero"},
		"nqn is not valid": {"iqn.2025-01.io.example:host", someUUID, "", "does not begin with"},
		"uuid nqn broken":  {fabrics.UUIDNQNPrefix + "1234", "", "", "is not a UUID"},
	} {
		t.Run(name, func(t *testing.T) {
			user := t.TempDir()
			got, err := Host{}.identity(dirWith(t, c.nqn, c.id), in(user))
			left, _ := os.ReadDir(user)
			require.Empty(t, left, "the user's folder is for when the system has no identity")
			if c.wantFail != "" {
				require.ErrorIs(t, err, ErrIdentity)
				require.ErrorContains(t, err, c.wantFail)
				return
			}
			require.NoError(t, err)
			require.Equal(t, identity{c.want, id}, got)
		})
	}
}

func TestF23GivenIdentityIsPaired(t *testing.T) {
	id, err := ParseHostID(someUUID)
	require.NoError(t, err)
	system := dirWith(t, "nqn.2025-01.io.example:host", someUUID)
	user := func() (string, error) { return "", errors.New("the user's folder is not needed") }

	got, err := Host{ID: id}.identity(system, user)
	require.NoError(t, err)
	require.Equal(t, identity{fabrics.UUIDNQNPrefix + someUUID, id}, got, "the NQN is made of the ID")

	got, err = Host{NQN: fabrics.UUIDNQNPrefix + someUUID}.identity(system, user)
	require.NoError(t, err)
	require.Equal(t, id, got.id, "the ID is in the NQN")

	got, err = Host{NQN: "nqn.2025-01.io.example:host"}.identity(system, user)
	require.NoError(t, err)
	require.Equal(t, id, got.id, "the ID is the one that the system has for this NQN")

	_, err = Host{NQN: "nqn.2025-01.io.example:other"}.identity(system, user)
	require.ErrorIs(t, err, ErrIdentity, "another NQN with the system's ID would mix the two up")
	require.ErrorContains(t, err, "set Host.ID")

	_, err = Host{NQN: "nonsense nqn", ID: id}.identity(system, user)
	require.ErrorIs(t, err, ErrIdentity)
}

func TestF23IdentityIsMadeOnceAndKept(t *testing.T) {
	user := filepath.Join(t.TempDir(), "nvstage")
	system := filepath.Join(t.TempDir(), "none")
	const n = 16
	var (
		wg  sync.WaitGroup
		got [n]identity
		err [n]error
	)
	for i := range n { // as processes that start at the same time
		wg.Go(func() { got[i], err[i] = Host{}.identity(system, in(user)) })
	}
	wg.Wait()
	for i := range n {
		require.NoError(t, err[i])
		require.Equal(t, got[0], got[i])
	}
	require.False(t, got[0].id.IsZero())
	require.Equal(t, got[0].id.NQN(), got[0].nqn)

	left, e := os.ReadDir(user)
	require.NoError(t, e)
	require.Len(t, left, 2, "no temporary files")
	_, e = os.Stat(system)
	require.ErrorIs(t, e, os.ErrNotExist, "the system's folder is never written")

	again, e := Host{}.identity(system, in(user))
	require.NoError(t, e)
	require.Equal(t, got[0], again)
}

func TestIdentityThatCannotBeKept(t *testing.T) {
	_, err := Host{}.identity(t.TempDir(), func() (string, error) { return "", errors.New("$HOME is not defined") })
	require.ErrorIs(t, err, ErrIdentity)
	require.ErrorContains(t, err, "UniqueHost")

	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	_, err = Host{}.identity(t.TempDir(), in(filepath.Join(file, "nvstage")))
	require.ErrorIs(t, err, ErrIdentity)
}

func TestF23UniqueHost(t *testing.T) {
	a, b := UniqueHost(), UniqueHost()
	require.NotEqual(t, a, b)
	nqn, id, err := a.Identity()
	require.NoError(t, err)
	require.Equal(t, a.NQN, nqn)
	require.Equal(t, a.ID, id)
	require.Equal(t, byte(4), id[6]>>4, "UUID version")
}
