package nvme_test

import (
	"errors"
	"fmt"

	"github.com/nvstage/nvstage/pdu/nvme"
)

func ExampleRead() {
	sqe := nvme.Read(1, 0x100, 7) // 8 blocks of namespace 1
	fmt.Println(sqe.Opcode.NVMName(), sqe.SLBA(), sqe.Blocks(), sqe.Direction())
	// Output: Read 256 8 controller to host
}

func ExampleStatus() {
	var err error = nvme.StatusLBAOutOfRange.Status().WithDNR()
	fmt.Println(err)
	fmt.Println(errors.Is(err, nvme.StatusLBAOutOfRange))
	// Output:
	// NVMe status 0x080 LBA Out of Range, do not retry
	// true
}

func ExampleIdentifyNamespace() {
	ns := nvme.IdentifyNamespace{NSZE: 2048}
	ns.LBAF[0].LBADS = 12
	wire := ns.Append(nil)

	var got nvme.IdentifyNamespace
	if err := got.Decode(wire); err != nil {
		panic(err)
	}
	size, err := got.Bytes()
	fmt.Println(got.BlockSize(), size, err)
	// Output: 4096 8388608 <nil>
}
