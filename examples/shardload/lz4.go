package main

import (
	"strings"

	"github.com/nvstage/nvstage/staging"
)

// lz4Report is what decoding a shard took. Times are sums over the workers that decode.
type lz4Report struct {
	CompressedBytes int64   `json:"compressed_bytes"`
	DecodedBytes    int64   `json:"decoded_bytes"`
	Bound           string  `json:"bound_by"`
	DecodeSeconds   float64 `json:"decode_seconds"`
	InputWait       float64 `json:"input_wait_seconds"`
	OutputWait      float64 `json:"output_wait_seconds"`

	text string
}

// newLZ4Report is nil for a shard that is not in LZ4 frames.
func newLZ4Report(s *staging.Shard) *lz4Report {
	if s.LZ4 == nil {
		return nil
	}
	t := s.LZ4.Stats()
	return &lz4Report{
		CompressedBytes: t.Compressed, DecodedBytes: t.Decoded, Bound: t.Bound(),
		DecodeSeconds: t.DecodeTime.Seconds(), InputWait: t.InputWait.Seconds(), OutputWait: t.OutputWait.Seconds(),
		text: strings.TrimPrefix(t.String(), "lz4: "),
	}
}
