package main

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/nvstage/nvstage/staging"
	"github.com/spf13/pflag"
)

// planFlags say what of a model is loaded, and in which order.
type planFlags struct {
	order  order
	rank   rank
	layers layerRange
}

func (f *planFlags) add(fs *pflag.FlagSet) {
	fs.Var(&f.order, "order", "what comes first: layer (as a forward pass needs it) or file (as it lies in the shards) (default layer; file if a shard is in LZ4 frames, which decode fastest in their order)")
	fs.Var(&f.rank, "rank", "load what rank `R/N` of tensor parallelism needs, like 0/4: of q, k, v, gate and up projections, embeddings and head 1/N of the rows, of o and down projections 1/N of the columns, all of the rest")
	fs.Var(&f.layers, "layers", "load layers `A-B` of a pipeline, like 0-15, counted from 0 as a forward pass comes to them; the first one brings what comes before it, the last one norm and head")
}

// planReport is what was loaded of the model, and how.
type planReport struct {
	Order         string  `json:"order"`
	Rank          string  `json:"rank,omitempty"`
	Layers        string  `json:"layers,omitempty"`
	ModelBytes    int64   `json:"model_bytes"`
	ReadBytes     int64   `json:"read_bytes"`
	Amplification float64 `json:"read_amplification"`
}

// plan is what the flags want of a model.
func (f *planFlags) plan(m *staging.Model) (staging.Plan, *planReport, error) {
	plan := m.Plan()
	r := &planReport{Order: f.order.of(m), Rank: f.rank.String(), Layers: f.layers.String(), ModelBytes: plan.Bytes()}
	var err error
	if f.layers.set {
		if plan, err = f.layers.of(plan); err != nil {
			return nil, nil, err
		}
	}
	if plan, err = f.rank.of(plan); err != nil {
		return nil, nil, err
	}
	if r.Order == orderLayer {
		plan = plan.ByLayer()
	}
	return plan, r, nil
}

// read takes over how many bytes were read for those that were needed.
func (r *planReport) read(read, needed int64) {
	r.ReadBytes = read
	if needed > 0 {
		r.Amplification = float64(read) / float64(needed)
	}
}

func (r *planReport) String() string {
	s := "order of the files"
	if r.Order == orderLayer {
		s = "order of the layers"
	}
	if r.Rank != "" {
		s += ", rank " + r.Rank
	}
	if r.Layers != "" {
		s += ", layers " + r.Layers
	}
	return s + fmt.Sprintf("; of a model of %s, read %s, %.3f times what was needed", bytesText(r.ModelBytes), bytesText(r.ReadBytes), r.Amplification)
}

// order is the flag --order. The zero value leaves the choice to the model.
type order string

const (
	orderLayer = "layer"
	orderFile  = "file"
)

func (o *order) Type() string   { return "NAME" }
func (o *order) String() string { return string(*o) }
func (o *order) Set(s string) error {
	if s != orderLayer && s != orderFile {
		return errors.New("want layer or file")
	}
	*o = order(s)
	return nil
}

// of is the order for a model.
func (o *order) of(m *staging.Model) string {
	if *o != "" {
		return string(*o)
	}
	for _, s := range m.Shards {
		if s.LZ4 != nil {
			return orderFile
		}
	}
	return orderLayer
}

// rank is the flag --rank, like 0/4. The zero value is for all of every tensor.
type rank struct{ rank, ranks int }

// maxRanks bounds --rank.
const maxRanks = 1 << 16

func (r *rank) Type() string { return "R/N" }
func (r *rank) String() string {
	if r.ranks == 0 {
		return ""
	}
	return fmt.Sprintf("%d/%d", r.rank, r.ranks)
}

func (r *rank) Set(s string) error {
	first, second, _ := strings.Cut(s, "/")
	n, err := strconv.ParseUint(first, 10, 32)
	of, err2 := strconv.ParseUint(second, 10, 32)
	if err != nil || err2 != nil || of > maxRanks || n >= of {
		return errors.New("want R/N, like 0/4 for the first of four ranks")
	}
	*r = rank{int(n), int(of)}
	return nil
}

// of is what the rank needs of a plan.
func (r *rank) of(plan staging.Plan) (staging.Plan, error) {
	if r.ranks == 0 {
		return plan, nil
	}
	return plan.Slice(r.rank, r.ranks, staging.TensorParallel)
}

// layerRange is the flag --layers, like 0-15 or 7.
type layerRange struct {
	first, last int
	set         bool
}

func (l *layerRange) Type() string { return "A-B" }
func (l *layerRange) String() string {
	if !l.set {
		return ""
	}
	return fmt.Sprintf("%d-%d", l.first, l.last)
}

func (l *layerRange) Set(s string) error {
	from, to, isRange := strings.Cut(s, "-")
	first, err := strconv.ParseUint(from, 10, 31)
	last := first
	if err == nil && isRange {
		last, err = strconv.ParseUint(to, 10, 31)
	}
	if err != nil || last < first {
		return errors.New("want A-B, like 0-15, or a single layer")
	}
	*l = layerRange{int(first), int(last), true}
	return nil
}

// of is the part of a plan that these layers are, in the plan's order.
func (l *layerRange) of(plan staging.Plan) (staging.Plan, error) {
	all := plan.ByLayer().Layers()
	first, behind := 0, len(all)
	for first < behind && all[first].Number < 0 {
		first++
	}
	for behind > first && all[behind-1].Number < 0 {
		behind--
	}
	switch n := behind - first; {
	case n == 0:
		return nil, fmt.Errorf("--layers %s: the model has no layers: no tensor has a number in its name", l)
	case l.last >= n:
		return nil, fmt.Errorf("--layers %s: the model has %d layers, 0-%d", l, n, n-1)
	case l.last < n-1:
		all = all[:first+l.last+1]
	}
	if l.first > 0 {
		all = all[first+l.first:]
	}
	wanted := map[string]bool{}
	for _, layer := range all {
		for _, t := range layer.Plan {
			wanted[t.Name] = true
		}
	}
	return plan.Filter(func(t staging.PlanTensor) bool { return wanted[t.Name] }), nil
}
