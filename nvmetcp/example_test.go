package nvmetcp_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// serve runs a target with one namespace of 1 MiB in this process, for the examples.
func serve() *nvmetest.Target {
	disk := bytes.Repeat([]byte("0123456789abcdef"), 1<<16)
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
		NQN:        "nqn.2025-01.io.example:models",
		Namespaces: []nvmetest.Namespace{{BlockSize: 4096, Backend: nvmetest.MemoryOf(disk)}},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	return target
}

// connect connects to it, as ExampleHost_Connect shows.
func connect(target *nvmetest.Target) (*nvmetcp.Subsystem, *nvmetcp.Namespace) {
	ctx := context.Background()
	sub, err := nvmetcp.UniqueHost().Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, nil)
	if err != nil {
		log.Fatal(err)
	}
	ns, err := sub.Namespace(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	return sub, ns
}

func ExampleHost_Connect() {
	target := serve() // stands for a target at 192.0.2.10:4420
	defer target.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	host := nvmetcp.UniqueHost() // nvmetcp.Host{} is this machine, with the identity that it keeps
	sub, err := host.Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: "nqn.2025-01.io.example:models"}, &nvmetcp.Options{
		NumIOQueues:  2,
		HeaderDigest: true,
	})
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()

	ns, err := sub.Namespace(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	buf := make([]byte, 20)
	if _, err := ns.ReadAt(buf, 1000); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", buf)
	// Output: 89abcdef0123456789ab
}

func ExampleHost_Discover() {
	target := serve()
	defer target.Close()

	found, err := nvmetcp.UniqueHost().Discover(context.Background(), nvmetcp.Target{Addr: target.Addr()}, nil)
	if err != nil {
		log.Fatal(err)
	}
	for _, e := range found.Entries {
		fmt.Println(e.SUBTYPE, e.SubNQN)
	}
	// Output:
	// current discovery subsystem nqn.2014-08.org.nvmexpress.discovery
	// nvme subsystem nqn.2025-01.io.example:models
}

func ExampleHost_DiscoverAll() {
	target := serve()
	defer target.Close()
	first, err := nvmetest.Start(nvmetest.Config{ // which knows of the other one
		Subsystems: []nvmetest.Subsystem{{NQN: "nqn.2025-01.io.example:scratch"}},
		Referrals:  []nvmetest.Referral{{Addr: target.Addr()}},
	})
	if err != nil {
		log.Fatal(err)
	}
	defer first.Close()

	entries, err := nvmetcp.UniqueHost().DiscoverAll(context.Background(), nvmetcp.Target{Addr: first.Addr()}, nil)
	if err != nil {
		log.Print(err) // a referral could not be followed; the entries are good
	}
	for _, e := range entries {
		if e.SUBTYPE == fabrics.SUBTYPENVM {
			fmt.Println(e.SubNQN)
		}
	}
	// Output:
	// nqn.2025-01.io.example:scratch
	// nqn.2025-01.io.example:models
}

func ExampleTargetOf() {
	entry := fabrics.DiscoveryEntry{
		TRTYPE: fabrics.TRTYPETCP, SUBTYPE: fabrics.SUBTYPENVM,
		TRADDR: "2001:db8::10", TRSVCID: "4420", SubNQN: "nqn.2025-01.io.example:models",
	}
	target, err := nvmetcp.TargetOf(&entry)
	fmt.Println(target.Addr, target.NQN, err)
	// Output: [2001:db8::10]:4420 nqn.2025-01.io.example:models <nil>
}

func ExampleHost_Identity() {
	id, err := nvmetcp.ParseHostID("6ba7b810-9dad-41d1-80b4-00c04fd430c8")
	if err != nil {
		log.Fatal(err)
	}
	nqn, _, err := nvmetcp.Host{ID: id}.Identity()
	fmt.Println(nqn, err)
	// Output: nqn.2014-08.org.nvmexpress:uuid:6ba7b810-9dad-41d1-80b4-00c04fd430c8 <nil>
}

func ExampleUniqueHost() {
	a, b := nvmetcp.UniqueHost(), nvmetcp.UniqueHost()
	fmt.Println(a.NQN == b.NQN, a.NQN == a.ID.NQN())
	// Output: false true
}

func ExampleSubsystem_Namespaces() {
	target := serve()
	defer target.Close()
	sub, _ := connect(target)
	defer sub.Close()

	list, err := sub.Namespaces(context.Background())
	fmt.Println(list, err)
	// Output: [1] <nil>
}

func ExampleSubsystem_Namespace() {
	target := serve()
	defer target.Close()
	sub, _ := connect(target)
	defer sub.Close()

	ns, err := sub.Namespace(context.Background(), 1)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ns.Size(), ns.BlockSize(), ns.MaxIO())

	_, err = sub.Namespace(context.Background(), 7)
	fmt.Println(errors.Is(err, nvmetcp.ErrNoNamespace))
	// Output:
	// 1048576 4096 1048576
	// true
}

func ExampleSubsystem_Controller() {
	target := serve()
	defer target.Close()
	sub, _ := connect(target)
	defer sub.Close()

	info := sub.Controller()
	fmt.Println(info.Identify.MN, info.VS, info.KATO)
	for _, q := range info.Queues[:1] {
		fmt.Println("queue", q.QID, "holds", q.Depth, "commands, digests:", q.Digests)
	}
	// Output:
	// nvstage nvmetest 2.1 5s
	// queue 1 holds 127 commands, digests: none
}

func ExampleSubsystem_Stats() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	if _, err := ns.ReadAt(make([]byte, 10), 4090); err != nil { // lies on two blocks
		log.Fatal(err)
	}
	st := sub.Stats()
	fmt.Println("asked for", st.BytesAsked, "read", st.BytesRead)
	// Output: asked for 10 read 8192
}

func ExampleSubsystem_Done() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	for _, c := range target.Conns() {
		c.Reset() // as when the network fails
	}
	<-sub.Done()
	fmt.Println(errors.Is(sub.Err(), nvmetcp.ErrPathLost))
	_, err := ns.ReadAt(make([]byte, 10), 0)
	fmt.Println(errors.Is(err, nvmetcp.ErrPathLost), nvmetcp.Retryable(err))
	// Output:
	// true
	// true true
}

func ExampleNamespace_ReadAt() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	text, err := io.ReadAll(io.NewSectionReader(ns, 42, 30)) // a Namespace is an io.ReaderAt
	fmt.Printf("%s %v\n", text, err)
	n, err := ns.ReadAt(make([]byte, 100), ns.Size()-60)
	fmt.Println(n, err)
	// Output:
	// abcdef0123456789abcdef01234567 <nil>
	// 60 EOF
}

func ExampleNamespace_ReadAtContext() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()
	target.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{
		{Opcodes: []nvme.Opcode{nvme.OpRead}, Queue: nvmetest.IOQueue, Do: nvmetest.Action{Delay: time.Second}},
	}})

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := ns.ReadAtContext(ctx, make([]byte, 4096), 0) // the buffer is free when this returns
	fmt.Println(errors.Is(err, context.DeadlineExceeded))
	// Output: true
}

func ExampleNamespace_ReadVAt() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	header, body := make([]byte, 8), make([]byte, 24)
	n, err := ns.ReadVAt(context.Background(), [][]byte{header, body}, 4094)
	fmt.Printf("%s %s %d %v\n", header, body, n, err)
	// Output: ef012345 6789abcdef0123456789abcd 32 <nil>
}

func ExampleNamespace_ReadBatch() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	reads := []*nvmetcp.Read{
		{Off: 0, Buf: make([]byte, 4)},
		{Off: 1 << 20, Buf: make([]byte, 4)}, // past the end
		{Off: 70000, Buf: make([]byte, 4)},
	}
	err := ns.ReadBatch(context.Background(), reads)
	fmt.Println("first error:", errors.Is(err, nvmetcp.ErrRange))
	for _, r := range reads {
		fmt.Printf("%q %v\n", r.Buf, r.Err == nil)
	}
	// Output:
	// first error: true
	// "0123" true
	// "\x00\x00\x00\x00" false
	// "0123" true
}

func ExampleNamespace_WriteAt() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	block := bytes.Repeat([]byte("new "), ns.BlockSize()/4)
	_, err := ns.WriteAt(block, 8192)
	fmt.Println(err)
	_, err = ns.WriteAt(block, 100)
	fmt.Println(errors.Is(err, nvmetcp.ErrUnaligned))

	got := make([]byte, 12)
	_, err = ns.ReadAt(got, 8188)
	fmt.Printf("%s %v\n", got, err)
	// Output:
	// <nil>
	// true
	// cdefnew new  <nil>
}

func ExampleNamespace_Flush() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	ctx := context.Background()
	if _, err := ns.WriteAtContext(ctx, make([]byte, ns.BlockSize()), 0); err != nil {
		log.Fatal(err)
	}
	fmt.Println(ns.Flush(ctx))
	// Output: <nil>
}

// everySecond reads every second KiB of a namespace, and adds up the bytes.
type everySecond struct {
	next, end int64 // next is taken with an atomic add: the queues ask from several threads
	sum       atomic.Int64
}

func (f *everySecond) Attach(wake func()) {}

func (f *everySecond) Next() (*nvmetcp.Read, bool) {
	off := atomic.AddInt64(&f.next, 2048) - 2048
	if off >= f.end {
		return nil, true
	}
	return &nvmetcp.Read{Off: off, Buf: make([]byte, 1024)}, false
}

func (f *everySecond) Complete(r *nvmetcp.Read) {
	if r.Err != nil {
		log.Print(r.Err)
		return
	}
	var sum int64
	for _, b := range r.Buf {
		sum += int64(b)
	}
	f.sum.Add(sum)
}

func ExampleNamespace_Feed() {
	target := serve()
	defer target.Close()
	sub, ns := connect(target)
	defer sub.Close()

	feed := &everySecond{end: ns.Size()}
	err := ns.Feed(context.Background(), feed)
	fmt.Println(feed.sum.Load(), err)
	// Output: 36765696 <nil>
}

func ExampleOpError() {
	target := serve()
	defer target.Close()

	_, err := nvmetcp.UniqueHost().Connect(context.Background(), nvmetcp.Target{Addr: target.Addr(), NQN: "nqn.2025-01.io.example:model"}, nil)
	var oe *nvmetcp.OpError
	if errors.As(err, &oe) {
		fmt.Println(oe.Op, oe.Controller)
		fmt.Println(oe.Err)
	}
	fmt.Println(errors.Is(err, fabrics.StatusConnectInvalidParameters), nvmetcp.Retryable(err))
	// Output:
	// connect nqn.2025-01.io.example:model
	// Connect: NVMe status 0x182 Connect Invalid Parameters, do not retry: the controller does not accept SUBNQN
	// true false
}
