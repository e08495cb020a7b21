package staging

import (
	"context"
	"encoding/binary"
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
	// LZ4 is what decodes a shard that was found in LZ4 frames; nil for others.
	LZ4 *LZ4Source

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
// namespace is. A shard in LZ4 frames is opened with the defaults of [OpenLZ4]. Errors match [ErrNotShard], [ErrHeader] or [ErrTruncated], or
// are those of OpenLZ4, or the source's own.
func OpenShard(ctx context.Context, src Source) (*Shard, error) {
	return OpenShardAs(ctx, src, FormatAuto)
}

// usable refuses a source whose blocks no read could consist of.
func usable(src Source) error {
	if b := src.BlockSize(); b <= 0 || src.MaxIO() < 0 {
		return fmt.Errorf("staging: source with blocks of %d bytes and reads of %d", b, src.MaxIO())
	}
	return nil
}

// OpenShardAs is [OpenShard] for a shard that must be of the format, whatever its first bytes. LZ4 frames are opened with FormatAuto only: for
// others, give it what [OpenLZ4] makes of the source.
func OpenShardAs(ctx context.Context, src Source, format Format) (*Shard, error) {
	if err := usable(src); err != nil {
		return nil, err
	}
	first, err := readStart(ctx, src, src.Size())
	if err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	s := &Shard{Format: format, src: src}
	if format == FormatAuto && isLZ4(first) {
		if s.LZ4, err = OpenLZ4(ctx, src, LZ4Config{}); err != nil {
			return nil, err
		}
		s.src = s.LZ4
		if first, err = readStart(ctx, s.src, s.src.Size()); err != nil {
			return nil, fmt.Errorf("staging: %w", err)
		}
	}
	if format == FormatAuto {
		s.Format = recognise(first)
	}
	if err := s.readHeader(ctx, first); err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return s, nil
}

// readHeader reads the header of a shard whose format is known, and that begins with first.
func (s *Shard) readHeader(ctx context.Context, first []byte) (err error) {
	switch s.Format {
	case FormatSafetensors:
		s.Header, err = readHeader(ctx, s.src, s.src.Size(), TrailingBytes, first)
	case FormatGGUF:
		if s.GGUF, err = readGGUF(ctx, s.src, s.src.Size(), TrailingBytes, first); err == nil {
			s.Header = s.GGUF.Header
		}
	default:
		err = fmt.Errorf("a shard cannot be opened as %q: want %q or %q, or RawShard for byte ranges", string(s.Format), string(FormatSafetensors), string(FormatGGUF))
	}
	return err
}

// isLZ4 reports whether an LZ4 frame begins like this, of a kind that OpenLZ4 reads or explains.
func isLZ4(first []byte) bool {
	if len(first) < 4 {
		return false
	}
	magic := binary.LittleEndian.Uint32(first)
	return magic == lz4Frames || magic == lz4Legacy || magic&^0xf == lz4Skippable
}

// recognise is the format of a shard that begins like this. What begins like none is taken for safetensors, whose reader says what is wrong.
func recognise(first []byte) Format {
	switch string(first[:min(4, len(first))]) {
	case ggufMagic, ggufMagicBig:
		return FormatGGUF
	}
	return FormatSafetensors
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

// OpenModel opens the shards on all sources, and makes a model of them as [NewModel] does.
func OpenModel(ctx context.Context, srcs ...Source) (*Model, error) {
	var shards []*Shard
	for i, src := range srcs {
		s, err := OpenShard(ctx, src)
		if err != nil {
			return nil, fmt.Errorf("shard %d of %d: %w", i+1, len(srcs), err)
		}
		shards = append(shards, s)
	}
	return NewModel(shards...)
}

// NewModel makes a model of shards. A tensor name that two of them have is an error, and so is a split GGUF model of which they are not all
// parts in order ([ErrSplit]).
func NewModel(shards ...*Shard) (*Model, error) {
	seen := map[string]int{}
	for i, s := range shards {
		for k := range s.Tensors {
			name := s.Tensors[k].Name
			if first, ok := seen[name]; ok {
				return nil, fmt.Errorf("staging: tensor %s is in shard %d and in shard %d", quoted(name), first+1, i+1)
			}
			seen[name] = i
		}
	}
	if err := checkSplit(shards); err != nil {
		return nil, fmt.Errorf("staging: %w", err)
	}
	return &Model{Shards: shards}, nil
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
