package nvmetcp

import (
	"context"
	"fmt"
	"time"

	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// keepAlive sends a Keep Alive every KATO/2, and ends the association when one is not answered
// within KATO.
//
// It sends them also when there is other traffic. With TBKAS that would do as well, but some targets
// count nothing but Keep Alive commands, and two small commands in five seconds cost nothing.
func (c *controller) keepAlive() {
	if c.kato == 0 {
		return
	}
	if c.identify.KAS == 0 {
		c.opts.Logger.Warn("controller has no keep alive: a silent loss shows only when a command times out", "subsystem", c.target.NQN, "addr", c.addr)
		return
	}
	c.tasks.Go(func() {
		t := time.NewTicker(c.kato / 2)
		defer t.Stop()
		for {
			select {
			case <-t.C:
			case <-c.ended:
				return
			}
			if c.closing.Load() { // a controller that shuts down takes no more of them
				return
			}
			if err := c.sendKeepAlive(); err != nil {
				if !c.closing.Load() {
					c.fail(err)
				}
				return
			}
		}
	})
}

func (c *controller) sendKeepAlive() error {
	ctx, cancel := context.WithTimeoutCause(context.Background(), c.kato, fmt.Errorf("%w: no answer in %v", ErrTimeout, c.kato))
	defer cancel()
	cmd := queue.Command{SQE: nvme.KeepAlive()}
	start := time.Now()
	if err := c.admin.Do(ctx, &cmd); err != nil {
		return &queue.Error{Addr: c.addr, Op: "keep alive", Err: err}
	}
	c.rtt.Store(int64(time.Since(start)))
	return nil
}
