// Serve is a small inference server: it loads a model from an NVMe/TCP target in the background, serves it over
// HTTP, and swaps to another one while requests run. It is to be read and copied from, not to infer with: what it
// computes is one matrix times one vector.
//
// Without --traddr the target is one in this process with two made-up models, so that this works by itself:
//
//	go run ./examples/serve &
//	curl -N localhost:8080/load                                # progress, as server-sent events
//	curl localhost:8080/readyz
//	curl localhost:8080/v1/tensors/model.norm.weight           # dtype, shape, SHA-256 of its bytes
//	curl -d '{"namespaces": [2]}' localhost:8080/load          # swap to the other model
//	curl localhost:8080/metrics
//
// README.md has all of it.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/spf13/pflag"

	"github.com/nvstage/nvstage/staging"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // the second signal kills
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// run is the program: it returns the exit status, 0 after a signal.
func run(ctx context.Context, args []string, out, errs io.Writer) int {
	f := &flags{}
	switch err := f.parse(args, out); {
	case errors.Is(err, pflag.ErrHelp):
		return 0
	case err != nil:
		fmt.Fprintf(errs, "serve: %v (see serve --help)\n", err)
		return 2
	}
	if err := serve(ctx, f, slog.New(slog.NewTextHandler(errs, nil))); err != nil {
		fmt.Fprintf(errs, "serve: %v\n", err)
		return 1
	}
	return 0
}

// serve serves until ctx ends. What it opened is closed in reverse order when it returns.
func serve(ctx context.Context, f *flags, log *slog.Logger) (err error) {
	closing := func(what string, close func() error) {
		if e := close(); e != nil {
			err = errors.Join(err, fmt.Errorf("closing %s: %w", what, e))
		}
	}
	// First of all, so that nobody who asks for the server's health is refused while the rest takes its time.
	listener, err := net.Listen("tcp", f.listen)
	if err != nil {
		return err
	}
	defer listener.Close()
	first := f.source()
	if f.traddr == "" {
		demo, e := startDemo(int64(f.size))
		if e != nil {
			return e
		}
		defer closing("the embedded target", demo.Close)
		first = source{Address: demo.Addr(), NQN: demo.NQN(), Namespaces: []uint32{1}}
	}
	dev, node, err := openDevice(f.device, f.gpu)
	if err != nil {
		return err
	}
	defer closing("the device", dev.Close)
	limit := &staging.Limit{Bytes: int64(f.memoryLimit)}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	p := &pool{cfg: staging.PoolConfig{Bytes: int64(f.memory), Devices: []staging.Device{dev}, Node: node, Limit: limit}, log: log, stop: stop}
	defer closing("the staging pool", p.close)

	m := newMetrics(p)
	l := newLoads(f.connector(), p, limit, dev, m, log)
	s := newServer(l, m, first, time.Duration(f.drain), log)
	log.Info("serving", "url", "http://"+listener.Addr().String(), "device", dev.Name(), "model", first)
	if _, err := l.start(ctx, first, false); err != nil {
		log.Error("the first model cannot be loaded", "err", err) // another one may be asked for
	}
	return errors.Join(s.run(ctx, listener), p.failure())
}
