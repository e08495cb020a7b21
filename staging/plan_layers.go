package staging

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Layer is the tensors of a plan that are used together.
type Layer struct {
	// Name is what the names of its tensors begin with, like "model.layers.7" or "blk.7", up to the first component that is a number. The tensors
	// without one are in layers called "embeddings", "other", "norm" and "head".
	Name string
	// Number is that component, -1 for those without.
	Number int
	Plan   Plan
}

// Layers groups the tensors of p, in the order in which the plan comes to the layers.
func (p Plan) Layers() []Layer {
	var layers []Layer
	index := map[layerKey]int{}
	for _, t := range p {
		key := layerOf(t.Name)
		i, ok := index[key]
		if !ok {
			i = len(layers)
			index[key] = i
			layers = append(layers, Layer{Name: key.name(), Number: key.number})
		}
		layers[i].Plan = append(layers[i].Plan, t)
	}
	return layers
}

// ByLayer is the plan in the order in which a forward pass needs the tensors, by their names: embeddings, then the layers by their numbers, an encoder's
// before a decoder's, then the last norm and the head. What has none of these names comes before the layers. Within a
// layer the order stays, so that tensors that lie together are read together.
func (p Plan) ByLayer() Plan {
	type entry struct {
		key layerKey
		t   PlanTensor
	}
	entries := make([]entry, len(p))
	for i, t := range p {
		entries[i] = entry{layerOf(t.Name), t}
	}
	slices.SortStableFunc(entries, func(a, b entry) int { return a.key.compare(b.key) })
	out := make(Plan, len(p))
	for i, e := range entries {
		out[i] = e.t
	}
	return out
}

// Stage is what rank, counted from 0, of ranks loads in a pipeline: its share of the numbered layers. The first rank has also what comes before
// them in the order of ByLayer, and the last one what comes after. The plan is in that order. Where head and embeddings are one tensor,
// add that to the last rank's plan.
func (p Plan) Stage(rank, ranks int) (Plan, error) {
	if ranks < 1 || rank < 0 || rank >= ranks {
		return nil, fmt.Errorf("staging: stage %d of %d: ranks are counted from 0", rank, ranks)
	}
	layers := p.ByLayer().Layers()
	first := slices.IndexFunc(layers, func(l Layer) bool { return l.Number >= 0 })
	if first < 0 {
		return nil, fmt.Errorf("staging: stage %d of %d: no tensor of the plan has a layer's number in its name", rank, ranks)
	}
	behind := first
	for behind < len(layers) && layers[behind].Number >= 0 {
		behind++
	}
	n := behind - first
	if n < ranks {
		return nil, fmt.Errorf("staging: stage %d of %d: there are only %d layers", rank, ranks, n)
	}
	from, to := first+rank*n/ranks, first+(rank+1)*n/ranks
	if rank == 0 {
		from = 0
	}
	if rank == ranks-1 {
		to = len(layers)
	}
	var out Plan
	for _, l := range layers[from:to] {
		out = append(out, l.Plan...)
	}
	return out, nil
}

// layerKey says which layer a tensor is in.
type layerKey struct {
	class  layerClass
	prefix string // of a numbered layer
	number int
}

type layerClass int

const (
	embeddings layerClass = iota
	otherTensors
	encoderLayers
	plainLayers
	decoderLayers
	lastNorm
	head
)

func (k layerKey) name() string {
	switch k.class {
	case embeddings:
		return "embeddings"
	case otherTensors:
		return "other"
	case lastNorm:
		return "norm"
	case head:
		return "head"
	}
	return k.prefix + strconv.Itoa(k.number)
}

func (k layerKey) compare(o layerKey) int {
	return cmp.Or(cmp.Compare(k.class, o.class), cmp.Compare(k.prefix, o.prefix), cmp.Compare(k.number, o.number))
}

// layerOf is the layer of the tensor of that name.
func layerOf(name string) layerKey {
	at := 0
	for part := range strings.SplitSeq(name, ".") {
		if n, ok := layerNumber(part); ok && at > 0 {
			k := layerKey{class: plainLayers, prefix: name[:at], number: n}
			switch {
			case strings.Contains(k.prefix, "decoder"):
				k.class = decoderLayers
			case strings.Contains(k.prefix, "encoder"), strings.Contains(k.prefix, "vis"):
				k.class = encoderLayers
			}
			return k
		}
		at += len(part) + 1
	}
	return layerKey{class: classOf(strings.ToLower(name)), number: -1}
}

// layerNumber is the number that a component is, if it is one.
func layerNumber(part string) (int, bool) {
	if len(part) == 0 || len(part) > 9 || strings.Trim(part, "0123456789") != "" {
		return 0, false
	}
	n, err := strconv.Atoi(part)
	return n, err == nil
}

// classOf is for tensors without a number.
func classOf(name string) layerClass {
	module := strings.TrimSuffix(strings.TrimSuffix(name, ".weight"), ".bias")
	last := module[strings.LastIndexByte(module, '.')+1:]
	switch last {
	case "lm_head", "embed_out", "output", "head", "classifier", "score":
		return head
	case "wte", "wpe", "shared":
		return embeddings
	case "norm", "ln_f", "output_norm", "final_layernorm", "final_layer_norm", "norm_f":
		if !strings.Contains(module, "embed") {
			return lastNorm
		}
	}
	if strings.Contains(module, "embed") || strings.Contains(module, "embd") {
		return embeddings
	}
	return otherTensors
}
