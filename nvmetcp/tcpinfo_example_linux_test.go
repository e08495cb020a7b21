package nvmetcp_test

import (
	"fmt"
	"log"
)

func ExampleSubsystem_TCPInfo() {
	target := serve()
	defer target.Close()
	sub, _ := connect(target)
	defer sub.Close()

	infos, err := sub.TCPInfo()
	if err != nil {
		log.Fatal(err)
	}
	for _, i := range infos[:2] { // what is lost shows here
		fmt.Println("queue", i.QID, "sent again:", i.Retransmits, "out of order:", i.OutOfOrder)
	}
	// Output:
	// queue 0 sent again: 0 out of order: 0
	// queue 1 sent again: 0 out of order: 0
}
