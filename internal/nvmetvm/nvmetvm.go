// Package nvmetvm boots a real Linux NVMe/TCP target for tests: an unmodified Debian 6.12 kernel with nvmet-tcp, run by
// QEMU's software emulation (no KVM, no kernel module on this machine), reachable on loopback addresses.
//
// [Prepare] makes the kernel and its initramfs once, into a cache folder; [Boot] starts a machine in seconds; [Start] is
// both for a test, one machine per test binary. It takes Debian on amd64 and, to install what lacks, root.
//
// # The target
//
// Two ports: [VM.Addr] (1) on 127.0.1.1 and (2) on 127.0.2.1, with a discovery log that carries those addresses and, on
// port 1, a referral to 127.0.9.9:8009. Each exports four subsystems: [NQNMulti], [NQNFile], [NQNZNS] and [NQNClosed].
// On port 1 both ANA groups of [NQNMulti] are optimized; on port 2 group 1 is non-optimized and group 2 inaccessible.
//
// # What to expect of it
//
// It moves 12 to 50 MB/s and a few thousand I/O per second: good for conformance and faults, never for benchmarks. Keep
// a test to some tens of MB. QEMU's user network accepts every connection, also to a port that nobody listens on, and
// resets it afterwards: a dead port never shows as "connection refused". It listens with a backlog of 1, so that four
// connections dialled at the same instant can wait a second each.
package nvmetvm

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
)

// The subsystems. Their namespaces' data outlive [VM.Reset]; the devices are those that [VM.SHA256] takes.
const (
	// NQNMulti has namespaces 1 ([DevMulti1]), 2 ([DevMulti2], in ANA group 2) and 3 ([DevMulti3]), 64 MiB each.
	NQNMulti = "nqn.2025-01.io.nvmetvm:multi"
	// NQNFile has namespace 1, the file [DevFile1] of 32 MiB.
	NQNFile = "nqn.2025-01.io.nvmetvm:file"
	// NQNZNS has the zoned namespace 1, [DevZNS1]: 64 MiB in zones of 4 MiB, of which 4 may be open and 6 active.
	NQNZNS = "nqn.2025-01.io.nvmetvm:zns"
	// NQNClosed has namespace 1 ([DevClosed1], 64 MiB) and lets only the host [HostNQNAllowed] in.
	NQNClosed = "nqn.2025-01.io.nvmetvm:closed"

	// HostNQNAllowed is the host NQN that may connect to [NQNClosed].
	HostNQNAllowed = "nqn.2014-08.org.nvmexpress:uuid:11111111-1111-1111-1111-111111111111"

	DevMulti1  = "/dev/n512"  // 512 B blocks
	DevMulti2  = "/dev/n4k"   // 4 KiB blocks
	DevMulti3  = "/dev/ram0"  // 512 B blocks on a RAM disk
	DevFile1   = "/file.img"  // a file on tmpfs
	DevZNS1    = "/dev/zoned" // 4 KiB blocks
	DevClosed1 = "/dev/ram1"  // 512 B blocks on a RAM disk
)

// Config says where to prepare the target and whom to tell. The zero value works.
type Config struct {
	// CacheDir keeps what Prepare makes, about 60 MB for each version of this package; it may be removed at any time.
	// Default: $NVSTAGE_NVMETVM_CACHE, or nvstage/nvmetvm in the user's cache folder.
	CacheDir string
	// Log is told of slow steps (installs, downloads). Default: silence.
	Log *slog.Logger
}

func (c Config) cacheDir() (string, error) {
	if c.CacheDir != "" {
		return filepath.Abs(c.CacheDir)
	}
	if dir := os.Getenv("NVSTAGE_NVMETVM_CACHE"); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("nvmetvm: no cache folder, set NVSTAGE_NVMETVM_CACHE: %w", err)
	}
	return filepath.Join(dir, "nvstage", "nvmetvm"), nil
}

func (c Config) log() *slog.Logger {
	if c.Log != nil {
		return c.Log
	}
	return slog.New(slog.DiscardHandler)
}

// qemu is the emulator's program; the package that has it is qemuPackage.
const (
	qemu        = "qemu-system-x86_64"
	qemuPackage = "qemu-system-x86"
)

// Available returns nil where the target can probably be had (a download may still fail), else the reason why not.
// It only looks: nothing is installed or fetched.
func Available(c Config) error {
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		return fmt.Errorf("nvmetvm: needs Linux on amd64, this is %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	_, noQEMU := exec.LookPath(qemu)
	_, noAPT := exec.LookPath("apt-get")
	if noQEMU != nil && (noAPT != nil || os.Getuid() != 0) {
		return fmt.Errorf("nvmetvm: %s is not installed, and only root on Debian can have it installed here (apt-get install %s)", qemu, qemuPackage)
	}
	dir, err := c.cacheDir()
	if err != nil {
		return err
	}
	if _, prepared := cached(dir); !prepared && noAPT != nil {
		return errors.New("nvmetvm: no apt-get to fetch a Debian kernel with")
	}
	return nil
}
