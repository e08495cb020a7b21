package staging_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"

	"github.com/nvstage/nvstage/staging"
)

// twoTensors is a source with a small shard on it. With a namespace it would be
//
//	ns, err := sub.Namespace(ctx, 1)
func twoTensors() staging.Source {
	h, err := staging.NewHeader([]staging.TensorInfo{
		{Name: "embed.weight", DType: staging.BF16, Shape: []int64{1000, 64}},
		{Name: "norm.weight", DType: staging.F32, Shape: []int64{64}},
	}, map[string]string{"format": "pt"})
	if err != nil {
		log.Fatal(err)
	}
	var b bytes.Buffer
	err = staging.WriteShard(&b, h, func(t *staging.TensorInfo) io.Reader {
		return bytes.NewReader(make([]byte, t.Bytes()))
	})
	if err != nil {
		log.Fatal(err)
	}
	return &staging.ReaderSource{ReaderAt: bytes.NewReader(b.Bytes()), Bytes: int64(b.Len())}
}

func ExampleShard_Stream() {
	ctx := context.Background()
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 4 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	shard, err := staging.OpenShard(ctx, twoTensors())
	if err != nil {
		log.Fatal(err)
	}
	for t, err := range shard.Stream(ctx, pool, staging.Host{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Name, t.DType, t.Shape, t.Memory.Len())
		t.Release()
	}
	// Output:
	// embed.weight BF16 [1000 64] 128000
	// norm.weight F32 [64] 256
}

func ExampleLoader_Pieces() {
	ctx := context.Background()
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 128 << 10, BufferSize: 64 << 10})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	shard, err := staging.OpenShard(ctx, twoTensors())
	if err != nil {
		log.Fatal(err)
	}
	sum := map[string]int{}
	loader := staging.Loader{Pool: pool}
	for p, err := range loader.Pieces(ctx, shard.Plan()) {
		if err != nil {
			log.Fatal(err)
		}
		sum[p.Name] += len(p.Data)
		p.Release()
	}
	fmt.Println(sum)
	// Output: map[embed.weight:128000 norm.weight:256]
}

func ExampleLoader_Checksums() {
	ctx := context.Background()
	pool, err := staging.NewPool(staging.PoolConfig{})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	model, err := staging.OpenModel(ctx, twoTensors())
	if err != nil {
		log.Fatal(err)
	}
	loader := staging.Loader{Pool: pool}
	for sum, err := range loader.Checksums(ctx, model.Plan()) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%.4x %08x %s\n", sum.SHA256, sum.CRC32C, sum.Name)
	}
	// Output:
	// eec19bc6 2515f014 embed.weight
	// 5341e6b2 b872b190 norm.weight
}
