package nvmetest_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// A host writes and reads, and has kept to the rules.
func ExampleStart() {
	target, err := nvmetest.Start(nvmetest.Config{Mode: nvmetest.ModeStrict})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer target.Close()

	ctx := context.Background()
	sub, err := nvmetcp.UniqueHost().Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, nil)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	ns, err := sub.Namespace(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	block := make([]byte, 512)
	copy(block, "weights")
	if _, err := ns.WriteAt(block, 4096); err != nil {
		fmt.Println(err)
		return
	}
	got := make([]byte, 7)
	_, err = ns.ReadAt(got, 4096)
	fmt.Printf("%s %v %d\n", got, err, len(target.Violations()))
	// Output: weights <nil> 0
}

// The second read of an I/O queue fails.
func ExampleTarget_SetFaults() {
	target, err := nvmetest.Start(nvmetest.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer target.Close()
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Queue:   nvmetest.IOQueue,
		Opcodes: []nvme.Opcode{nvme.OpRead},
		Nth:     2,
		Count:   1,
		Do:      nvmetest.Action{Status: nvme.StatusLBAOutOfRange.Status().WithDNR()},
	}}})

	ctx := context.Background()
	sub, err := nvmetcp.UniqueHost().Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, &nvmetcp.Options{NumIOQueues: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer sub.Close()
	ns, err := sub.Namespace(ctx, 1)
	if err != nil {
		fmt.Println(err)
		return
	}
	buf := make([]byte, 512)
	for range 3 {
		_, err := ns.ReadAt(buf, 0)
		fmt.Println(errors.Is(err, nvme.StatusLBAOutOfRange))
	}
	// Output:
	// false
	// true
	// false
}
