// Target serves NVMe/TCP for measurements: an nvmetest target in a process of its own, on a CPU of its own.
//
//	target [flags]
//
// It prints one line, "ADDRESS NQN", or with --json one object, once it listens, and serves until SIGINT or SIGTERM. What
// else there is to say goes to stderr. Exit status: 0 ended by a signal, 1 it did not work, 2 wrong usage.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"runtime"
	"runtime/pprof"
	"syscall"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o, err := parse(args)
	switch {
	case errors.Is(err, pflag.ErrHelp):
		fmt.Fprint(stdout, o.usage)
		return exitOK
	case err != nil:
		fmt.Fprintf(stderr, "target: %v; --help lists the flags\n", err)
		return exitUsage
	}
	if err := serve(ctx, o, stdout, stderr); err != nil {
		fmt.Fprintf(stderr, "target: %v\n", err)
		return exitFailed
	}
	return exitOK
}

// ready is what the program says when it listens.
type ready struct {
	Addr      string `json:"addr"` // host:port
	NQN       string `json:"nqn"`
	Size      int64  `json:"size"`       // bytes
	BlockSize int    `json:"block_size"` // bytes
	Backend   string `json:"backend"`
	Mode      string `json:"mode"`
	CPU       int    `json:"cpu"` // -1 = not pinned
	PID       int    `json:"pid"`
}

func serve(ctx context.Context, o *options, stdout, stderr io.Writer) (err error) {
	if o.cpu >= 0 {
		if err := pinProcess(o.cpu); err != nil {
			return err
		}
		runtime.GOMAXPROCS(1) // more threads than CPUs only take turns
	}
	backend, closeBackend, err := o.open()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, closeBackend()) }()
	target, err := nvmetest.Start(o.config(backend, slog.New(slog.NewTextHandler(stderr, &slog.HandlerOptions{Level: slog.LevelWarn}))))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, target.Close()) }()
	if o.profile != "" {
		f, err := os.Create(o.profile)
		if err != nil {
			return err
		}
		if err := pprof.StartCPUProfile(f); err != nil {
			return errors.Join(err, f.Close())
		}
		defer func() {
			pprof.StopCPUProfile()
			err = errors.Join(err, f.Close())
		}()
	}
	r := ready{
		Addr: target.Addr(), NQN: target.NQN(), Size: backend.Size(), BlockSize: o.blockSize,
		Backend: o.backend, Mode: o.mode, CPU: o.cpu, PID: os.Getpid(),
	}
	if o.json {
		err = json.NewEncoder(stdout).Encode(r)
	} else {
		_, err = fmt.Fprintf(stdout, "%s %s\n", r.Addr, r.NQN)
	}
	if err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}
