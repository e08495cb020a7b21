// Command nvmetvm boots a real Linux NVMe/TCP target in an emulator, for trying a host against: see package nvmetvm.
// It needs Debian on amd64, and root if QEMU is not installed yet. Lines on standard input run in the guest's shell.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"

	"github.com/nvstage/nvstage/internal/nvmetvm"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) (err error) {
	cache := flag.String("cache", "", "folder for the kernel (default: $NVSTAGE_NVMETVM_CACHE, or the user's cache folder)")
	flag.Parse()
	defer func() {
		if ctx.Err() != nil {
			err = nil // the user stopped it, whatever that broke off
		}
	}()
	img, err := nvmetvm.Prepare(ctx, nvmetvm.Config{CacheDir: *cache, Log: slog.New(slog.NewTextHandler(os.Stderr, nil))})
	if err != nil {
		return err
	}
	vm, err := nvmetvm.Boot(ctx, img)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, vm.Close()) }()

	fmt.Printf("%s is up (booted in %.1f s). Two ports:\n", img.Package, vm.BootTime().Seconds())
	for port := 1; port <= 2; port++ {
		host, service, _ := net.SplitHostPort(vm.Addr(port))
		fmt.Printf("  -a %s -s %s\n", host, service)
	}
	fmt.Printf(`Subsystems, on both:
  -n %s   namespaces 1 (512 B blocks), 2 (4 KiB, for port 1 only), 3 (RAM disk), 64 MiB each
  -n %s    namespace 1 (a file of 32 MiB)
  -n %s     namespace 1 (zoned, 4 KiB blocks, 64 MiB)
  -n %s  namespace 1 (64 MiB), only for the host
     -q %s
A line typed here runs in the target's shell, for example: ana 1 1 inaccessible
Ctrl-C ends it, and all that was written is gone.
`, nvmetvm.NQNMulti, nvmetvm.NQNFile, nvmetvm.NQNZNS, nvmetvm.NQNClosed, nvmetvm.HostNQNAllowed)

	go shell(ctx, vm)
	select {
	case <-ctx.Done():
		return nil
	case <-vm.Exited():
		return fmt.Errorf("the target's machine ended by itself; its console:\n%s", vm.Console())
	}
}

// shell runs the lines of standard input in the guest.
func shell(ctx context.Context, vm *nvmetvm.VM) {
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		out, err := vm.Run(ctx, lines.Text())
		fmt.Print(out)
		var exit *nvmetvm.ExitError
		switch {
		case errors.As(err, &exit):
			fmt.Printf("(status %d)\n", exit.Status)
		case err != nil && ctx.Err() == nil:
			fmt.Fprintln(os.Stderr, err)
		}
	}
}
