// Doctor examines a Linux machine for what decides how fast, and whether, nvstage loads models on it: CPUs, NUMA nodes,
// network interfaces, GPUs, memory, sockets, io_uring, the host's identity. It needs no root, and changes nothing,
// except that a host without an identity gets one when it connects.
//
//	doctor [flags]                     examine the machine
//	doctor -a ADDRESS [flags]          and the way to a target
//	doctor -a ADDRESS -n NQN [flags]   and try to connect to it
//
// The flags are those of nvme connect, as shardload has them. The report goes to stdout, as text or with --json as one
// object (README.md has its fields), everything else to stderr. In the text ✔ is good, ✗ should be mended, with what to
// run under it, and – does not matter or is not known.
//
// Exit status: 0 good, or only advice; 1 something keeps the library from working (with --strict: any ✗), or the machine
// could not be examined; 2 wrong usage; 130 interrupted.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/pflag"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr, examine)
	stop()
	os.Exit(status)
}

// run is the program, with a way to examine a machine: it returns the exit status.
func run(ctx context.Context, args []string, out, errs io.Writer, examine func(context.Context, *flags) (*report, error)) int {
	var f flags
	fs := pflag.NewFlagSet("doctor", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName { // older nvme-cli has --host_traddr
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	f.add(fs)
	err := fs.Parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprintf(out, "Examine this machine: CPUs, NUMA, network, GPUs, memory, limits, and what to do about them.\n\n"+
			"Usage: doctor [flags]\n\nFlags:\n%s\nExit status: 0 good, or only advice; 1 something keeps the library from working (with --strict: any ✗),\n"+
			"or the machine could not be examined; 2 wrong usage; 130 interrupted.\n", fs.FlagUsages())
		return exitOK
	case err == nil && fs.NArg() > 0:
		err = fmt.Errorf("unexpected argument %q", fs.Arg(0))
	case err == nil:
		err = f.check()
	}
	if err != nil {
		fmt.Fprintf(errs, "doctor: %v (see doctor --help)\n", err)
		return exitUsage
	}
	r, err := examine(ctx, &f)
	if ctx.Err() != nil {
		fmt.Fprintln(errs, "doctor: interrupted")
		return exitInterrupted
	}
	if err == nil {
		err = r.print(out, f.json)
	}
	if err != nil {
		fmt.Fprintf(errs, "doctor: %v\n", err)
		return exitFailed
	}
	if r.Verdict == verdictBlocked || f.strict && r.Verdict != verdictGood {
		return exitFailed
	}
	return exitOK
}
