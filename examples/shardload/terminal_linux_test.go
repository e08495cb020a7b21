package main

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// terminal is a pseudo-terminal with a person at it.
type terminal struct {
	person *os.File // what is typed, and what is seen
	tty    *os.File // the program's side

	mu   sync.Mutex
	seen bytes.Buffer
	gone chan struct{}
}

func openTerminal(t *testing.T) *terminal {
	t.Helper()
	person, err := os.OpenFile("/dev/ptmx", os.O_RDWR|unix.O_NOCTTY, 0)
	if err != nil {
		t.Skipf("no pseudo-terminals here: %v", err)
	}
	require.NoError(t, unix.IoctlSetPointerInt(int(person.Fd()), unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(int(person.Fd()), unix.TIOCGPTN)
	require.NoError(t, err)
	tty, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|unix.O_NOCTTY, 0)
	require.NoError(t, err)
	term := &terminal{person: person, tty: tty, gone: make(chan struct{})}
	go func() {
		defer close(term.gone)
		b := make([]byte, 4096)
		for {
			n, err := person.Read(b)
			term.mu.Lock()
			term.seen.Write(b[:n])
			term.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		_ = tty.Close() // so that the read ends
		<-term.gone
		_ = person.Close()
	})
	return term
}

func (term *terminal) shows() string {
	term.mu.Lock()
	defer term.mu.Unlock()
	return term.seen.String()
}

// answers types an answer once a question is there.
func (term *terminal) answers(t *testing.T, question, answer string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(term.shows(), question) }, 10*time.Second, 5*time.Millisecond, "%s", term.shows())
	_, err := io.WriteString(term.person, answer)
	require.NoError(t, err)
}

func TestPutAsks(t *testing.T) {
	file := generated(t, "1M")[0]
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(1 << 20)})
	for _, c := range []struct {
		holds, answer string
		status        int
	}{
		{"1 MiB, empty at its start", "\n", exitFailed},
		{"1 MiB, empty at its start", "n\n", exitFailed},
		{"1 MiB, empty at its start", "y\n", exitOK},
		{"1 MiB, holds a shard of ", "no\n", exitFailed},
		{"1 MiB, holds a shard of ", "YES\n", exitOK},
	} {
		term := openTerminal(t)
		status := make(chan int)
		written := target.Stats().DataReceived
		go func() {
			status <- run(t.Context(), at(target, "put", "--nsid", "1", file), console{term.tty, io.Discard, term.tty})
		}()
		term.answers(t, "[y/N] ", c.answer)
		require.Equal(t, c.status, <-status, term.shows())
		require.Contains(t, term.shows(), "over namespace 1 of "+testNQN+" at "+target.Addr()+" ("+c.holds)
		if c.status != exitOK {
			require.Eventually(t, func() bool { return strings.Contains(term.shows(), "nothing was written: not confirmed") }, 5*time.Second, time.Millisecond)
			require.Less(t, target.Stats().DataReceived-written, uint64(4096), "only Connects")
		}
	}
	succeeds(t, at(target, "verify", "--file", file)...)
}

func TestInterruptedQuestion(t *testing.T) {
	file := generated(t, "1M")[0]
	target := startTarget(t, nvmetest.ModeNVMET, nvmetest.Namespace{BlockSize: 512, Backend: nvmetest.Memory(1 << 20)})
	term := openTerminal(t)
	cmd := program(t, at(target, "put", "--nsid", "1", file)...)
	cmd.Stdin, cmd.Stderr = term.tty, term.tty
	require.NoError(t, cmd.Start())
	require.Eventually(t, func() bool { return strings.Contains(term.shows(), "[y/N] ") }, 10*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(os.Interrupt))
	require.Error(t, cmd.Wait())
	require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode())
	require.Eventually(t, func() bool { return strings.Contains(term.shows(), "\nshardload: interrupted\r\n") }, 5*time.Second, 5*time.Millisecond, "%q", term.shows())
}

func TestProgressBar(t *testing.T) {
	target := modelTarget(t, 32<<20, 20*time.Millisecond)
	term := openTerminal(t)
	var out bytes.Buffer
	require.Equal(t, exitOK, run(t.Context(), at(target, ""), console{strings.NewReader(""), &out, term.tty}))
	require.Eventually(t, func() bool { return strings.Contains(term.shows(), "%") }, 5*time.Second, 5*time.Millisecond)
	require.Contains(t, term.shows(), "loading")
	require.NotContains(t, term.shows(), "shardload: loaded", "lines are for where no terminal is")
	require.Contains(t, out.String(), "32 MiB in ")
}
