package raw

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// serverSpin is how long the server polls before it sleeps, for a client that sleeps: as long as the
// target of a comparison does, so that the two differ in nothing but NVMe.
const serverSpin = 50 * time.Microsecond

// helloTimeout bounds the wait for a client's first words.
const helloTimeout = 5 * time.Second

// Serve serves clients until ctx ends, and closes ln. failed is told of those that could not be served.
func Serve(ctx context.Context, ln net.Listener, failed func(error)) error {
	stop := context.AfterFunc(ctx, func() { ln.Close() })
	defer stop()
	var wg sync.WaitGroup
	defer wg.Wait()
	for {
		conn, err := ln.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		wg.Go(func() {
			if err := serve(ctx, conn); err != nil && ctx.Err() == nil {
				failed(fmt.Errorf("client %v: %w", conn.RemoteAddr(), err))
			}
		})
	}
}

func serve(ctx context.Context, conn net.Conn) error {
	b := make([]byte, helloLen)
	conn.SetDeadline(time.Now().Add(helloTimeout))
	_, err := io.ReadFull(conn, b)
	var cfg Config
	if err == nil {
		cfg, err = parseHello(b)
	}
	conn.SetDeadline(time.Time{})
	if err != nil {
		conn.Close()
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	spin := time.Duration(-1)
	if cfg.Blocking {
		spin = serverSpin
	}
	s, err := take(conn, spin, func() bool { return ctx.Err() != nil })
	if err != nil {
		return err
	}
	defer s.close()
	wake := context.AfterFunc(ctx, func() { unix.Shutdown(s.fd, unix.SHUT_RDWR) })
	defer wake()
	if err := cfg.answer(s); !gone(err) {
		return err
	}
	return nil
}

// answer does the server's part until the client has gone.
func (c *Config) answer(s *socket) error {
	if c.Kind == PingPong {
		request, response := c.sizes()
		in, out := make([]byte, request), make([]byte, response)
		for {
			if err := s.readFull(in); err != nil {
				return err
			}
			if err := s.writeFull(out); err != nil {
				return err
			}
		}
	}
	b := make([]byte, c.Size)
	for {
		var err error
		if c.Write {
			_, err = s.read(b)
		} else {
			err = s.writeFull(b)
		}
		if err != nil {
			return err
		}
	}
}

// gone tells whether err only says that the other side has left.
func gone(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE) || errors.Is(err, errStopped)
}
