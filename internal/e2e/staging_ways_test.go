package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"slices"

	"github.com/nvstage/nvstage/staging"
)

// loading is one load of a model, which is compared byte by byte with what should come.
type loading struct {
	ctx    context.Context
	want   *model
	plan   staging.Plan
	loader *staging.Loader
	devs   [2]staging.Device
}

// ways are the ways to load a model. Each fails where a tensor is missing, comes twice or differs.
var ways = []struct {
	name string
	load func(l *loading) error
}{
	{"pieces", (*loading).pieces},
	{"stream", (*loading).stream},
	{"layers", (*loading).layers},
	{"rows of 4 ranks", func(l *loading) error { return l.ranks(rows) }},
	{"columns of 4 ranks", func(l *loading) error { return l.ranks(columns) }},
	{"columns of 4 ranks at once", func(l *loading) error { return l.ranksAtOnce(lastDimension) }},
}

const rankCount = 4

func rows(t staging.PlanTensor) int {
	if len(t.Shape) == 0 {
		return -1
	}
	return 0
}

func columns(t staging.PlanTensor) int {
	if len(t.Shape) < 2 {
		return -1
	}
	return 1
}

func lastDimension(t staging.PlanTensor) int { return len(t.Shape) - 1 }

// tally compares tensors with those wanted, each once.
type tally struct {
	want *model
	seen map[string]bool
}

func newTally(want *model) *tally { return &tally{want, map[string]bool{}} }

// find is what the tensor of that name should be.
func (y *tally) find(name string) (*wanted, error) {
	i := slices.IndexFunc(y.want.tensors, func(w wanted) bool { return w.name == name })
	switch {
	case i < 0:
		return nil, fmt.Errorf("tensor %s: nobody asked for it", name)
	case y.seen[name]:
		return nil, fmt.Errorf("tensor %s: it comes twice", name)
	}
	y.seen[name] = true
	return &y.want.tensors[i], nil
}

// whole compares a whole tensor.
func (y *tally) whole(info *staging.TensorInfo, got []byte) (*wanted, error) {
	w, err := y.find(info.Name)
	if err != nil {
		return nil, err
	}
	if info.DType.String() != w.dtype || !slices.Equal(info.Shape, w.shape) {
		return nil, fmt.Errorf("tensor %s: %s %v, want %s %v", w.name, info.DType, info.Shape, w.dtype, w.shape)
	}
	return w, w.compare(got)
}

func (w *wanted) compare(got []byte) error {
	if bytes.Equal(got, w.data) {
		return nil
	}
	for i := range min(len(got), len(w.data)) {
		if got[i] != w.data[i] {
			return fmt.Errorf("tensor %s: byte %d of %d is %#02x, want %#02x", w.name, i, len(w.data), got[i], w.data[i])
		}
	}
	return fmt.Errorf("tensor %s: %d bytes, want %d", w.name, len(got), len(w.data))
}

func (y *tally) end() error {
	if len(y.seen) != len(y.want.tensors) {
		return fmt.Errorf("%d tensors came, want %d", len(y.seen), len(y.want.tensors))
	}
	return nil
}

func (l *loading) pieces() error {
	y := newTally(l.want)
	var got []byte
	for p, err := range l.loader.Pieces(l.ctx, l.plan) {
		if err != nil {
			return err
		}
		off, last := p.Off, p.Last
		if off == int64(len(got)) {
			got = append(got, p.Data...)
		}
		p.Release()
		if len(got) < int(off) {
			return fmt.Errorf("tensor %s: a piece at %d behind %d bytes", p.Name, off, len(got))
		}
		if last {
			if _, err := y.whole(p.TensorInfo, got); err != nil {
				return err
			}
			got = got[:0]
		}
	}
	return y.end()
}

// stream keeps all tensors until the last one is there: they are the consumer's.
func (l *loading) stream() error {
	l.loader.Hash = sha256.New
	defer func() { l.loader.Hash = nil }()
	var all []*staging.Tensor
	defer func() {
		for _, t := range all {
			t.Release()
		}
	}()
	for t, err := range l.loader.Stream(l.ctx, l.plan, l.devs[0]) {
		if err != nil {
			return err
		}
		all = append(all, t)
	}
	y := newTally(l.want)
	file, begin := 0, int64(0)
	for _, t := range all {
		b, err := contents(l.devs[0], t.Memory)
		if err != nil {
			return err
		}
		w, err := y.whole(t.TensorInfo, b)
		if err != nil {
			return err
		}
		if w.file < file || w.file == file && w.begin < begin {
			return fmt.Errorf("tensor %s: it comes too late for the order of the files", w.name)
		}
		file, begin = w.file, w.begin
		if sum := sha256.Sum256(w.data); !bytes.Equal(sum[:], t.Sum) {
			return fmt.Errorf("tensor %s: the checksum is %x, want %x", w.name, t.Sum, sum)
		}
	}
	return y.end()
}

func (l *loading) layers() error {
	y := newTally(l.want)
	layer := -1
	for t, err := range l.loader.Stream(l.ctx, l.plan.ByLayer(), l.devs[0]) {
		if err != nil {
			return err
		}
		b, err := contents(l.devs[0], t.Memory)
		t.Release()
		if err != nil {
			return err
		}
		w, err := y.whole(t.TensorInfo, b)
		if err != nil {
			return err
		}
		if w.layer() < layer {
			return fmt.Errorf("tensor %s: it comes too late for the order of the layers", w.name)
		}
		layer = w.layer()
	}
	return y.end()
}

// part is what one rank has of a tensor.
type part struct {
	*staging.TensorInfo
	of   *staging.TensorInfo // nil: it is not split
	dim  int
	from int64
	data []byte
}

// ranks loads what each rank has, one rank after the other, and puts it together again.
func (l *loading) ranks(rule staging.SliceRule) error {
	parts := map[string][]part{}
	for rank := range rankCount {
		plan, err := l.plan.Slice(rank, rankCount, rule)
		if err != nil {
			return err
		}
		if err := l.collect(parts, plan, l.devs[rank%2]); err != nil {
			return err
		}
	}
	return l.reassemble(parts)
}

// ranksAtOnce is ranks in one plan for both devices, so that the ranks' slices of a tensor share reads.
func (l *loading) ranksAtOnce(rule staging.SliceRule) error {
	plan := make(staging.Plan, rankCount*len(l.plan))
	for rank := range rankCount {
		p, err := l.plan.Slice(rank, rankCount, rule)
		if err != nil {
			return err
		}
		for i, t := range p.To(l.devs[rank%2]) {
			plan[i*rankCount+rank] = t
		}
	}
	parts := map[string][]part{}
	if err := l.collect(parts, plan, l.devs[0]); err != nil {
		return err
	}
	return l.reassemble(parts)
}

func (l *loading) collect(parts map[string][]part, plan staging.Plan, dev staging.Device) error {
	for t, err := range l.loader.Stream(l.ctx, plan, dev) {
		if err != nil {
			return err
		}
		on := dev
		if t.Device != nil {
			on = t.Device
		}
		b, err := contents(on, t.Memory)
		t.Release()
		if err != nil {
			return err
		}
		parts[t.Name] = append(parts[t.Name], part{t.TensorInfo, t.Of, t.Dim, t.From, b})
	}
	return nil
}

func (l *loading) reassemble(parts map[string][]part) error {
	y := newTally(l.want)
	for name, ranks := range parts {
		if len(ranks) != rankCount {
			return fmt.Errorf("tensor %s: %d ranks have it, want %d", name, len(ranks), rankCount)
		}
		if ranks[0].of == nil { // every rank has all of it
			for _, p := range ranks {
				delete(y.seen, name)
				if _, err := y.whole(p.TensorInfo, p.data); err != nil {
					return err
				}
			}
			continue
		}
		whole, err := join(ranks)
		if err != nil {
			return fmt.Errorf("tensor %s: %w", name, err)
		}
		if _, err := y.whole(ranks[0].of, whole); err != nil {
			return err
		}
	}
	return y.end()
}

// join puts the ranks' slices of a tensor side by side.
func join(ranks []part) ([]byte, error) {
	dim := ranks[0].dim
	outer, at := 1, int64(0)
	for _, d := range ranks[0].Shape[:dim] {
		outer *= int(d)
	}
	for _, p := range ranks {
		if p.dim != dim || p.from != at || outer > 0 && len(p.data)%outer != 0 {
			return nil, fmt.Errorf("a slice of %d bytes from %d along dimension %d does not follow one that ends at %d along dimension %d", len(p.data), p.from, p.dim, at, dim)
		}
		at += p.Shape[dim]
	}
	if size := ranks[0].of.Shape[dim]; at != size {
		return nil, fmt.Errorf("the slices end at %d of %d", at, size)
	}
	var whole []byte
	for o := range outer {
		for _, p := range ranks {
			n := len(p.data) / outer
			whole = append(whole, p.data[o*n:(o+1)*n]...)
		}
	}
	return whole, nil
}

// contents is a copy of device memory.
func contents(dev staging.Device, m staging.Memory) ([]byte, error) {
	b := bytes.Repeat([]byte{0xEE}, int(m.Len()))
	if len(b) == 0 {
		return b, nil
	}
	done := make(chan error, 2)
	dev.CopyOut(b, m, 0, func(err error) { done <- err })
	err := <-done
	if len(done) > 0 {
		err = errors.Join(err, errors.New("a copy was done twice"))
	}
	return b, err
}
