package staging_test

import (
	"context"
	"fmt"
	"log"

	"github.com/nvstage/nvstage/staging"
)

// model is a source of byte ranges named like the tensors of a small model, in the order of the alphabet.
func model() *staging.Shard {
	var ranges []staging.Range
	for i, name := range []string{"lm_head.weight", "model.embed_tokens.weight", "model.layers.0.mlp.down_proj.weight", "model.layers.1.mlp.down_proj.weight", "model.norm.weight"} {
		ranges = append(ranges, staging.Range{Name: name, Off: int64(i) << 16, Len: 1 << 16, DType: staging.BF16, Shape: []int64{128, 256}})
	}
	s, err := staging.RawShard(&staging.ReaderSource{ReaderAt: zeros{}, Bytes: 1 << 20}, ranges)
	if err != nil {
		log.Fatal(err)
	}
	return s
}

type zeros struct{}

func (zeros) ReadAt(p []byte, _ int64) (int, error) { return len(p), nil }

// What a forward pass needs first is read first.
func ExamplePlan_ByLayer() {
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 1 << 20})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	loader := &staging.Loader{Pool: pool, OnProgress: func(p staging.Progress) {
		if p.Layer != "" {
			fmt.Printf("%s is complete: %d of %d tensors\n", p.Layer, p.Tensors, p.PlanTensors)
		}
	}}
	for t, err := range loader.Stream(context.Background(), model().Plan().ByLayer(), staging.Host{}) {
		if err != nil {
			log.Fatal(err)
		}
		t.Release()
	}
	// Output:
	// embeddings is complete: 1 of 5 tensors
	// model.layers.0 is complete: 2 of 5 tensors
	// model.layers.1 is complete: 3 of 5 tensors
	// norm is complete: 4 of 5 tensors
	// head is complete: 5 of 5 tensors
}

// The second of four tensor-parallel ranks.
func ExamplePlan_Slice() {
	plan, err := model().Plan().Slice(1, 4, staging.TensorParallel)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range plan {
		read, err := staging.Plan{t}.ReadBytes()
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(t.Name, t.Shape, t.Bytes(), "bytes,", read, "read")
	}
	// Output:
	// lm_head.weight [32 256] 16384 bytes, 16384 read
	// model.embed_tokens.weight [32 256] 16384 bytes, 16384 read
	// model.layers.0.mlp.down_proj.weight [128 64] 16384 bytes, 65536 read
	// model.layers.1.mlp.down_proj.weight [128 64] 16384 bytes, 65536 read
	// model.norm.weight [128 256] 65536 bytes, 65536 read
}

// The second of two stages of a pipeline.
func ExamplePlan_Stage() {
	plan, err := model().Plan().Stage(1, 2)
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range plan {
		fmt.Println(t.Name)
	}
	// Output:
	// model.layers.1.mlp.down_proj.weight
	// model.norm.weight
	// lm_head.weight
}
