package staging

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"
)

// ErrIndex: an index breaks a rule of its format, or its shards are not as it says.
var ErrIndex = errors.New("bad shard index")

// Index is a model.safetensors.index.json: it says which file of a model has which tensor.
type Index struct {
	// WeightMap is the name of the file of each tensor (weight_map).
	WeightMap map[string]string
	// TotalSize is the size of all tensors in bytes (metadata.total_size), 0 if it is not given. Nothing is checked by it, because writers
	// differ in whether they count shared tensors once or twice.
	TotalSize int64
}

// Files is the names of the files in alphabetical order, which is that of the shards.
func (x *Index) Files() []string {
	return slices.Compact(slices.Sorted(maps.Values(x.WeightMap)))
}

// ParseIndex parses the JSON of an index, of at most [MaxHeader] bytes. Names of files are relative, with slashes, and never lead out of the
// model's folder. Errors match [ErrIndex].
func ParseIndex(text []byte) (*Index, error) {
	x, err := parseIndex(text)
	if err != nil {
		return nil, fmt.Errorf("staging: %w: %w", ErrIndex, err)
	}
	return x, nil
}

func parseIndex(text []byte) (*Index, error) {
	if len(text) > MaxHeader {
		return nil, fmt.Errorf("%d bytes, more than %d", len(text), MaxHeader)
	}
	if !utf8.Valid(text) {
		return nil, errors.New("not valid UTF-8")
	}
	x := &Index{}
	j := &jsonScanner{s: string(text)}
	seen := map[string]bool{}
	err := j.object(func(key string) error {
		if seen[key] {
			return j.errorf("duplicate key %s", quoted(key))
		}
		seen[key] = true
		switch key {
		case "weight_map":
			return x.parseWeightMap(j)
		case "metadata":
			return x.parseMetadata(j)
		}
		return j.skip(2)
	})
	if err != nil {
		return nil, err
	}
	if j.peek(); j.i != len(j.s) {
		return nil, j.errorf("%q after the end of the JSON", j.s[j.i])
	}
	if x.WeightMap == nil {
		return nil, errors.New("no weight_map")
	}
	return x, nil
}

func (x *Index) parseWeightMap(j *jsonScanner) error {
	x.WeightMap = map[string]string{}
	return j.object(func(tensor string) error {
		if _, ok := x.WeightMap[tensor]; ok {
			return j.errorf("duplicate tensor name %s", quoted(tensor))
		}
		file, err := j.str()
		if err != nil {
			return err
		}
		if file == "." || !fs.ValidPath(file) || strings.ContainsAny(file, "\\:\x00") {
			return j.errorf("%s is not the name of a file of the model", quoted(file))
		}
		x.WeightMap[tensor] = file
		return nil
	})
}

func (x *Index) parseMetadata(j *jsonScanner) error {
	seen := false
	return j.object(func(key string) (err error) {
		if key != "total_size" {
			return j.skip(3)
		}
		if seen {
			return j.errorf("duplicate key %s", quoted(key))
		}
		seen = true
		x.TotalSize, err = j.wholeNumber()
		return err
	})
}

// OpenIndexed opens the shards of an index, each on the source that lookup gives for its name, in the order of the names. The tensors of each
// must be exactly those that the index says, or the error matches [ErrIndex].
func OpenIndexed(ctx context.Context, x *Index, lookup func(file string) (Source, error)) (*Model, error) {
	m := &Model{}
	shards := map[string]*Shard{}
	for _, file := range x.Files() {
		src, err := lookup(file)
		if err != nil {
			return nil, fmt.Errorf("staging: %s: %w", quoted(file), err)
		}
		s, err := OpenShard(ctx, src)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", quoted(file), err)
		}
		for i := range s.Tensors {
			name := s.Tensors[i].Name
			switch want, ok := x.WeightMap[name]; {
			case !ok:
				return nil, fmt.Errorf("staging: %w: %s has tensor %s, which is not in the index", ErrIndex, quoted(file), quoted(name))
			case want != file:
				return nil, fmt.Errorf("staging: %w: %s has tensor %s, which should be in %s", ErrIndex, quoted(file), quoted(name), quoted(want))
			}
		}
		shards[file] = s
		m.Shards = append(m.Shards, s)
	}
	for _, name := range slices.Sorted(maps.Keys(x.WeightMap)) {
		if file := x.WeightMap[name]; shards[file].Tensor(name) == nil {
			return nil, fmt.Errorf("staging: %w: %s does not have tensor %s", ErrIndex, quoted(file), quoted(name))
		}
	}
	return m, nil
}
