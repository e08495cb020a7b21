package nvmetvm

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
)

// qmpReply is a message of QEMU's machine protocol: the greeting, or the answer to a command.
type qmpReply struct {
	ID     uint64          `json:"id"`
	Return json.RawMessage `json:"return"`
	Error  *struct {
		Class string `json:"class"`
		Desc  string `json:"desc"`
	} `json:"error"`
	Event string `json:"event"`
}

// QMP runs a command of QEMU's own control protocol and returns its result; args, if not nil, is marshalled to JSON.
func (vm *VM) QMP(ctx context.Context, execute string, args any) (json.RawMessage, error) {
	if _, err := receive(ctx, vm, vm.qmpTurn); err != nil {
		return nil, fmt.Errorf("nvmetvm: QMP %s: %w", execute, err)
	}
	defer func() { vm.qmpTurn <- struct{}{} }()
	vm.qmpID++
	request := struct {
		Execute   string `json:"execute"`
		Arguments any    `json:"arguments,omitempty"`
		ID        uint64 `json:"id"`
	}{execute, args, vm.qmpID}
	err := json.NewEncoder(vm.qmp).Encode(request)
	for err == nil {
		var r qmpReply
		if r, err = receive(ctx, vm, vm.qmpReplies); err == nil && r.ID == request.ID { // else of a command that was given up
			if r.Error != nil {
				return nil, fmt.Errorf("nvmetvm: QMP %s: %s: %s", execute, r.Error.Class, r.Error.Desc)
			}
			return r.Return, nil
		}
	}
	return nil, fmt.Errorf("nvmetvm: QMP %s: %w", execute, err)
}

// readQMP delivers what QEMU sends, events apart, until the connection ends.
func (vm *VM) readQMP(c net.Conn) {
	d := json.NewDecoder(c)
	for {
		var r qmpReply
		if err := d.Decode(&r); err != nil {
			return
		}
		if r.Event != "" {
			continue
		}
		select {
		case vm.qmpReplies <- r:
		case <-vm.exited:
			return
		}
	}
}

// SetLink plugs the guest's network cable in or out. Out, the peer falls silent: connections stay, nothing arrives.
// Back in, what was sent meanwhile arrives when it is sent again, up to some seconds later.
func (vm *VM) SetLink(ctx context.Context, up bool) error {
	_, err := vm.QMP(ctx, "set_link", map[string]any{"name": "net", "up": up})
	return err
}

// Pause stops the guest's CPU: the peer falls silent, and [VM.Run] waits. QEMU's network still acknowledges a little data.
func (vm *VM) Pause(ctx context.Context) error {
	_, err := vm.QMP(ctx, "stop", nil)
	return err
}

// Resume undoes [VM.Pause].
func (vm *VM) Resume(ctx context.Context) error {
	_, err := vm.QMP(ctx, "cont", nil)
	return err
}
