package nvmetvm

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"
)

// prepareTimeout bounds the first Start of a test binary.
const prepareTimeout = 5 * time.Minute

// shared is the machine of this test binary.
var shared struct {
	once sync.Once
	vm   *VM
	err  error
}

// Start returns the test binary's machine, in the state that [VM.Reset] gives: the first call prepares and boots it, the
// others reset it. Tests that use it must not run in parallel with each other.
//
// Where it cannot be had (or with -short) the test is skipped and says why; with NVSTAGE_REQUIRE_NVMET=1 in the
// environment, as in CI, it fails instead. If the test fails, the guest's console is logged.
//
// A package that calls Start has this in its tests, so that the machine ends in good order:
//
//	func TestMain(m *testing.M) { os.Exit(nvmetvm.Main(m)) }
func Start(t testing.TB) *VM {
	t.Helper()
	required := os.Getenv("NVSTAGE_REQUIRE_NVMET") == "1"
	if testing.Short() && !required {
		t.Skip("SKIPPED: no test against a real Linux nvmet with -short")
	}
	fresh := false
	shared.once.Do(func() {
		fresh = true
		shared.vm, shared.err = prepareAndBoot(t.Context(), Config{Log: slog.New(slog.NewTextHandler(t.Output(), nil))})
	})
	if shared.err != nil && required {
		t.Fatalf("NVSTAGE_REQUIRE_NVMET=1, but there is no real Linux nvmet: %v", shared.err)
	}
	if shared.err != nil {
		t.Skipf("SKIPPED, no real Linux nvmet: %v", shared.err)
	}
	vm := shared.vm
	if fresh {
		t.Logf("a real Linux nvmet listens on %s and %s (booted in %v)", vm.Addr(1), vm.Addr(2), vm.BootTime().Round(time.Millisecond))
	} else {
		ctx, cancel := context.WithTimeout(t.Context(), 2*runTimeout)
		defer cancel()
		if err := vm.Reset(ctx); err != nil {
			t.Fatalf("%v\nconsole:\n%s", err, vm.Console())
		}
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the target's console:\n%s", vm.Console())
		}
	})
	return vm
}

func prepareAndBoot(ctx context.Context, c Config) (*VM, error) {
	// Well below go test's own limit, whose end would hide the reason.
	ctx, cancel := context.WithTimeoutCause(ctx, prepareTimeout, fmt.Errorf("not prepared and booted within %v", prepareTimeout))
	defer cancel()
	img, err := Prepare(ctx, c)
	if err != nil {
		return nil, err
	}
	return Boot(ctx, img)
}

// Main runs the tests, ends the machine that [Start] booted, if it did, and returns the exit status.
func Main(m *testing.M) int {
	status := m.Run()
	if shared.vm != nil {
		if err := shared.vm.Close(); err != nil {
			slog.Error("the target did not end in good order", "error", err)
			status = max(status, 1)
		}
	}
	return status
}
