package nvmetvm

import (
	"bufio"
	"bytes"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// runTimeout is how long a command may run in the guest when its context does not end sooner.
const runTimeout = time.Minute

// ExitError says that a command ran in the guest and failed.
type ExitError struct {
	Command string
	Status  int    // the shell's; 137 when it ran out of time
	Output  string // standard output and error
}

func (e *ExitError) Error() string {
	return fmt.Sprintf("nvmetvm: guest command %q: status %d: %s", e.Command, e.Status, strings.TrimSpace(e.Output))
}

// answer is what the guest sends when a command has ended.
type answer struct {
	token  string
	status int
	output []byte
}

// maxOutput bounds what a command may print.
const maxOutput = 64 << 20

// Run runs a shell script (busybox sh -e: the first command that fails ends it) in the guest and returns its output,
// standard error included. The verbs of guest/nvmet.sh are at hand: "unlink 1 "+[NQNMulti], "ana 1 2 inaccessible",
// "disable", "allow" and so on; so are $C, nvmet's folder in configfs, and $addr1 $port1 $addr2 $port2. A script that
// fails is an [ExitError]. One runs at a time; it is killed after a minute, or when ctx's deadline has passed.
func (vm *VM) Run(ctx context.Context, script string) (string, error) {
	if _, err := receive(ctx, vm, vm.turn); err != nil {
		return "", fmt.Errorf("nvmetvm: guest command %q: waiting for the one before: %w", script, err)
	}
	defer func() { vm.turn <- struct{}{} }()
	limit := runTimeout
	if deadline, ok := ctx.Deadline(); ok {
		limit = min(limit, time.Until(deadline))
	}
	vm.token++
	token := strconv.FormatUint(vm.token, 10)
	seconds := max(1, int(limit.Round(time.Second)/time.Second))
	_, err := fmt.Fprintf(vm.control, "%s %d %s\n", token, seconds, base64.StdEncoding.EncodeToString([]byte(script)))
	for err == nil {
		var a answer
		if a, err = receive(ctx, vm, vm.answers); err == nil && a.token == token { // else of a command that was given up
			if a.status != 0 {
				return string(a.output), &ExitError{Command: script, Status: a.status, Output: string(a.output)}
			}
			return string(a.output), nil
		}
	}
	return "", fmt.Errorf("nvmetvm: guest command %q: %w", script, err)
}

// readAnswers delivers what the guest sends, until the connection ends.
func (vm *VM) readAnswers(c net.Conn) {
	r := bufio.NewReader(c)
	for {
		header, err := r.ReadSlice('\n')
		if err != nil {
			return
		}
		var a answer
		var size int
		if _, err := fmt.Fscan(bytes.NewReader(header), &a.token, &a.status, &size); err != nil || size < 0 || size > maxOutput {
			fmt.Fprintf(vm.stderr, "nvmetvm: the guest sent %q on the control channel\n", header)
			return
		}
		a.output = make([]byte, size)
		if _, err := io.ReadFull(r, a.output); err != nil {
			return
		}
		select {
		case vm.answers <- a:
		case <-vm.exited:
			return
		}
	}
}

// SHA256 returns, in hexadecimal, the guest's own sha256sum of n bytes at offset off of one of its block devices or
// files, read from the device and not from the guest's page cache.
func (vm *VM) SHA256(ctx context.Context, dev string, off, n int64) (string, error) {
	out, err := vm.Run(ctx, fmt.Sprintf("sha256 '%s' %d %d", dev, off, n))
	if err != nil {
		return "", err
	}
	sum, _, _ := strings.Cut(out, " ")
	if len(sum) != 64 {
		return "", fmt.Errorf("nvmetvm: sha256 of %s: %q", dev, out)
	}
	return sum, nil
}

// Reset brings the target back to the state it booted in, whatever a test has done: it resumes the machine, sets the
// network link up, takes the whole configuration down, which ends every connection, and builds it anew. What the
// namespaces hold stays.
func (vm *VM) Reset(ctx context.Context) error {
	if err := vm.Resume(ctx); err != nil {
		return err
	}
	if err := vm.SetLink(ctx, true); err != nil {
		return err
	}
	_, err := vm.Run(ctx, "teardown; defaults")
	return err
}
