package staging

import (
	"fmt"
	"sync/atomic"
	"time"
)

// LZ4Stats counts what an [LZ4Source] has done. Times are sums over the workers of all Feeds, each of which is always in one of
// them while its Feed runs.
type LZ4Stats struct {
	Frames int // on the source, without skippable ones
	Blocks int
	// IndexReads and IndexTime are what opening took to find the blocks.
	IndexReads int64
	IndexTime  time.Duration

	// Compressed bytes were read for Bytes delivered. Decoded bytes are more than these where blocks were decoded
	// that nobody read whole, or more than once.
	Compressed, Bytes, Decoded int64
	// DecodeTime was spent decoding, copying and on checksums, or waiting for another worker to do so; InputWait waiting for compressed bytes, OutputWait waiting for
	// somebody to want more bytes (who had no buffer free, say).
	DecodeTime, InputWait, OutputWait time.Duration

	// ContentVerified counts the times that a frame was read in order and whole by one Feed and its content checksum was right,
	// ContentUnverified the times that one was read otherwise, so that only block checksums, if it has any, were verified.
	// Frames without a content checksum are in neither.
	ContentVerified, ContentUnverified int64
}

type lz4Counters struct {
	indexReads, indexTime              atomic.Int64
	compressed, bytes, decoded         atomic.Int64
	decodeTime, inputWait, outputWait  atomic.Int64
	contentVerified, contentUnverified atomic.Int64
}

// Stats returns the counts of this moment. It may be called while reads run.
func (s *LZ4Source) Stats() LZ4Stats {
	c := &s.stats
	t := LZ4Stats{
		Frames:     s.all,
		IndexReads: c.indexReads.Load(), IndexTime: time.Duration(c.indexTime.Load()),
		Compressed: c.compressed.Load(), Bytes: c.bytes.Load(), Decoded: c.decoded.Load(),
		DecodeTime: time.Duration(c.decodeTime.Load()), InputWait: time.Duration(c.inputWait.Load()), OutputWait: time.Duration(c.outputWait.Load()),
		ContentVerified: c.contentVerified.Load(), ContentUnverified: c.contentUnverified.Load(),
	}
	for _, f := range s.frames {
		t.Blocks += len(f.blocks)
	}
	return t
}

// Bound names the stage that the workers' time says was the slowest: "decode", "input" (the wire) or "output" (the
// consumer); empty before the first Feed.
func (t LZ4Stats) Bound() string {
	switch most := max(t.DecodeTime, t.InputWait, t.OutputWait); most {
	case 0:
		return ""
	case t.DecodeTime:
		return "decode"
	case t.InputWait:
		return "input"
	}
	return "output"
}

// String is one line for a report.
func (t LZ4Stats) String() string {
	bound := t.Bound()
	if bound == "" {
		return fmt.Sprintf("lz4: %d blocks in %d frames, found in %v", t.Blocks, t.Frames, t.IndexTime.Round(time.Microsecond))
	}
	all := float64(t.DecodeTime + t.InputWait + t.OutputWait)
	return fmt.Sprintf("lz4: %d bytes of %d compressed, bound by %s: the workers decoded %.0f %%, waited for input %.0f %%, for the consumer %.0f %% of the time",
		t.Bytes, t.Compressed, bound, 100*float64(t.DecodeTime)/all, 100*float64(t.InputWait)/all, 100*float64(t.OutputWait)/all)
}
