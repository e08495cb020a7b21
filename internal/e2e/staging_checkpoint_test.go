package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/queue"
	"github.com/nvstage/nvstage/staging"
)

// Checkpoints of tensors of every type on devices, written over two queues: the target's own checksum is that of the file that was made without
// package staging, and every way to load gives the tensors back.
func TestStagingCheckpoint(t *testing.T) {
	drive := func(t *testing.T, tg *target, from int) {
		for i, d := range drivers(t) {
			t.Run(string(d), func(t *testing.T) { checkpoints(t, tg, d, from+i) })
		}
	}
	for i, m := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		t.Run("nvmetest-"+m.String(), func(t *testing.T) { drive(t, stagingTarget(t, m), i) })
	}
	t.Run("nvmet", func(t *testing.T) { drive(t, realStagingTarget(t), 0) })
}

// checkpoints writes from every kind of device to one of the first two namespaces.
func checkpoints(t *testing.T, tg *target, d queue.Driver, turn int) {
	sub := tg.connect(t, nvmetcp.Options{Driver: d, NumIOQueues: 2, DataDigest: turn%2 == 0})
	require.Len(t, sub.Controller().Queues, 2)
	plain := makeTensors(rand.New(rand.NewPCG(uint64(turn), 9)), safetensorsTypes, 2, "model.embed_tokens.weight", "model.layers.%d.mlp.%s_%s.weight", "model.norm.weight", "lm_head.weight")
	meta := map[string]string{"format": "pt", "step": fmt.Sprint(turn)}
	for i, kind := range deviceKinds {
		space := tg.spaces[(turn+i)%2]
		ns, err := sub.Namespace(deadline(t), space.nsid)
		require.NoError(t, err)
		file := writeSafetensors(t, plain, meta, space.blockSize)
		m := &model{format: staging.FormatSafetensors, files: []modelFile{{"checkpoint", file}}, tensors: readSafetensors(t, file, 0)}

		t.Run(kind.name+"/save", func(t *testing.T) {
			stagingCase(t, kind, func(t *testing.T, pool *staging.Pool, devs [2]staging.Device) {
				putFile(t, ns, bytes.Repeat([]byte{0x55}, len(file)+1<<20)) // what was there before
				tensors, free := onDevices(t, plain, devs)
				defer free()
				s := staging.Saver{Pool: pool, Verify: true}
				h, err := s.Save(deadline(t), ns, tensors, meta)
				require.NoError(t, err)
				require.EqualValues(t, len(file), h.Size)
			})
		})
		stored(t, tg, ns, file)
		loadEveryWay(t, kind, m, false, []*nvmetcp.Namespace{ns}, func(t *testing.T, err error) { require.NoError(t, err) })

		gguf := ggufModel("gguf", [][]wanted{makeTensors(rand.New(rand.NewPCG(uint64(turn), 10)), ggmlTypes, 2, "token_embd.weight", "blk.%d.ffn_%s_%s.weight", "output_norm.weight", "output.weight")})
		frame := lz4Frame(t, gguf.files[0].bytes)
		t.Run(kind.name+"/copy", func(t *testing.T) {
			stagingCase(t, kind, func(t *testing.T, pool *staging.Pool, _ [2]staging.Device) {
				s := staging.Saver{Pool: pool, Verify: true}
				require.NoError(t, s.Copy(deadline(t), ns, bytes.NewReader(frame), int64(len(frame))))
			})
		})
		stored(t, tg, ns, frame)
	}
}

// onDevices puts tensors on both devices and the host in turn.
func onDevices(t *testing.T, list []wanted, devs [2]staging.Device) (tensors []staging.SaveTensor, free func()) {
	for i, w := range list {
		dtype, err := staging.ParseDType(w.dtype)
		require.NoError(t, err)
		x := staging.SaveTensor{TensorInfo: staging.TensorInfo{Name: w.name, DType: dtype, Shape: w.shape}}
		if i%3 == 2 {
			x.Memory = staging.HostBytes(w.data)
		} else {
			x.Device = devs[i%3]
			x.Memory, err = x.Device.Alloc(int64(len(w.data)))
			require.NoError(t, err)
			if len(w.data) > 0 {
				done := make(chan error, 1)
				x.Device.CopyIn(x.Memory, 0, w.data, func(err error) { done <- err })
				require.NoError(t, <-done)
			}
		}
		tensors = append(tensors, x)
	}
	return tensors, func() {
		for _, x := range tensors {
			x.Memory.Free()
		}
	}
}

// stored checks what is on the namespace: the file, and zeros up to the end of its last block.
func stored(t *testing.T, tg *target, ns *nvmetcp.Namespace, file []byte) {
	block := ns.BlockSize()
	want := append(bytes.Clone(file), make([]byte, (block-len(file)%block)%block)...)
	got := make([]byte, len(want))
	_, err := ns.ReadAtContext(deadline(t), got, 0)
	require.NoError(t, err)
	w := wanted{name: "the namespace", data: want}
	require.NoError(t, w.compare(got))
	sum := sha256.Sum256(want)
	require.Equal(t, hex.EncodeToString(sum[:]), tg.sha256(t, ns.NSID(), int64(len(want))), "the target has another file")
}
