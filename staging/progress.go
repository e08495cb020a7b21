package staging

import (
	"cmp"
	"slices"
	"sync/atomic"
	"time"
)

// Progress is how far a stream is.
type Progress struct {
	// Tensor was just delivered. Layer is the layer that this was the last tensor of (see [Plan.Layers]), empty if there are more.
	Tensor, Layer string
	// Tensors and Bytes were delivered, of so many in the plan.
	Tensors, PlanTensors int
	Bytes, PlanBytes     int64
	// Elapsed is the time since the start of the stream.
	Elapsed time.Duration
}

// Rate is bytes per second since the start of the stream.
func (p Progress) Rate() float64 {
	if p.Elapsed <= 0 {
		return 0
	}
	return float64(p.Bytes) / p.Elapsed.Seconds()
}

// Stats counts what a loader has done, over all its streams. The times are of the most recent stream, from its start, and 0 before they come.
type Stats struct {
	// Tensors and Bytes were delivered. (Pieces counts bytes by the piece.)
	Tensors, Bytes int64
	// Reads were completed without an error, of ReadBytes in all: more than Bytes by the padding to whole blocks, and by the holes
	// in slices that were read through.
	Reads, ReadBytes int64
	// Layer is the layer that was completed last (see [Plan.Layers]).
	Layer string

	// FirstTensor is the time to the first whole tensor.
	FirstTensor time.Duration
	// FirstLayer is the time until a forward pass could begin: the first numbered layer was there, and all that comes before it in the order of
	// [Plan.ByLayer]. FirstLayerBytes had been delivered by then.
	FirstLayer      time.Duration
	FirstLayerBytes int64
	// FirstLayerInFileOrder is when the stream had delivered as many bytes as would have been needed for that in the order of the files
	// (the shards in the order in which the plan comes to them): what FirstLayer would have been without the plan's order.
	FirstLayerInFileOrder time.Duration
	// FirstToken is the time until a forward pass could end: all of the plan was there.
	FirstToken time.Duration
}

type counters struct {
	tensors, bytes, reads, readBytes                              atomic.Int64
	firstTensor, firstLayer, firstLayerBytes, fileOrder, lastOfIt atomic.Int64
	layer                                                         atomic.Pointer[string]
}

// Stats returns the counts of this moment. It may be called while streams run.
func (l *Loader) Stats() Stats {
	c := &l.stats
	s := Stats{
		Tensors: c.tensors.Load(), Bytes: c.bytes.Load(), Reads: c.reads.Load(), ReadBytes: c.readBytes.Load(),
		FirstTensor: time.Duration(c.firstTensor.Load()), FirstLayer: time.Duration(c.firstLayer.Load()), FirstLayerBytes: c.firstLayerBytes.Load(),
		FirstLayerInFileOrder: time.Duration(c.fileOrder.Load()), FirstToken: time.Duration(c.lastOfIt.Load()),
	}
	if name := c.layer.Load(); name != nil {
		s.Layer = *name
	}
	return s
}

// marks follows the deliveries of one stream. It is the consumer's.
type marks struct {
	loader   *Loader
	begun    time.Time
	now      Progress
	layer    []int // of each item, an index of layers and left
	layers   []string
	left     []int  // tensors that are not delivered yet
	early    []bool // of each item: a forward pass needs it to begin
	needed   int    // how many of them are not delivered yet
	inFiles  int64  // bytes until all of them are, in the order of the files
	overtook bool   // so many have been delivered
}

func newMarks(l *Loader, plan []*item) *marks {
	m := &marks{loader: l, layer: make([]int, len(plan)), early: make([]bool, len(plan))}
	index := map[layerKey]int{}
	var first *layerKey
	keys := make([]layerKey, len(plan))
	for i, it := range plan {
		m.now.PlanTensors++
		m.now.PlanBytes += it.Bytes()
		key := layerOf(it.Name)
		keys[i] = key
		at, ok := index[key]
		if !ok {
			at = len(m.layers)
			index[key] = at
			m.layers, m.left = append(m.layers, key.name()), append(m.left, 0)
		}
		m.layer[i] = at
		m.left[at]++
		if key.number >= 0 && (first == nil || key.compare(*first) < 0) {
			first = &key
		}
	}
	if first != nil {
		for i, key := range keys {
			if m.early[i] = key.compare(*first) <= 0; m.early[i] {
				m.needed++
			}
		}
		m.inFiles = untilEarly(plan, m.early)
	}
	c := &l.stats
	for _, v := range []*atomic.Int64{&c.firstTensor, &c.firstLayer, &c.firstLayerBytes, &c.fileOrder, &c.lastOfIt} {
		v.Store(0)
	}
	c.layer.Store(nil)
	m.begun = time.Now()
	return m
}

// untilEarly is how many bytes of the plan lie, in the order of the files, up to the last early tensor.
func untilEarly(plan []*item, early []bool) int64 {
	shards := map[*Shard]int{}
	for _, it := range plan {
		if _, ok := shards[it.Shard]; !ok {
			shards[it.Shard] = len(shards)
		}
	}
	order := slices.Clone(plan)
	slices.SortStableFunc(order, func(a, b *item) int {
		return cmp.Or(cmp.Compare(shards[a.Shard], shards[b.Shard]), cmp.Compare(a.start, b.start))
	})
	var sum, until int64
	for _, it := range order {
		if sum += it.Bytes(); early[it.index] {
			until = sum
		}
	}
	return until
}

// deliver counts n bytes of item i, whole if they complete it.
func (m *marks) deliver(i int, n int64, whole bool, name string) {
	c := &m.loader.stats
	m.now.Elapsed = max(1, time.Since(m.begun))
	elapsed := int64(m.now.Elapsed)
	m.now.Bytes += n
	c.bytes.Add(n)
	if !m.overtook && m.inFiles > 0 && m.now.Bytes >= m.inFiles {
		m.overtook = true
		c.fileOrder.Store(elapsed)
	}
	if !whole {
		return
	}
	c.tensors.Add(1)
	if m.now.Tensors++; m.now.Tensors == 1 {
		c.firstTensor.Store(elapsed)
	}
	if m.early[i] {
		if m.needed--; m.needed == 0 {
			c.firstLayerBytes.Store(m.now.Bytes)
			c.firstLayer.Store(elapsed)
		}
	}
	if m.now.Tensors == m.now.PlanTensors {
		c.lastOfIt.Store(elapsed)
	}
	m.now.Tensor, m.now.Layer = name, ""
	at := m.layer[i]
	if m.left[at]--; m.left[at] == 0 {
		m.now.Layer = m.layers[at]
		c.layer.Store(&m.layers[at])
	}
	if m.loader.OnProgress != nil {
		m.loader.OnProgress(m.now)
	}
}
