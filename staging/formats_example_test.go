package staging_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log"

	"github.com/nvstage/nvstage/staging"
)

// memory is a source of bytes. With a file it would be the same, with a namespace the namespace itself.
func memory(b []byte) staging.Source {
	return &staging.ReaderSource{ReaderAt: bytes.NewReader(b), Bytes: int64(len(b))}
}

func ExampleNewGGUF() {
	g, err := staging.NewGGUF([]staging.TensorInfo{
		{Name: "token_embd.weight", DType: staging.Q4_K, Shape: []int64{1000, 256}},
		{Name: "output_norm.weight", DType: staging.F32, Shape: []int64{256}},
	}, []staging.GGUFPair{
		{Key: "general.architecture", Value: "llama"},
		{Key: "llama.block_count", Value: uint32(32)},
		{Key: "tokenizer.ggml.tokens", Value: []string{"<s>", "</s>"}},
	})
	if err != nil {
		log.Fatal(err)
	}
	var file bytes.Buffer
	err = staging.WriteGGUF(&file, g, func(t *staging.TensorInfo) io.Reader {
		return bytes.NewReader(make([]byte, t.Bytes()))
	})
	if err != nil {
		log.Fatal(err)
	}
	shard, err := staging.OpenShard(context.Background(), memory(file.Bytes()))
	if err != nil {
		log.Fatal(err)
	}
	blocks, _ := shard.GGUF.Int("llama.block_count")
	fmt.Println(shard.Format, shard.GGUF.Version, shard.GGUF.Value("general.architecture"), blocks)
	for _, t := range shard.Tensors {
		fmt.Println(t.Name, t.DType, t.Shape, t.Bytes())
	}
	// Output:
	// gguf 3 llama 32
	// token_embd.weight Q4_K [1000 256] 144000
	// output_norm.weight F32 [256] 1024
}

func ExampleOpenIndexed() {
	index, err := staging.ParseIndex([]byte(`{
		"metadata": {"total_size": 128256},
		"weight_map": {
			"embed.weight": "model-00001-of-00001.safetensors",
			"norm.weight": "model-00001-of-00001.safetensors"
		}
	}`))
	if err != nil {
		log.Fatal(err)
	}
	sources := map[string]staging.Source{"model-00001-of-00001.safetensors": twoTensors()} // which namespace has which file
	model, err := staging.OpenIndexed(context.Background(), index, func(file string) (staging.Source, error) {
		src, ok := sources[file]
		if !ok {
			return nil, fmt.Errorf("no namespace has it")
		}
		return src, nil
	})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(len(model.Shards), model.Plan().Bytes() == index.TotalSize)
	// Output: 1 true
}

func ExampleRawShard() {
	shard, err := staging.RawShard(memory(make([]byte, 1<<20)), []staging.Range{
		{Name: "kv.0", Off: 4096, Len: 8192, DType: staging.BF16, Shape: []int64{64, 64}},
		{Name: "rest", Off: 65536, Len: 1000},
	})
	if err != nil {
		log.Fatal(err)
	}
	for _, t := range shard.Tensors {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	// Output:
	// kv.0 BF16 [64 64]
	// rest U8 [1000]
}

func ExampleOpenShardAs() {
	_, err := staging.OpenShardAs(context.Background(), twoTensors(), staging.FormatGGUF)
	fmt.Println(err)
	// Output: staging: not a shard: a GGUF file begins with "GGUF", here is "\xb8\x00\x00\x00"
}
