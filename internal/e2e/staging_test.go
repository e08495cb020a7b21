package e2e

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/staging"
)

// stagingTarget is an in-process target with namespaces 1, 2 and 3 that answers some reads late, so that they complete in any order.
func stagingTarget(t *testing.T, m nvmetest.Mode) *target {
	const multi = "nqn.2025-01.io.example:staging"
	mem := map[uint32][]byte{}
	sub := nvmetest.Subsystem{NQN: multi}
	tg := &target{name: "nvmetest " + m.String(), multi: multi}
	for i, block := range []int{512, 4096, 512} {
		nsid := uint32(i + 1)
		mem[nsid] = make([]byte, nsSize)
		sub.Namespaces = append(sub.Namespaces, nvmetest.Namespace{NSID: nsid, BlockSize: block, Backend: nvmetest.MemoryOf(mem[nsid])})
		tg.spaces = append(tg.spaces, namespace{nsid, block, nsSize})
	}
	tg.sha256 = func(_ *testing.T, nsid uint32, n int64) string {
		s := sha256.Sum256(mem[nsid][:n])
		return hex.EncodeToString(s[:])
	}
	tt, err := nvmetest.Start(nvmetest.Config{Mode: m, Subsystems: []nvmetest.Subsystem{sub}})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, tt.Close())
		require.Empty(t, tt.Violations(), "rules that the host broke")
	})
	tt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) (a nvmetest.Action) {
		if c.QID > 0 && c.SQE.Opcode == nvme.OpRead && rand.IntN(4) == 0 {
			a.Delay = time.Duration(rand.IntN(2000)) * time.Microsecond
		}
		return a
	}})
	tg.addr[0] = tt.Addr()
	return tg
}

// realStagingTarget is the real target with its third namespace, too.
func realStagingTarget(t *testing.T) *target {
	tg := realTarget(t)
	tg.spaces = append(tg.spaces, namespace{3, 512, nsSize})
	return tg
}

// spacesOf are the namespaces that the files of a model go to.
func (tg *target) spacesOf(t *testing.T, sub *nvmetcp.Subsystem, m *model) []*nvmetcp.Namespace {
	var list []*nvmetcp.Namespace
	for i := range m.files {
		ns, err := sub.Namespace(deadline(t), tg.spaces[i].nsid)
		require.NoError(t, err)
		require.Equal(t, tg.spaces[i].blockSize, ns.BlockSize())
		list = append(list, ns)
	}
	return list
}

// putFile writes a file to the start of a namespace, with rubbish behind it.
func putFile(t *testing.T, ns *nvmetcp.Namespace, file []byte) {
	block := ns.BlockSize()
	room := bytes.Repeat([]byte{0xAA}, (len(file)/block+2)*block)
	copy(room, file)
	_, err := ns.WriteAtContext(deadline(t), room, 0)
	require.NoError(t, err)
	require.NoError(t, ns.Flush(deadline(t)))
}

// flipByte changes one byte of what is stored.
func flipByte(t *testing.T, ns *nvmetcp.Namespace, at int64) {
	block := make([]byte, ns.BlockSize())
	off := at - at%int64(len(block))
	_, err := ns.ReadAtContext(deadline(t), block, off)
	require.NoError(t, err)
	block[at-off] ^= 0x10
	_, err = ns.WriteAtContext(deadline(t), block, off)
	require.NoError(t, err)
}

// stagingCase opens devices and a pool and gives them to f, and checks that nothing is left of what it did.
func stagingCase(t *testing.T, kind deviceKind, f func(t *testing.T, pool *staging.Pool, devs [2]staging.Device)) {
	devs, held := kind.open(t)
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 2 << 20, BufferSize: 256 << 10, Debug: true, Devices: devs[:]})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, pool.Close()) })
	if kind.name != "host" {
		require.Len(t, pool.Info().Registered, 2, "%v", pool.Info())
	}
	before := goleak.IgnoreCurrent()
	f(t, pool, devs)
	require.Zero(t, pool.Out(), "buffers are still out")
	require.Zero(t, held(), "device memory is left over")
	goleak.VerifyNone(t, before)
}

// loadEveryWay loads the model that is on the namespaces in every way, and gives f what came of each.
func loadEveryWay(t *testing.T, kind deviceKind, m *model, compressed bool, spaces []*nvmetcp.Namespace, f func(t *testing.T, err error)) {
	for _, way := range ways {
		if way.name == "pieces" && kind.name != "host" {
			continue // no device takes part
		}
		t.Run(kind.name+"/"+way.name, func(t *testing.T) {
			stagingCase(t, kind, func(t *testing.T, pool *staging.Pool, devs [2]staging.Device) {
				srcs := make([]staging.Source, len(spaces))
				for i, ns := range spaces {
					srcs[i] = ns
				}
				opened := m.open(t, compressed, srcs)
				err := way.load(&loading{ctx: deadline(t), want: m, plan: opened.Plan(), loader: &staging.Loader{Pool: pool}, devs: devs})
				f(t, err)
			})
		})
	}
}

// stagingTable loads every model, plain and compressed, to every kind of device in every way, with drivers, numbers of queues and digests in turn.
// turn is whose turn it is at first.
func stagingTable(t *testing.T, tg *target, models []*model, turn int) {
	ds := drivers(t)
	for _, m := range models {
		for _, compressed := range []bool{false, true} {
			o := nvmetcp.Options{Driver: ds[turn%len(ds)], NumIOQueues: 1 + turn%3, HeaderDigest: turn%2 == 0, DataDigest: turn%4 < 2}
			turn++
			t.Run(fmt.Sprintf("%s/lz4=%v/%s", m.name, compressed, o.Driver), func(t *testing.T) {
				spaces := tg.spacesOf(t, tg.connect(t, o), m)
				for i, ns := range spaces {
					file := m.files[i].bytes
					if compressed {
						file = lz4Frame(t, file)
					}
					putFile(t, ns, file)
				}
				for _, kind := range deviceKinds {
					loadEveryWay(t, kind, m, compressed, spaces, func(t *testing.T, err error) { require.NoError(t, err) })
				}
			})
		}
	}
}

// Every type of every format comes bit by bit as it is in the files, over NVMe/TCP, in every way that there is to load it.
func TestStagingEveryDType(t *testing.T) {
	models := stagingModels(t, 6)
	require.Greater(t, len(models[0].files[0].bytes), 4<<20, "the frame has only one block")
	for i, m := range []nvmetest.Mode{nvmetest.ModeNVMET, nvmetest.ModeSPDK, nvmetest.ModeStrict} {
		t.Run("nvmetest-"+m.String(), func(t *testing.T) { stagingTable(t, stagingTarget(t, m), models, i) })
	}
	t.Run("nvmet", func(t *testing.T) { stagingTable(t, realStagingTarget(t), stagingModels(t, 2), 0) })
}

// One wrong byte on the device is noticed in every way, and where it is; so the comparisons above can fail.
func TestStagingNoticesAFlippedByte(t *testing.T) {
	tg := stagingTarget(t, nvmetest.ModeNVMET)
	m := stagingModels(t, 2)[0]
	spaces := tg.spacesOf(t, tg.connect(t, nvmetcp.Options{NumIOQueues: 2}), m)
	var w *wanted
	for i := range m.tensors {
		if x := &m.tensors[i]; w == nil || len(x.data) > len(w.data) {
			w = x
		}
	}
	at := len(w.data) * 2 / 3
	for _, kind := range deviceKinds {
		t.Run("plain", func(t *testing.T) {
			putFile(t, spaces[0], m.files[0].bytes)
			flipByte(t, spaces[0], w.begin+int64(at))
			loadEveryWay(t, kind, m, false, spaces, func(t *testing.T, err error) {
				require.ErrorContains(t, err, fmt.Sprintf("tensor %s: byte %d of %d is %#02x", w.name, at, len(w.data), w.data[at]^0x10))
			})
		})
		// The loader finds it, or the comparison: only what is read in order has a checksum.
		t.Run("lz4", func(t *testing.T) {
			frame := lz4Frame(t, m.files[0].bytes)
			putFile(t, spaces[0], frame)
			flipByte(t, spaces[0], int64(len(frame)/2))
			loadEveryWay(t, kind, m, true, spaces, func(t *testing.T, err error) { require.Error(t, err) })
		})
	}
}
