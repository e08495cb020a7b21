package staging_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/staging"
)

func ExampleSaver_Save() {
	ctx := context.Background()
	target, err := nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{
		NQN: nvmetest.DefaultNQN, Namespaces: []nvmetest.Namespace{{NSID: 1, BlockSize: 4096, Backend: nvmetest.Memory(1 << 20)}},
	}}})
	if err != nil {
		log.Fatal(err)
	}
	defer target.Close()
	host := nvmetcp.UniqueHost()
	sub, err := host.Connect(ctx, nvmetcp.Target{Addr: target.Addr(), NQN: target.NQN()}, nil)
	if err != nil {
		log.Fatal(err)
	}
	defer sub.Close()
	ns, err := sub.Namespace(ctx, 1)
	if err != nil {
		log.Fatal(err)
	}
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	weights := make([]byte, 100*64*2)
	saver := staging.Saver{Pool: pool, Verify: true}
	h, err := saver.Save(ctx, ns, []staging.SaveTensor{{
		TensorInfo: staging.TensorInfo{Name: "embed.weight", DType: staging.BF16, Shape: []int64{100, 64}},
		Memory:     staging.HostBytes(weights),
	}}, map[string]string{"step": "1000"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(h.DataOffset, h.Size)

	shard, err := staging.OpenShard(ctx, ns)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(shard.Metadata["step"], shard.Tensors[0].Name, shard.Tensors[0].Shape)
	// Output:
	// 4096 16896
	// 1000 embed.weight [100 64]
}
