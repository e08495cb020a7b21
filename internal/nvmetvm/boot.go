package nvmetvm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"
)

// bootTimeout bounds a boot, which takes 4 to 10 s on an idle machine.
const bootTimeout = 3 * time.Minute

// hostAddresses are the loopback addresses of ports 1 and 2, here and in the guest.
var hostAddresses = [2]string{"127.0.1.1", "127.0.2.1"}

// VM is a running target. Its methods may be called from any goroutine.
type VM struct {
	ports   [2]int
	cmd     *exec.Cmd
	console *tail // what the guest's kernel and scripts print
	stderr  *tail // what QEMU prints
	booted  time.Duration

	exited  chan struct{} // closed when QEMU has gone; exitErr is set by then
	exitErr error

	control net.Conn
	turn    chan struct{} // holds one token: whose turn it is to use the control channel
	answers chan answer
	token   uint64 // of the latest command; guarded by turn

	qmp        net.Conn
	qmpTurn    chan struct{}
	qmpReplies chan qmpReply
	qmpID      uint64

	readers sync.WaitGroup
	conns   []net.Conn
}

// errPortTaken says that somebody took a port between our looking and QEMU's listening.
var errPortTaken = errors.New("a port was taken")

// Boot starts the machine and returns it when the target listens. QEMU dies with this process at the latest.
func Boot(ctx context.Context, img Image) (*VM, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, bootTimeout, fmt.Errorf("not ready after %v", bootTimeout))
	defer cancel()
	for {
		vm, err := boot(ctx, img)
		if errors.Is(err, errPortTaken) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("nvmetvm: boot: %w", err)
		}
		return vm, nil
	}
}

func boot(ctx context.Context, img Image) (*VM, error) {
	began := time.Now()
	vm := &VM{
		console: &tail{max: 64 << 10}, stderr: &tail{max: 4 << 10}, exited: make(chan struct{}),
		turn: make(chan struct{}, 1), answers: make(chan answer),
		qmpTurn: make(chan struct{}, 1), qmpReplies: make(chan qmpReply),
	}
	for i, host := range hostAddresses {
		l, err := net.Listen("tcp4", net.JoinHostPort(host, "0"))
		if err != nil {
			return nil, err
		}
		vm.ports[i] = l.Addr().(*net.TCPAddr).Port
		if err := l.Close(); err != nil {
			return nil, err
		}
	}
	if err := vm.start(img); err != nil {
		return nil, err
	}
	if err := vm.ready(ctx); err != nil {
		taken := strings.Contains(vm.stderr.String(), "host forwarding rule")
		err = errors.Join(err, vm.Close())
		if taken {
			return nil, errPortTaken
		}
		return nil, fmt.Errorf("%w\n%s", err, vm.Console())
	}
	vm.booted = time.Since(began)
	return vm, nil
}

// start runs QEMU. Control channel, QMP and console are sockets that it inherits: nothing is left behind in the file
// system, whichever way it ends.
func (vm *VM) start(img Image) error {
	var theirs []*os.File
	defer func() {
		for _, f := range theirs {
			f.Close()
		}
	}()
	for range 3 {
		ours, file, err := socketPair()
		if err != nil {
			vm.closeConns()
			return err
		}
		vm.conns = append(vm.conns, ours)
		theirs = append(theirs, file)
	}
	vm.control, vm.qmp = vm.conns[0], vm.conns[1]

	kernel := []string{
		"console=ttyS0", "quiet", "panic=-1", "mitigations=off", "nokaslr", "tsc=reliable",
		"random.trust_cpu=on",   // seeds the random numbers at once, from +rdrand
		"cryptomgr.notests=1",   // self-tests take seconds
		"nvmet.addr1=127.0.1.1", // these become the guest's shell variables
		"nvmet.addr2=127.0.2.1",
		"nvmet.port1=" + strconv.Itoa(vm.ports[0]),
		"nvmet.port2=" + strconv.Itoa(vm.ports[1]),
	}
	netdev := "user,id=net,restrict=on"
	for i, host := range hostAddresses {
		netdev += fmt.Sprintf(",hostfwd=tcp:%s:%d-%s:%d", host, vm.ports[i], host, vm.ports[i])
	}
	vm.cmd = exec.Command(qemu, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot",
		"-M", "pc", "-accel", "tcg,thread=multi", "-smp", "1", "-m", "768",
		"-cpu", "qemu64,+rdrand,+aes,+ssse3,+pclmulqdq,+sse4.1,+sse4.2",
		"-kernel", img.Vmlinux, "-initrd", img.Initramfs, "-append", strings.Join(kernel, " "),
		"-netdev", netdev, "-device", "virtio-net-pci,romfile=,netdev=net",
		"-chardev", "socket,id=control,fd=3", "-device", "virtio-serial-pci", "-device", "virtserialport,chardev=control,name=nvmetvm.control",
		"-chardev", "socket,id=qmp,fd=4", "-mon", "chardev=qmp,mode=control",
		"-chardev", "socket,id=console,fd=5", "-serial", "chardev:console")
	vm.cmd.ExtraFiles = theirs
	vm.cmd.Stderr = vm.stderr
	vm.cmd.SysProcAttr = dieWithParent()

	started := make(chan error, 1)
	go func() {
		// The parent whose death kills QEMU is a thread: keep this one, so that nobody else's LockOSThread ends it.
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		err := vm.cmd.Start()
		started <- err
		if err == nil {
			vm.exitErr = vm.cmd.Wait()
			close(vm.exited)
		}
	}()
	if err := <-started; err != nil {
		vm.closeConns()
		return err
	}
	vm.readers.Go(func() { vm.readAnswers(vm.control) })
	vm.readers.Go(func() { vm.readQMP(vm.qmp) })
	vm.readers.Go(func() { _, _ = io.Copy(vm.console, vm.conns[2]) })
	return nil
}

// ready waits until the guest has built its default state.
func (vm *VM) ready(ctx context.Context) error {
	a, err := receive(ctx, vm, vm.answers)
	switch {
	case err != nil:
		return err
	case a.token != "ready" || a.status != 0:
		return fmt.Errorf("the guest failed to set the target up (status %d): %s", a.status, bytes.TrimSpace(a.output))
	}
	vm.turn <- struct{}{}
	if _, err := receive(ctx, vm, vm.qmpReplies); err != nil { // the greeting
		return err
	}
	vm.qmpTurn <- struct{}{}
	_, err = vm.QMP(ctx, "qmp_capabilities", nil)
	return err
}

// receive takes the next value of c, or says why none will come.
func receive[T any](ctx context.Context, vm *VM, c <-chan T) (v T, err error) {
	select {
	case v = <-c:
		return v, nil
	case <-vm.exited:
		return v, fmt.Errorf("QEMU has ended (%v): %s", vm.cmd.ProcessState, strings.TrimSpace(vm.stderr.String()))
	case <-ctx.Done():
		return v, context.Cause(ctx)
	}
}

// Addr returns "address:port" of the target's port with that ID, 1 or 2: what a host dials, and what the discovery log says.
func (vm *VM) Addr(port int) string {
	return net.JoinHostPort(hostAddresses[port-1], strconv.Itoa(vm.ports[port-1]))
}

// BootTime returns how long the boot took.
func (vm *VM) BootTime() time.Duration { return vm.booted }

// Console returns the latest 64 KiB of what the guest's kernel printed (warnings and worse), to show when a test fails.
func (vm *VM) Console() string { return vm.console.String() }

// Exited returns a channel that is closed when the machine has ended, by Close or by itself.
func (vm *VM) Exited() <-chan struct{} { return vm.exited }

// Close ends the machine, and returns when its process and connections are gone. Closing twice is harmless.
func (vm *VM) Close() error {
	err := vm.cmd.Process.Kill()
	if errors.Is(err, os.ErrProcessDone) {
		err = nil
	}
	<-vm.exited
	vm.closeConns()
	vm.readers.Wait()
	return err
}

func (vm *VM) closeConns() {
	for _, c := range vm.conns {
		c.Close()
	}
}
