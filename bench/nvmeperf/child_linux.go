package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/nvstage/nvstage/internal/topo"
)

// childGrace is how long a child may take to end after it was asked to.
const childGrace = 3 * time.Second

// launcher starts children. It belongs to one goroutine, locked to a thread whose network the children
// share.
type launcher struct {
	self string // this program
}

// command is a child that ends with ctx, and in any case with this process.
func (l *launcher) command(ctx context.Context, name string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, name, args...)
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	c.WaitDelay = childGrace
	c.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	return c
}

// startOn starts a child all of whose threads run on one CPU.
func (l *launcher) startOn(cpu int, c *exec.Cmd) error {
	restore, err := topo.Pin(cpu)
	if err != nil {
		return err
	}
	defer restore()
	return c.Start()
}

// output runs a child to its end, and returns what it printed.
func (l *launcher) output(cpu int, c *exec.Cmd) ([]byte, error) {
	var out, errOut bytes.Buffer
	c.Stdout, c.Stderr = &out, &errOut
	if err := l.startOn(cpu, c); err != nil {
		return nil, err
	}
	if err := c.Wait(); err != nil {
		if lines := strings.TrimSpace(errOut.String()); lines != "" {
			err = fmt.Errorf("%w: %s", err, lines[strings.LastIndexByte(lines, '\n')+1:])
		}
		return nil, err
	}
	return out.Bytes(), nil
}

// server is a child that serves until it is stopped.
type server struct {
	cmd  *exec.Cmd
	stop context.CancelFunc
	addr string // that it printed
}

// serve starts a server of this program, and waits for the address that it prints.
func (l *launcher) serve(ctx context.Context, cpu int, args ...string) (*server, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &server{cmd: l.command(ctx, l.self, args...), stop: stop}
	s.cmd.Stderr = os.Stderr
	out, err := s.cmd.StdoutPipe()
	if err == nil {
		err = l.startOn(cpu, s.cmd)
	}
	if err != nil {
		stop()
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		if err == io.EOF {
			err = errors.New("it ended before it served")
		}
		return nil, fmt.Errorf("%s: %w", strings.Join(args, " "), errors.Join(err, s.close()))
	}
	s.addr = strings.TrimSpace(line)
	return s, nil
}

// shell starts a server that is a shell command, without waiting for anything. What it says goes to stderr.
func (l *launcher) shell(ctx context.Context, cpu int, command string) (*server, error) {
	ctx, stop := context.WithCancel(ctx)
	s := &server{cmd: l.command(ctx, "/bin/sh", "-c", "exec "+command), stop: stop}
	s.cmd.Stdout, s.cmd.Stderr = os.Stderr, os.Stderr
	if err := l.startOn(cpu, s.cmd); err != nil {
		stop()
		return nil, err
	}
	return s, nil
}

// pause keeps the server off its CPU, which another one needs; it may be one that polls.
func (s *server) pause() error { return s.cmd.Process.Signal(syscall.SIGSTOP) }

func (s *server) resume() error { return s.cmd.Process.Signal(syscall.SIGCONT) }

// close ends the server.
func (s *server) close() error {
	if err := s.resume(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	s.stop()
	err := s.cmd.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // as it was told
	}
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return nil
	}
	return err
}
