package main

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/staging"
)

// startDemo starts a target with two made-up models of about size bytes, on namespaces 1 and 2: the same tensors, other weights.
func startDemo(size int64) (*nvmetest.Target, error) {
	var spaces []nvmetest.Namespace
	for seed := range uint64(2) {
		shard, err := madeUp(size, seed+1)
		if err != nil {
			return nil, err
		}
		spaces = append(spaces, nvmetest.Namespace{BlockSize: demoBlock, Backend: nvmetest.MemoryOf(shard)})
	}
	return nvmetest.Start(nvmetest.Config{Subsystems: []nvmetest.Subsystem{{NQN: "nqn.2025-01.io.nvstage:serve", Namespaces: spaces}}})
}

const (
	demoBlock = 4096
	width     = 256 // of the made-up models
)

// madeUp is a safetensors shard of a decoder, in the alphabetical order that real ones have, filled up to whole blocks.
func madeUp(size int64, seed uint64) ([]byte, error) {
	bf16 := func(name string, shape ...int64) staging.TensorInfo {
		return staging.TensorInfo{Name: name, DType: staging.BF16, Shape: shape}
	}
	tensors := []staging.TensorInfo{bf16("lm_head.weight", 1000, width), bf16("model.embed_tokens.weight", 1000, width)}
	const layer = 2 * (2*4*width*width + width)
	for i := range max(1, size/layer) {
		p := fmt.Sprintf("model.layers.%d.", i)
		tensors = append(tensors, bf16(p+"input_layernorm.weight", width), bf16(p+"mlp.down_proj.weight", width, 4*width), bf16(p+"mlp.up_proj.weight", 4*width, width))
	}
	tensors = append(tensors, bf16("model.norm.weight", width))
	h, err := staging.NewHeader(tensors, map[string]string{"format": "pt"})
	if err != nil {
		return nil, err
	}
	var b bytes.Buffer
	b.Grow(int(h.Size) + 2*demoBlock)
	r := weights{rand.NewPCG(seed, 0)}
	if err := staging.WriteShard(&b, h, func(t *staging.TensorInfo) io.Reader { return io.LimitReader(r, t.Bytes()) }); err != nil {
		return nil, err
	}
	b.Write(make([]byte, -b.Len()&(demoBlock-1)))
	return b.Bytes(), nil
}

// weights reads random BF16 numbers of up to a hundredth or so, without infinities and NaNs.
type weights struct{ *rand.PCG }

func (w weights) Read(p []byte) (int, error) {
	var four [8]byte
	for b := p; len(b) > 0; {
		binary.LittleEndian.PutUint64(four[:], w.Uint64()&0x83FF83FF83FF83FF|0x3800380038003800)
		b = b[copy(b, four[:]):]
	}
	return len(p), nil
}
