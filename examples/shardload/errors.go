package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/staging"
)

// partial is a transfer that ended early.
type partial struct {
	verb        string // "loaded"
	done, total int64  // bytes
	err         error
	hint        string
}

func (e *partial) Error() string {
	s := explain(e.err)
	if e.done > 0 {
		s += fmt.Sprintf("; %s %s of %s", e.verb, bytesText(e.done), bytesText(e.total))
	}
	if e.hint != "" {
		s += "; " + e.hint
	}
	return s
}

func (e *partial) Unwrap() error { return e.err }

// interruption says how far err came before a signal.
func interruption(err error) string {
	var p *partial
	if !errors.As(err, &p) {
		return "interrupted"
	}
	s := fmt.Sprintf("interrupted after %s of %s", bytesText(p.done), bytesText(p.total))
	if p.hint != "" {
		s += "; " + p.hint
	}
	return s
}

// explain is the text of err in one line, in the words of this program's flags.
func explain(err error) string {
	var (
		read *staging.ReadError
		op   *nvmetcp.OpError
		part *partial
	)
	if errors.As(err, &part) && err != error(part) {
		return explain(part)
	}
	text := err.Error()
	if errors.As(err, &read) {
		text = fmt.Sprintf("tensor %s: %v", nameText(read.Tensor), read.Err)
	}
	if errors.As(err, &op) {
		switch {
		case errors.Is(err, nvmetcp.ErrDigestsRefused):
			text = strings.Replace(text, op.Hint, "leave --hdr-digest and --data-digest out, or turn digests on at the target", 1)
		case strings.HasPrefix(op.Hint, "HostTraddr"):
			text = strings.Replace(text, "HostTraddr", "--host-traddr", 1)
		case strings.HasPrefix(op.Hint, "HostIface"):
			text = strings.Replace(text, "HostIface", "--host-iface", 1)
		}
	}
	text = strings.ReplaceAll(text, "nvmetcp: ", "")
	text = strings.ReplaceAll(text, "staging: ", "")
	return strings.ReplaceAll(strings.TrimSpace(text), "\n", "; ")
}
