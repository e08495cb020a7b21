package main

import (
	"errors"
	"fmt"
	"strings"
	"syscall"

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
	if errors.As(err, &part) {
		return part.Error()
	}
	text := err.Error()
	if errors.As(err, &read) {
		text = fmt.Sprintf("tensor %s: %v", nameText(read.Tensor), read.Err)
	}
	if errors.As(err, &op) && errors.Is(err, nvmetcp.ErrDigestsRefused) {
		text = strings.Replace(text, op.Hint, "leave --hdr-digest and --data-digest out, or turn digests on at the target", 1)
	}
	text = strings.TrimSpace(libraryWords.Replace(text))
	if errors.Is(err, syscall.EMFILE) {
		text += "; let this process open more files: ulimit -n 4096"
	}
	return text
}

// pinWords puts a reason for the choice of CPUs into the words of this program's flags.
var pinWords = strings.NewReplacer("listed in Options.CPUs", "listed with --pin")

// libraryWords replaces what errors say to programmers by what helps at a command line.
var libraryWords = strings.NewReplacer(
	"nvmetcp: ", "", "staging: ", "", "\n", "; ",
	"HostTraddr", "--host-traddr", "HostIface", "--host-iface",
	"list what is there with discovery", "shardload discover lists what is there",
	"discovery lists them", "shardload discover lists them",
	"PoolConfig.Bytes", "--memory",
	"in Config.Library or ", "in ",
	"set Host.ID to a UUID", "give with --hostid a UUID",
	"set Host.NQN and Host.ID, or use UniqueHost", "give --hostnqn and --hostid",
)
