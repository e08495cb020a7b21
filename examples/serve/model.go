package main

import (
	"context"
	"sync/atomic"
	"time"

	"github.com/nvstage/nvstage/staging"
)

// model is a model in memory. It is freed when its last user is gone: the server, for which it is the one that serves,
// is one, and so is every request that works with it.
type model struct {
	id      int // of its load
	source  source
	format  staging.Format
	lz4     bool
	bytes   int64
	dev     staging.Device
	tensors []*staging.Tensor // in layer order
	byName  map[string]*staging.Tensor
	loaded  time.Time
	took    staging.Stats
	users   atomic.Int64
	onFree  func()
}

func (m *model) add(t *staging.Tensor) {
	m.tensors = append(m.tensors, t)
	m.byName[t.Name] = t
}

// release ends one use.
func (m *model) release() {
	if m.users.Add(-1) > 0 {
		return
	}
	for _, t := range m.tensors {
		t.Release()
	}
	m.onFree()
}

// piece is how much of a tensor is copied from a GPU at once, in bytes: a multiple of every element's size.
const piece = 256 << 10

// read calls f with the bytes of a tensor, piece after piece. On a GPU, where an inference server's kernels would work on t.Memory, this is what
// has to be copied back to show that it is right.
func (m *model) read(ctx context.Context, t *staging.Tensor, f func(b []byte)) error {
	var buf []byte
	if t.Memory.Bytes() == nil {
		buf = make([]byte, min(piece, t.Memory.Len()))
	}
	for off := int64(0); off < t.Memory.Len(); off += piece {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		n := min(piece, t.Memory.Len()-off)
		if all := t.Memory.Bytes(); all != nil {
			f(all[off : off+n])
			continue
		}
		done := make(chan error, 1)
		m.dev.CopyOut(buf[:n], t.Memory, off, func(err error) { done <- err })
		if err := <-done; err != nil { // whatever ctx says: until then the device writes to buf
			return err
		}
		f(buf[:n])
	}
	return nil
}
