package staging

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// crashCase is a save over something older.
type crashCase struct {
	block   int
	tensors []SaveTensor
	meta    map[string]string
	device  []byte // before
	old     []byte // the shard in it, if any
	new     []byte // what is to be there
}

// newCrashCase makes one: a header of less than a block or of many, few data or many, and an older shard of the same
// layout, of another one, something else, or nothing.
func newCrashCase(t testing.TB, r *rand.Rand) *crashCase {
	c := &crashCase{block: []int{512, 4096}[r.IntN(2)]}
	c.meta = map[string]string{"step": "2"}
	if r.IntN(2) == 0 {
		c.meta["pad"] = strings.Repeat("x", r.IntN(4*c.block))
	}
	for i := range 1 + r.IntN(5) {
		c.tensors = append(c.tensors, randomTensor(r, fmt.Sprint("t", i), r.IntN(6*c.block)))
	}
	c.new = imageOf(t, c.tensors, c.meta, c.block)
	room := len(c.new) + c.block*(8+r.IntN(4))
	c.device = make([]byte, room/c.block*c.block)
	switch r.IntN(4) {
	case 0: // an older checkpoint of the same model
		var older []SaveTensor
		for i := range c.tensors {
			older = append(older, randomTensor(r, c.tensors[i].Name, int(c.tensors[i].Memory.Len())))
		}
		meta := map[string]string{"step": "1"}
		for k, v := range c.meta {
			if k != "step" {
				meta[k] = v
			}
		}
		c.old = imageOf(t, older, meta, c.block)
	case 1: // a file that was copied here: a short header, and data in the same block
		var b bytes.Buffer
		h, err := NewHeader([]TensorInfo{{Name: "o", DType: U8, Shape: []int64{int64(6 * c.block)}}}, nil)
		require.NoError(t, err)
		require.NoError(t, WriteShard(&b, h, func(x *TensorInfo) io.Reader {
			return bytes.NewReader(randomTensor(r, "o", int(x.Bytes())).Memory.Bytes())
		}))
		c.old = b.Bytes()
	case 2: // a file system
		c.old = randomTensor(r, "", 8*c.block).Memory.Bytes()
		clear(c.old[:1024])
		binary.LittleEndian.PutUint32(c.old[1024:], erofsMagic)
	default:
		fillRandom(r, c.device)
		clear(c.device[:8])
	}
	copy(c.device, c.old)
	return c
}

const erofsMagic = 0xE0F5E1E2

func fillRandom(r *rand.Rand, b []byte) {
	for i := range b {
		b[i] = byte(r.Uint32())
	}
}

func randomTensor(r *rand.Rand, name string, n int) SaveTensor {
	b := make([]byte, n)
	fillRandom(r, b)
	return SaveTensor{TensorInfo: TensorInfo{Name: name, DType: U8, Shape: []int64{int64(n)}}, Memory: HostBytes(b)}
}

// imageOf is what a checkpoint is to look like, made without the code under test, but for the header's text.
func imageOf(t testing.TB, tensors []SaveTensor, meta map[string]string, block int) []byte {
	var infos []TensorInfo
	for i := range tensors {
		infos = append(infos, tensors[i].TensorInfo)
	}
	h, err := NewHeader(infos, meta)
	require.NoError(t, err)
	b, err := h.Append(nil)
	require.NoError(t, err)
	for len(b)%block != 0 {
		b = append(b, ' ')
	}
	binary.LittleEndian.PutUint64(b, uint64(len(b)-8))
	for i := range tensors {
		if tensors[i].Memory != nil {
			b = append(b, tensors[i].Memory.Bytes()...)
		}
	}
	return b
}

// found is what a reader takes for the content of a device.
type found int

const (
	none found = iota
	older
	newer
	torn
)

func (c *crashCase) find(image []byte) found {
	isNew, isOld := bytes.Equal(image[:len(c.new)], c.new), len(c.old) > 0 && bytes.Equal(image[:len(c.old)], c.old)
	_, err := OpenShard(context.Background(), &ReaderSource{ReaderAt: bytes.NewReader(image), Bytes: int64(len(image)), Block: c.block})
	switch {
	case err == nil && isNew:
		return newer
	case err == nil && isOld:
		return older
	case err == nil:
		return torn
	case !errors.Is(err, ErrNotShard):
		return torn // a good first block, and what it promises is not there
	}
	if binary.LittleEndian.Uint32(image[1024:]) != erofsMagic || bytes.Equal(image, c.device) && !isOld {
		return none
	}
	// A file system does not need what lies before its superblock.
	if len(c.old) > 0 && bytes.Equal(image[1024:len(c.old)], c.old[1024:]) {
		return older
	}
	return torn
}

// saver makes a saver with a small pool for c, and a device.
func (c *crashCase) saver(t testing.TB, r *rand.Rand) (*Saver, *cached) {
	d := newCached(t, c.block, c.device)
	d.seed, d.queues, d.deep, d.io = r.Uint64(), 1+r.IntN(3), 1+r.IntN(4), c.block*(1+r.IntN(10))
	return &Saver{Pool: newPool(t, 1+r.IntN(5), 4096*(1+r.IntN(3))), Verify: r.IntN(2) == 0}, d
}

// crashes tries all moments at which the power may go, some times each, and returns what was found.
func (c *crashCase) crashes(r *rand.Rand, d *cached, times int) (count [torn + 1]int) {
	p := 0.0
	keeps := []func(off int64) bool{
		func(int64) bool { return true },
		func(int64) bool { return false },
		func(off int64) bool { return off == 0 },
		func(off int64) bool { return off > 0 },
		func(int64) bool { return r.Float64() < p },
	}
	for n := range len(d.log) + 1 {
		for range times {
			p = r.Float64()
			for _, keep := range keeps {
				count[c.find(d.crash(n, r, keep))]++
			}
		}
	}
	return count
}

// Whenever the power goes, and whatever of the cache is lost, there is the new shard, whole, or the old one, or none.
func TestCheckpointCrash(t *testing.T) {
	var sum [torn + 1]int
	for seed := range uint64(60) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := newCrashCase(t, r)
		s, d := c.saver(t, r)
		_, err := s.Save(t.Context(), d, c.tensors, c.meta)
		require.NoError(t, err)
		require.Equal(t, newer, c.find(d.data))
		require.Equal(t, newer, c.find(d.crash(len(d.log), r, func(int64) bool { return false })), "not flushed when Save returns")
		count := c.crashes(r, d, 3)
		require.Zero(t, count[torn], "seed %d: %v", seed, count)
		for i, n := range count {
			sum[i] += n
		}
	}
	t.Logf("after a crash: %d none, %d old, %d new", sum[none], sum[older], sum[newer])
	for _, what := range []found{none, older, newer} {
		require.Positive(t, sum[what])
	}
}

// With a device that only says that it has flushed, this test finds torn shards: it can fail.
func TestCheckpointCrashIsSeen(t *testing.T) {
	var sum int
	for seed := range uint64(10) {
		r := rand.New(rand.NewPCG(seed, 7))
		c := newCrashCase(t, r)
		s, d := c.saver(t, r)
		d.lies = true
		_, err := s.Save(t.Context(), d, c.tensors, c.meta)
		require.NoError(t, err)
		sum += c.crashes(r, d, 3)[torn]
	}
	require.Positive(t, sum)
}

// Any write or flush may fail: that is an error, what is left is what the error says, and a crash after it tears nothing.
func TestCheckpointFailures(t *testing.T) {
	var lefts [LeftUncertain + 1]int
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 8))
		c := newCrashCase(t, r)
		for k, more := 1, true; more; k++ {
			for _, half := range []bool{false, true} {
				s, d := c.saver(t, r)
				d.fail, d.failHalf = k, half
				_, err := s.Save(t.Context(), d, c.tensors, c.meta)
				if more = d.ops >= k; !more {
					require.NoError(t, err)
					continue
				}
				var se *SaveError
				require.ErrorAs(t, err, &se)
				require.ErrorIs(t, err, errMedium)
				require.Zero(t, s.Pool.Out())
				require.Zero(t, d.flying)
				lefts[se.Left]++
				what := c.find(d.data)
				switch se.Left {
				case LeftNoShard:
					require.Equal(t, none, what)
					require.Equal(t, none, c.find(d.crash(len(d.log), r, func(int64) bool { return r.IntN(2) == 0 })))
				case LeftUncertain:
					require.NotEqual(t, torn, what)
				default:
					t.Fatalf("nothing was written? %v", err)
				}
				require.Zero(t, c.crashes(r, d, 1)[torn])
			}
		}
	}
	t.Log("left:", lefts)
	require.Positive(t, lefts[LeftNoShard])
	require.Positive(t, lefts[LeftUncertain])
}

// Cancelled at any moment, a save ends with the cause, leaves nothing in flight, and no torn shard.
func TestCheckpointCancel(t *testing.T) {
	for seed := range uint64(8) {
		r := rand.New(rand.NewPCG(seed, 9))
		c := newCrashCase(t, r)
		s, d := c.saver(t, r)
		_, err := s.Save(t.Context(), d, c.tensors, c.meta)
		require.NoError(t, err)
		for k := range d.ops + 3 {
			ctx, cancel := context.WithCancelCause(t.Context())
			s, d := c.saver(t, r)
			d.before = func(op int) {
				if op == k {
					cancel(errCause)
				}
			}
			if k == 0 {
				cancel(errCause)
			}
			_, err := s.Save(ctx, d, c.tensors, c.meta)
			require.Zero(t, s.Pool.Out())
			require.Zero(t, d.flying)
			var se *SaveError
			switch {
			case err == nil:
				require.Equal(t, newer, c.find(d.data))
			case k == 0:
				require.ErrorIs(t, err, errCause)
				require.ErrorAs(t, err, &se)
				require.Equal(t, LeftAsItWas, se.Left)
				require.Empty(t, d.log)
			default:
				require.ErrorIs(t, err, errCause)
				require.NotEqual(t, torn, c.find(d.data))
			}
			require.Zero(t, c.crashes(r, d, 1)[torn])
			cancel(nil)
		}
	}
}
