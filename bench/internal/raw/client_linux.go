package raw

import (
	"context"
	"fmt"
	"net"
	"runtime"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/bench/internal/measure"
	"github.com/nvstage/nvstage/internal/topo"
	"github.com/nvstage/nvstage/staging"
)

// client is a run against a server.
type client struct {
	cfg   Config
	s     *socket
	win   measure.Window
	bufs  [][]byte
	next  int
	lat   *measure.Latencies
	bytes int64 // of data, while the window was open
	calls int64 // while the window was open
}

// Run measures against the server at cfg.Addr. When ctx ends the result is of the time until then.
func Run(ctx context.Context, cfg Config) (*measure.Result, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	conn, err := (&net.Dialer{Timeout: helloTimeout}).DialContext(ctx, "tcp", cfg.Addr)
	if err != nil {
		return nil, fmt.Errorf("%w; is nvmeperf raw serve running there?", err)
	}
	if _, err := conn.Write(cfg.hello()); err != nil {
		conn.Close()
		return nil, err
	}
	c := &client{cfg: cfg, lat: measure.NewLatencies()}
	spin := time.Duration(-1)
	if cfg.Blocking {
		spin = 0
	}
	if c.s, err = take(conn, spin, c.win.Over); err != nil {
		return nil, err
	}
	defer c.s.close()
	free, err := c.allocate()
	if err != nil {
		return nil, err
	}
	defer free()

	failed, done := make(chan struct{}), make(chan error, 1)
	go func() {
		err := c.loop()
		if !c.win.Over() {
			close(failed)
		}
		done <- err
	}()
	used := c.win.Run(ctx, cfg.Warmup, cfg.Time, failed, func(bool) {})
	wake := time.AfterFunc(100*time.Millisecond, func() { unix.Shutdown(c.s.fd, unix.SHUT_RDWR) }) // if it sleeps
	err = <-done
	wake.Stop()
	if err != nil {
		return nil, fmt.Errorf("raw server at %s: %w", cfg.Addr, err)
	}
	return c.result(used), nil
}

// allocate makes the buffers that take turns: as many as an NVMe queue would have.
func (c *client) allocate() (free func(), err error) {
	request, response := c.cfg.sizes()
	size := (max(request, response) + 4095) &^ 4095
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: int64(size) * int64(c.cfg.Depth), BufferSize: size})
	if err != nil {
		return nil, err
	}
	var out []staging.Buffer
	for range c.cfg.Depth {
		b, _ := pool.TryGet()
		out = append(out, b)
		c.bufs = append(c.bufs, b.Bytes())
	}
	return func() {
		for _, b := range out {
			b.Release()
		}
		pool.Close()
	}, nil
}

// loop moves bytes until the window is over.
func (c *client) loop() error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if c.cfg.CPU >= 0 {
		restore, err := topo.Pin(c.cfg.CPU)
		if err != nil {
			return err
		}
		defer restore()
	}
	step := c.stream
	if c.cfg.Kind == PingPong {
		step = c.pingPong
	}
	for !c.win.Over() {
		before := c.s.calls
		n, err := step()
		if c.win.Over() {
			return nil
		}
		if err != nil {
			return err
		}
		if c.win.Open() {
			c.bytes += int64(n)
			c.calls += c.s.calls - before
		}
	}
	return nil
}

func (c *client) stream() (int, error) {
	b := c.bufs[c.next][:c.cfg.Size]
	if c.next++; c.next == len(c.bufs) {
		c.next = 0
	}
	if c.cfg.Write {
		return len(b), c.s.writeFull(b)
	}
	return c.s.read(b)
}

func (c *client) pingPong() (int, error) {
	request, response := c.cfg.sizes()
	t := time.Now()
	if err := c.s.writeFull(c.bufs[0][:request]); err != nil {
		return 0, err
	}
	if err := c.s.readFull(c.bufs[0][:response]); err != nil {
		return 0, err
	}
	if c.win.Open() {
		c.lat.Add(time.Since(t))
	}
	return c.cfg.Size, nil
}

func (c *client) result(used measure.Used) *measure.Result {
	r := measure.Report{
		Command: "raw stream", MaxProcs: runtime.GOMAXPROCS(0), Target: measure.Target{Address: c.cfg.Addr},
		Work: measure.Work{Pattern: "read", ReadPercent: 100, Size: c.cfg.Size, Depth: c.cfg.Depth, Spin: "always", Warmup: c.cfg.Warmup.Seconds()},
	}
	if c.cfg.Kind == PingPong {
		r.Command, r.Work.Depth = "raw pingpong", 1
	}
	if c.cfg.Write {
		r.Work.Pattern, r.Work.ReadPercent = "write", 0
	}
	if c.cfg.Blocking {
		r.Work.Spin = "0s"
	}
	if c.cfg.CPU >= 0 {
		r.Work.CPUs = []int{c.cfg.CPU}
	}
	ops := c.bytes / int64(c.cfg.Size)
	r.Fill(used, ops)
	r.Latency = c.lat.Summary()
	r.Calls = measure.Ratio(float64(c.calls), float64(ops))
	return &measure.Result{Report: r, Latencies: c.lat}
}
