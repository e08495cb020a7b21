package staging

import (
	"context"
	"fmt"
	"iter"
)

// Shard is one opened shard on a source.
type Shard struct {
	*Header

	// Format is what the shard is.
	Format Format
	// GGUF is the rest of the header of a GGUF shard, with its metadata; nil for other formats.
	GGUF *GGUF

	src Source
}

// Format is a format of shards.
type Format string

// The formats.
const (
	FormatAuto        Format = ""            // what it is by its first bytes
	FormatSafetensors Format = "safetensors" // https://github.com/huggingface/safetensors
	FormatGGUF        Format = "gguf"        // https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 2 or 3, little-endian
	FormatRaw         Format = "raw"         // byte ranges without a header: see [RawShard]
)

// OpenShard recognises the shard at the start of src by its first bytes and reads its header. The source may be larger than the shard, as a
// namespace is. Errors match [ErrNotShard], [ErrHeader] or [ErrTruncated], or are the source's own.
func OpenShard(ctx context.Context, src Source) (*Shard, error) {
	return OpenShardAs(ctx, src, FormatAuto)
}

// OpenShardAs is [OpenShard] for a shard that must be of the format, whatever its first bytes.
func OpenShardAs(ctx context.Context, src Source, format Format) (*Shard, error) {
	s, err := openShard(ctx, src, format)
	if err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return s, nil
}

func openShard(ctx context.Context, src Source, format Format) (*Shard, error) {
	if b := src.BlockSize(); b <= 0 || src.MaxIO() < 0 {
		return nil, fmt.Errorf("source with blocks of %d bytes and reads of %d", b, src.MaxIO())
	}
	first, err := readStart(ctx, src, src.Size())
	if err != nil {
		return nil, err
	}
	if format == FormatAuto {
		if format, err = recognise(first); err != nil {
			return nil, err
		}
	}
	s := &Shard{Format: format, src: src}
	switch format {
	case FormatSafetensors:
		if s.Header, err = readHeader(ctx, src, src.Size(), TrailingBytes, first); err != nil {
			return nil, err
		}
	case FormatGGUF:
		if s.GGUF, err = readGGUF(ctx, src, src.Size(), TrailingBytes, first); err != nil {
			return nil, err
		}
		s.Header = s.GGUF.Header
	default:
		return nil, fmt.Errorf("a shard cannot be opened as %q: want %q or %q, or RawShard for byte ranges", string(format), string(FormatSafetensors), string(FormatGGUF))
	}
	return s, nil
}

// lz4Magic begins an LZ4 frame.
const lz4Magic = "\x04\x22\x4D\x18"

// recognise is the format of a shard that begins like this. What begins like none is taken for safetensors, whose reader says what is wrong.
func recognise(first []byte) (Format, error) {
	switch string(first[:min(4, len(first))]) {
	case ggufMagic, ggufMagicBig:
		return FormatGGUF, nil
	case lz4Magic:
		return "", fmt.Errorf("%w: an LZ4 frame, which has to be decoded first: open what NewLZ4Source makes of the source", ErrNotShard)
	}
	return FormatSafetensors, nil
}

// Plan is all tensors of the shard in file order.
func (s *Shard) Plan() Plan {
	p := make(Plan, len(s.Tensors))
	for i := range s.Tensors {
		p[i] = PlanTensor{Shard: s, TensorInfo: &s.Tensors[i]}
	}
	return p
}

// Stream streams all tensors of the shard into dev. It is [Loader.Stream] with the defaults.
func (s *Shard) Stream(ctx context.Context, pool *Pool, dev Device) iter.Seq2[*Tensor, error] {
	return (&Loader{Pool: pool}).Stream(ctx, s.Plan(), dev)
}

// Model is several shards that belong together.
type Model struct {
	Shards []*Shard
}

// OpenModel opens the shards on all sources. A tensor name that two of them have is an error, and so is a split GGUF model of which they are
// not all parts in order ([ErrSplit]).
func OpenModel(ctx context.Context, srcs ...Source) (*Model, error) {
	m := &Model{}
	seen := map[string]int{}
	for i, src := range srcs {
		s, err := OpenShard(ctx, src)
		if err != nil {
			return nil, fmt.Errorf("shard %d of %d: %w", i+1, len(srcs), err)
		}
		for k := range s.Tensors {
			name := s.Tensors[k].Name
			if first, ok := seen[name]; ok {
				return nil, fmt.Errorf("staging: tensor %s is in shard %d and in shard %d", quoted(name), first+1, i+1)
			}
			seen[name] = i
		}
		m.Shards = append(m.Shards, s)
	}
	if err := checkSplit(m.Shards); err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return m, nil
}

// Plan is all tensors of the model, shard by shard in file order.
func (m *Model) Plan() Plan {
	var p Plan
	for _, s := range m.Shards {
		p = append(p, s.Plan()...)
	}
	return p
}

// Stream streams all tensors of the model into dev. It is [Loader.Stream] with the defaults.
func (m *Model) Stream(ctx context.Context, pool *Pool, dev Device) iter.Seq2[*Tensor, error] {
	return (&Loader{Pool: pool}).Stream(ctx, m.Plan(), dev)
}
