package staging

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"sort"
	"sync"
)

// image is what a sink is to hold from its start: size bytes. fill gives any range of it, with zeros behind its end: it
// calls done, exactly once and from any goroutine, with dst, or with memory of the host that holds the range already.
// Until then dst is being written.
type image struct {
	size int64
	fill func(dst []byte, off int64, done func([]byte, error))
}

// checkpoint is the image of tensors.
type checkpoint struct {
	header  *Header
	text    []byte // the encoded header, whole blocks
	tensors []SaveTensor
}

func newCheckpoint(tensors []SaveTensor, metadata map[string]string, block int) (*checkpoint, error) {
	infos := make([]TensorInfo, len(tensors))
	for i := range tensors {
		infos[i] = tensors[i].TensorInfo
	}
	h, err := NewHeader(infos, metadata)
	if err != nil {
		return nil, err
	}
	c := &checkpoint{header: h, tensors: make([]SaveTensor, len(tensors))}
	for i, t := range tensors {
		t.TensorInfo = h.Tensors[i]
		var have int64
		if t.Memory != nil {
			have = t.Memory.Len()
		}
		if have != t.Bytes() {
			return nil, fmt.Errorf("staging: tensor %s: shape %v of %s is %d bytes, its memory has %d", quoted(t.Name), t.Shape, t.DType, t.Bytes(), have)
		}
		if t.Device == nil {
			t.Device = Host{}
		}
		if _, host := t.Device.(Host); host && have > 0 && int64(len(t.Memory.Bytes())) != have {
			return nil, fmt.Errorf("staging: tensor %s: its memory is not the host's; its SaveTensor has to name the Device", quoted(t.Name))
		}
		c.tensors[i] = t
	}
	return c, c.align(block)
}

// align makes the data begin at a block.
func (c *checkpoint) align(block int) error {
	if block <= 0 {
		return fmt.Errorf("staging: sink with blocks of %d bytes", block)
	}
	text, err := c.header.Append(nil)
	if err != nil {
		return err
	}
	pad := (block - len(text)%block) % block
	c.text = append(text, bytes.Repeat([]byte{' '}, pad)...)
	n := len(c.text) - 8
	if n > MaxHeader {
		return fmt.Errorf("staging: a header of %d bytes, more than %d", n, MaxHeader)
	}
	binary.LittleEndian.PutUint64(c.text, uint64(n))
	c.header.DataOffset += int64(pad)
	if c.header.Size += int64(pad); c.header.Size < 0 {
		return fmt.Errorf("staging: the shard's length overflows")
	}
	return nil
}

// fill copies a range of the image out of the devices, all its parts at once. What lies on the host as it is to be
// written is not copied.
func (c *checkpoint) fill(dst []byte, off int64, done func([]byte, error)) {
	end := off + int64(len(dst))
	if off < int64(len(c.text)) {
		copy(dst, c.text[off:])
	}
	if end > c.header.Size {
		clear(dst[max(off, c.header.Size)-off:])
	}
	parts := &join{left: 1, done: func(err error) { done(dst, err) }}
	data := c.header.DataOffset
	first := sort.Search(len(c.tensors), func(i int) bool { return data+c.tensors[i].End > off })
	for i := first; i < len(c.tensors) && data+c.tensors[i].Begin < end; i++ {
		t := &c.tensors[i]
		from, to := max(off, data+t.Begin), min(end, data+t.End)
		if from == to {
			continue
		}
		if _, ok := t.Device.(Host); ok && from == off && to == end {
			done(t.Memory.Bytes()[from-data-t.Begin:to-data-t.Begin], nil)
			return
		}
		parts.add()
		t.Device.CopyOut(dst[from-off:to-off:to-off], t.Memory, from-data-t.Begin, func(err error) {
			if err != nil {
				err = fmt.Errorf("staging: copying tensor %s from %s: %w", quoted(t.Name), t.Device.Name(), err)
			}
			parts.end(err)
		})
	}
	parts.end(nil)
}

// join calls done when all parts have ended, with the first error.
type join struct {
	done func(error)
	mu   sync.Mutex
	left int
	err  error
}

func (j *join) add() {
	j.mu.Lock()
	j.left++
	j.mu.Unlock()
}

func (j *join) end(err error) {
	j.mu.Lock()
	if j.err == nil {
		j.err = err
	}
	j.left--
	last := j.left == 0
	j.mu.Unlock()
	if last {
		j.done(j.err)
	}
}
