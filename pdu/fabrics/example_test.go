package fabrics_test

import (
	"errors"
	"fmt"

	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

func ExampleConnect() {
	connect := fabrics.Connect{QID: 0, SQSIZE: 31, KATO: 30_000}
	sqe := connect.SQE()
	fmt.Println(fabrics.Type(&sqe), sqe.Direction(), sqe.SGL.Length)
	// Output: Connect host to controller 1024
}

func ExampleConnectResponse_DecodeCQE() {
	cqe := nvme.CQE{Status: fabrics.StatusConnectInvalidHost.Status().WithDNR()}
	var resp fabrics.ConnectResponse
	err := resp.DecodeCQE(&cqe)
	fmt.Println(err)
	fmt.Println(errors.Is(err, fabrics.StatusConnectInvalidHost))
	// Output:
	// Connect: NVMe status 0x184 Connect Invalid Host, do not retry
	// true
}

func ExampleCAP() {
	c := fabrics.CAP(0x080000201E01007F)
	fmt.Println(int(c.MQES())+1, c.TO(), c.CRWMS())
	// Output: 128 15s true
}

func ExampleValidateNQN() {
	fmt.Println(fabrics.ValidateNQN("nqn.2025-01.io.example:models"))
	fmt.Println(fabrics.ValidateNQN("nqn.2025-01.io.example"))
	// Output:
	// <nil>
	// fabrics: NQN "nqn.2025-01.io.example" has no colon after the domain
}
