package queue

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/nvstage/nvstage/pdu"
)

// initialize exchanges ICReq and ICResp on conn, within cfg.ICTimeout and ctx.
func initialize(ctx context.Context, conn net.Conn, cfg *Config) (pdu.ICResp, error) {
	var resp pdu.ICResp
	if err := conn.SetDeadline(time.Now().Add(cfg.ICTimeout)); err != nil {
		return resp, err
	}
	stop := context.AfterFunc(ctx, func() { conn.SetDeadline(time.Unix(1, 0)) })
	err := exchangeIC(conn, cfg, &resp)
	if !stop() {
		err := context.Cause(ctx) // whatever that broke off; the deadline may be in the past by now
		return resp, fmt.Errorf("%w before ICResp came; does an NVMe/TCP controller listen there?", err)
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return resp, fmt.Errorf("%w: no ICResp in %v; does an NVMe/TCP controller listen there?", ErrTimeout, cfg.ICTimeout)
	}
	if err != nil {
		return resp, err
	}
	return resp, conn.SetDeadline(time.Time{})
}

func exchangeIC(conn net.Conn, cfg *Config, resp *pdu.ICResp) error {
	req := pdu.ICReq{HPDA: cfg.HPDA, DGST: cfg.Digests, MAXR2T: cfg.MaxR2T}
	if _, err := conn.Write(req.Append(nil)); err != nil {
		return err
	}
	var (
		buf [pdu.MaxTermReqLen]byte
		h   pdu.CommonHeader
		f   pdu.Framing
	)
	if _, err := io.ReadFull(conn, buf[:pdu.CommonHeaderLen]); err != nil {
		return closedDuring("the wait for ICResp", err)
	}
	h.Decode(buf[:])
	if err := f.Check(h); err != nil {
		err = refuse(conn, err)
		if h.Type.HeaderLen() == 0 {
			err = fmt.Errorf("%w; does an NVMe/TCP controller listen there? It says %q", err, buf[:pdu.CommonHeaderLen])
		}
		return err
	}
	b := buf[:h.PLEN] // Check has bounded it
	if _, err := io.ReadFull(conn, b[pdu.CommonHeaderLen:]); err != nil {
		return closedDuring("ICResp", err)
	}
	if h.Type == pdu.TypeC2HTermReq {
		var t TermError
		if err := t.Decode(b); err != nil {
			return protocolError(err)
		}
		return &t
	}
	if err := resp.Decode(b); err != nil {
		return refuse(conn, err)
	}
	if resp.DGST != cfg.Digests {
		return fmt.Errorf("%w: asked for %v, got %v", ErrDigestsRefused, cfg.Digests, resp.DGST)
	}
	return nil
}

// refuse tells the controller what was wrong with its ICResp, as far as it still listens.
func refuse(conn net.Conn, err error) error {
	var pe *pdu.Error
	if errors.As(err, &pe) && pe.Reply() {
		t := pe.TermReq(pdu.Host)
		conn.Write(t.Append(nil))
	}
	return protocolError(err)
}

// protocolError marks err as the controller's breach of the protocol.
func protocolError(err error) error { return fmt.Errorf("%w: %w", ErrProtocol, err) }

// closedDuring gives an end of the stream the words that a person needs: nvmet closes without one. The
// result is no io.EOF, lest somebody who reads takes a lost connection for the end of what there is.
func closedDuring(what string, err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return fmt.Errorf("connection closed by the controller during %s: %w", what, io.ErrUnexpectedEOF)
	}
	return err
}
