// Nvmeperf measures how fast NVMe/TCP targets can be read and written with nvmetcp, in the words of
// spdk_nvme_perf.
//
//	nvmeperf [flags]                 load a namespace of any NVMe/TCP target
//	nvmeperf compare [flags]         measure this library against the raw wire, by itself, in about a minute
//	nvmeperf raw serve [flags]       the other end of raw
//	nvmeperf raw stream [flags]      move bytes over a socket in one direction, without NVMe
//	nvmeperf raw pingpong [flags]    move them there and back, one I/O at a time
//
// Each explains its flags with --help. The report goes to stdout, as text or with --json as one object,
// everything else to stderr. ../README.md has the method, and what each figure means.
//
// Exit status: 0 done, 1 it did not work, 2 wrong usage, 130 interrupted.
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

// errInterrupted is the cause of a context that ended with SIGINT or SIGTERM.
var errInterrupted = errors.New("interrupted")

func main() { os.Exit(mainStatus()) }

// mainStatus is main; the tests' binary runs it too when it is the child of a comparison.
func mainStatus() int {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // the second one kills
		cancel(errInterrupted)
	}()
	return run(ctx, os.Args[1:], console{os.Stdin, os.Stdout, os.Stderr})
}

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
}

// command is one of the things that the program does.
type command struct {
	name   string
	about  string
	flags  func(*pflag.FlagSet) runner
	serves bool // until it is interrupted
	hidden bool
}

// runner runs a command whose flags have been parsed.
type runner func(ctx context.Context, con console) error

func commands() []command {
	return []command{
		{name: "", about: "Read and write a namespace of an NVMe/TCP target as fast as it goes.", flags: perfCommand},
		{name: "compare", about: "Measure this library against the raw wire, each in a process of its own, turn by turn.", flags: compareCommand},
		{name: "raw serve", about: "Serve raw stream and raw pingpong.", flags: rawServeCommand, serves: true},
		{name: "raw stream", about: "Move bytes in one direction over a socket without NVMe, as a measure of the wire.", flags: rawStreamCommand},
		{name: "raw pingpong", about: "Move what one NVMe/TCP command moves there and back over a socket without NVMe.", flags: rawPingPongCommand},
		{name: "null-target", about: "Serve a namespace that only measures, for compare.", flags: nullTargetCommand, serves: true, hidden: true},
	}
}

// find returns the command that args begin with, and the arguments that are left.
func find(args []string) (command, []string, error) {
	all := commands()
	words := 0
	for words < len(args) && !strings.HasPrefix(args[words], "-") {
		words++
	}
	name := strings.Join(args[:words], " ")
	for _, c := range all {
		if c.name == name {
			return c, args[words:], nil
		}
	}
	return all[0], nil, usagef("%q is not a command; they come before their flags", name)
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, con console) int {
	cmd, rest, err := find(args)
	if err != nil {
		return status(ctx, con, err, &cmd)
	}
	fs := pflag.NewFlagSet("nvmeperf", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	do := cmd.flags(fs)
	switch err := fs.Parse(rest); {
	case errors.Is(err, pflag.ErrHelp):
		return status(ctx, con, help(con.out, &cmd, fs), &cmd)
	case err != nil:
		return status(ctx, con, usagef("%v", err), &cmd)
	case fs.NArg() > 0:
		return status(ctx, con, usagef("unexpected argument %q; a command comes before its flags", fs.Arg(0)), &cmd)
	}
	return status(ctx, con, do(ctx, con), &cmd)
}

func help(w io.Writer, cmd *command, fs *pflag.FlagSet) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s\n\nFlags:\n%s", cmd.about, strings.Join(strings.Fields("nvmeperf "+cmd.name+" [flags]"), " "), fs.FlagUsages())
	if cmd.name == "" {
		b.WriteString("\nCommands (each has --help):\n")
		for _, c := range commands()[1:] {
			if !c.hidden {
				fmt.Fprintf(&b, "  %-14s %s\n", c.name, c.about)
			}
		}
		b.WriteString("\nExit status: 0 done, 1 it did not work, 2 wrong usage, 130 interrupted.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// usageError is a command line that makes no sense.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// status says what went wrong, in one line, and returns the exit status for it.
func status(ctx context.Context, con console, err error, cmd *command) int {
	var usage usageError
	switch {
	case errors.As(err, &usage):
		fmt.Fprintf(con.err, "nvmeperf: %s (see %s)\n", usage, strings.Join(strings.Fields("nvmeperf "+cmd.name+" --help"), " "))
		return exitUsage
	case err == nil && cmd.serves:
		return exitOK
	case errors.Is(context.Cause(ctx), errInterrupted):
		fmt.Fprintln(con.err, "nvmeperf: interrupted")
		return exitInterrupted
	case err != nil:
		fmt.Fprintf(con.err, "nvmeperf: %v\n", err)
		return exitFailed
	}
	return exitOK
}
