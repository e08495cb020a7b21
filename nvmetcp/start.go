package nvmetcp

import (
	"context"
	"fmt"
	"time"

	"github.com/nvstage/nvstage/pdu/fabrics"
)

const (
	readyPoll   = 100 * time.Millisecond // between reads of CSTS, as Linux does
	readyPoll0  = time.Millisecond       // the first one, doubling: most targets are ready at once
	readyMargin = time.Second            // on top of what the controller says it needs
)

// start enables the controller: CAP, VS, CC.EN, CSTS.RDY.
func (c *controller) start(ctx context.Context) error {
	v, err := c.getProperty(ctx, fabrics.PropertyCAP)
	if err != nil {
		return err
	}
	c.cap = fabrics.CAP(v)
	if v, err = c.getProperty(ctx, fabrics.PropertyVS); err != nil {
		return err
	}
	c.vs = fabrics.VS(v)
	limit, err := c.readyLimit(ctx)
	if err != nil {
		return err
	}
	if v, err = c.getProperty(ctx, fabrics.PropertyCC); err != nil {
		return err
	}
	if cc := fabrics.CC(v); cc.EN() { // not after a dynamic Connect, says the specification
		if err := c.setCC(ctx, cc.WithEN(false)); err != nil {
			return err
		}
		if err := c.await(ctx, "disable", limit, func(s fabrics.CSTS) bool { return !s.RDY() }); err != nil {
			return err
		}
	}
	cc, err := c.configuration()
	if err != nil {
		return c.wrap("enable", 0, err)
	}
	if err := c.setCC(ctx, cc); err != nil {
		return err
	}
	c.cc = cc.WithEN(true)
	if err := c.setCC(ctx, c.cc); err != nil {
		return err
	}
	return c.await(ctx, "enable", limit, fabrics.CSTS.RDY)
}

// configuration chooses the command sets: NVM alone where there is it, since all that is needed is it.
func (c *controller) configuration() (fabrics.CC, error) {
	switch css := c.cap.CSS(); {
	case css&fabrics.CSSNVM != 0 || css == 0: // discovery controllers may have none
		return fabrics.CCDefault, nil
	case css&fabrics.CSSIOCS != 0:
		return fabrics.CCDefault.WithCSS(fabrics.CCCSSAll), nil
	case c.discovery:
		return fabrics.CCDefault.WithCSS(fabrics.CCCSSAdmin), nil
	default:
		return 0, fmt.Errorf("%w: CAP.CSS is 0x%02X: no I/O command set", ErrController, css)
	}
}

// readyLimit is how long the controller may take to become ready.
func (c *controller) readyLimit(ctx context.Context) (time.Duration, error) {
	limit := c.cap.TO()
	if c.cap.CRWMS() {
		v, err := c.getProperty(ctx, fabrics.PropertyCRTO)
		if err != nil {
			return 0, err
		}
		limit = max(limit, fabrics.CRTO(v).CRWMT())
	}
	return limit + readyMargin, nil
}

// await polls CSTS until done holds.
func (c *controller) await(ctx context.Context, op string, limit time.Duration, done func(fabrics.CSTS) bool) error {
	deadline := time.Now().Add(limit)
	for pause := readyPoll0; ; pause = min(2*pause, readyPoll) {
		v, err := c.getProperty(ctx, fabrics.PropertyCSTS)
		if err != nil {
			return err
		}
		switch csts := fabrics.CSTS(v); {
		case csts.CFS():
			return c.wrap(op, 0, fmt.Errorf("%w: it reports a fatal failure (CSTS.CFS); see the target's log", ErrController))
		case done(csts):
			return nil
		case time.Now().After(deadline):
			return c.wrap(op, 0, fmt.Errorf("%w: CSTS is still 0x%X after %v", ErrTimeout, uint32(csts), limit))
		}
		select {
		case <-time.After(pause):
		case <-ctx.Done():
			return c.wrap(op, 0, context.Cause(ctx))
		}
	}
}

func (c *controller) getProperty(ctx context.Context, p fabrics.Property) (uint64, error) {
	get := fabrics.GetProperty(p)
	cqe, err := c.do(ctx, "get property "+p.String(), get.SQE(), nil)
	if err != nil {
		return 0, err
	}
	return cqe.Result(), nil
}

func (c *controller) setCC(ctx context.Context, cc fabrics.CC) error {
	set := fabrics.SetProperty(fabrics.PropertyCC, uint64(cc))
	_, err := c.do(ctx, "set property CC", set.SQE(), nil)
	return err
}
