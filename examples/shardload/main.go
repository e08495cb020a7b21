// Shardload loads model shards over NVMe/TCP into pinned staging memory, and reports how fast that went.
//
//	shardload [flags]                    load; without --traddr a made-up model from a target in this process
//	shardload put      [flags] FILE      write a shard to a namespace
//	shardload verify   [flags]           load, and compare with files or a list of checksums
//	shardload sums     FILE...           print a list of checksums
//	shardload discover [flags]           print a discovery log
//	shardload generate [flags] DIRECTORY write a made-up model to files
//
// The flags are those of nvme connect; each command explains its own with --help. The report goes to
// stdout, as text or with --json as one object (README.md has its fields), everything else to stderr.
//
// Exit status: 0 done, 1 it did not work or tensors differ, 2 wrong usage, 130 interrupted.
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
	"golang.org/x/term"
)

const (
	exitOK          = 0
	exitFailed      = 1
	exitUsage       = 2
	exitInterrupted = 130
)

// errInterrupted is the cause of a context that ended with SIGINT or SIGTERM.
var errInterrupted = errors.New("interrupted")

func main() {
	ctx, cancel := context.WithCancelCause(context.Background())
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	go func() {
		<-signals
		signal.Stop(signals) // the second one kills
		cancel(errInterrupted)
	}()
	os.Exit(run(ctx, os.Args[1:], console{os.Stdin, os.Stdout, os.Stderr}))
}

// console is where a command reads and writes.
type console struct {
	in       io.Reader
	out, err io.Writer
}

// command is one of the things that the program does.
type command struct {
	name  string
	args  string // what follows the flags
	about string
	flags func(*pflag.FlagSet) runner
}

// runner runs a command whose flags have been parsed.
type runner func(ctx context.Context, con console, args []string) error

func commands() []command {
	return []command{
		{"", "", "Load shards into pinned staging memory. Without --traddr: a made-up model, from a target in this process.", loadCommand},
		{"put", "FILE", "Write a file that is a shard (safetensors or GGUF, also in LZ4 frames) to a namespace.", putCommand},
		{"verify", "", "Load shards, and compare every tensor with files or a list of checksums.", verifyCommand},
		{"sums", "FILE...", "Print the SHA-256 of every tensor of files, for verify --sums.", sumsCommand},
		{"discover", "", "Print the discovery log at an address.", discoverCommand},
		{"generate", "DIRECTORY", "Write a made-up model, to put and verify, to a directory.", generateCommand},
	}
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, con console) int {
	all := commands()
	cmd := all[0]
	if len(args) > 0 && !strings.HasPrefix(args[0], "-") {
		found := false
		for _, c := range all[1:] {
			if c.name == args[0] {
				cmd, found = c, true
			}
		}
		if !found {
			return failed(ctx, con, usagef("%q is not a command", args[0]), "")
		}
		args = args[1:]
	}
	fs := pflag.NewFlagSet("shardload", pflag.ContinueOnError)
	fs.SortFlags = false
	fs.SetOutput(io.Discard)
	fs.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName { // older nvme-cli has --hdr_digest
		return pflag.NormalizedName(strings.ReplaceAll(name, "_", "-"))
	})
	do := cmd.flags(fs)
	switch err := fs.Parse(args); {
	case errors.Is(err, pflag.ErrHelp):
		return failed(ctx, con, help(con.out, all, &cmd, fs), cmd.name)
	case err != nil:
		return failed(ctx, con, usagef("%v", err), cmd.name)
	}
	if cmd.args == "" && fs.NArg() > 0 {
		return failed(ctx, con, usagef("unexpected argument %q; a command comes before its flags", fs.Arg(0)), cmd.name)
	}
	return failed(ctx, con, do(ctx, con, fs.Args()), cmd.name)
}

func help(w io.Writer, all []command, cmd *command, fs *pflag.FlagSet) error {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nUsage: %s\n\nFlags:\n%s", cmd.about, strings.Join(strings.Fields("shardload "+cmd.name+" [flags] "+cmd.args), " "), fs.FlagUsages())
	if cmd.name == "" {
		b.WriteString("\nCommands (each has --help):\n")
		for _, c := range all[1:] {
			fmt.Fprintf(&b, "  %-20s %s\n", c.name+" "+c.args, c.about)
		}
		b.WriteString("\nExit status: 0 done, 1 it did not work or tensors differ, 2 wrong usage, 130 interrupted.\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// usageError is a command line that makes no sense.
type usageError string

func (e usageError) Error() string { return string(e) }

func usagef(format string, args ...any) error { return usageError(fmt.Sprintf(format, args...)) }

// failed says what went wrong, in one line, and returns the exit status for it.
func failed(ctx context.Context, con console, err error, name string) int {
	var usage usageError
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, &usage):
		fmt.Fprintf(con.err, "shardload: %s (see %s)\n", usage, strings.Join(strings.Fields("shardload "+name+" --help"), " "))
		return exitUsage
	case errors.Is(context.Cause(ctx), errInterrupted):
		fmt.Fprintf(con.err, "shardload: %s\n", interruption(err))
		return exitInterrupted
	}
	fmt.Fprintf(con.err, "shardload: %s\n", explain(err))
	return exitFailed
}

// isTerminal tells whether a person sits at the other end.
func isTerminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}
