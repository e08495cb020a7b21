package staging

import (
	"fmt"
	"slices"
)

// readThrough is the largest hole between two runs of a slice, in bytes of whole blocks, that is read rather than left out: another command
// costs about as much as that many bytes.
const readThrough = 8 << 10

// maxSegments bounds what a slot has to remember.
const maxSegments = 256

// cutter cuts a plan into the contents of buffers, strictly in the order of the plan.
type cutter struct {
	size     int     // of a buffer
	items    []*item // the plan
	feeds    []*feed
	groups   []*group // what there is to read
	admitted int      // items that may be read: items[:admitted]
	cur      int      // groups[:cur] are cut
	pos      int64    // of groups[cur], up to here on the source
}

// item is one tensor of the plan.
type item struct {
	PlanTensor

	index      int
	dev        Device
	start, end int64 // on the source
	joins      bool  // it is read together with an item before it, or lies between such
	mem        Memory
	missing    int64 // bytes that have not reached mem
	sum        hashing
}

// group is the tensors that are read together because they lie in the same place, nearly always a single one.
type group struct {
	items      []*item
	feed       *feed
	start, end int64
	strided    bool // has holes, which is why gather is needed…
	dense      bool // …but none that is worth leaving out
}

// segment is a range of whole blocks that goes to one place in a buffer.
type segment struct {
	off  int64 // on the source
	data int64 // where on the source the last byte that is needed ends
	at   int   // in the buffer
	n    int
}

// part is what a buffer has of an item: n bytes that belong at off in it.
type part struct {
	item   *item
	off, n int64
	from   int64 // where on the source the first of them is
	seg    int   // and in which segment
	at     int   // and where in the buffer; once there are no holes, all of them
	tied   int   // of a strided group: this many parts from here on are of the same group
}

// add appends a tensor to the plan. With share, it is read together with the one before it where they overlap.
func (c *cutter) add(index int, t PlanTensor, share bool) error {
	if t.Shard == nil || t.TensorInfo == nil || t.Begin < 0 || t.End < t.Begin || t.End > t.Shard.Size-t.Shard.DataOffset {
		return fmt.Errorf("staging: entry %d of the plan is not a tensor of its shard", index)
	}
	src := t.Shard.src
	it := &item{PlanTensor: t, index: index, missing: t.Bytes(), start: t.Shard.DataOffset + t.Begin, end: t.Shard.DataOffset + t.End}
	if size := src.Size(); it.end > size {
		return fmt.Errorf("staging: tensor %s ends at %d: %w of now %d bytes", quoted(t.Name), it.end, ErrTruncated, size)
	}
	c.items = append(c.items, it)
	if it.missing == 0 {
		return nil
	}
	strided, dense := it.stride > 0, it.stride-it.run <= readThrough
	if n := len(c.groups); share && n > 0 && c.groups[n-1].shares(it) {
		g := c.groups[n-1]
		g.items = append(g.items, it)
		g.start, g.end = min(g.start, it.start), max(g.end, it.end)
		g.dense = g.dense || dense
		for _, between := range c.items[g.items[0].index+1:] { // empty ones, too
			between.joins = true
		}
		return nil
	}
	g := &group{items: []*item{it}, start: it.start, end: it.end, strided: strided, dense: dense}
	i := slices.IndexFunc(c.feeds, func(f *feed) bool { return f.shard == t.Shard })
	if i < 0 {
		f := &feed{shard: t.Shard, size: src.Size(), block: int64(src.BlockSize())}
		if f.io = int64(c.size); src.MaxIO() > 0 {
			f.io = min(f.io, int64(src.MaxIO()))
		}
		if f.io -= f.io % f.block; f.io == 0 {
			return fmt.Errorf("staging: buffers of %d bytes and reads of at most %d cannot hold a block of %d", c.size, src.MaxIO(), f.block)
		}
		i = len(c.feeds)
		c.feeds = append(c.feeds, f)
	}
	g.feed = c.feeds[i]
	g.feed.left++
	c.groups = append(c.groups, g)
	return nil
}

// shares reports whether it is to be read with the group: both without holes and overlapping, or slices of one tensor side
// by side. It has to overlap the first, lest a chain of entries, each over the end of the one before, be one group without end.
func (g *group) shares(it *item) bool {
	if g.feed.shard != it.Shard || it.start >= g.end || it.end <= g.start {
		return false
	}
	first := g.items[0]
	if !g.strided || it.stride == 0 {
		return !g.strided && it.stride == 0 && it.start < first.end && it.end > first.start
	}
	if it.Of != first.Of || it.stride != first.stride {
		return false
	}
	for _, o := range g.items { // the runs of two slices that overlap cannot both be closed up in one buffer
		if d := it.start - o.start; d > -it.run && d < o.run {
			return false
		}
	}
	return true
}

// before is how many bytes of the item lie before x on the source.
func (it *item) before(x int64) int64 {
	d := min(x, it.end) - it.start
	switch {
	case d <= 0:
		return 0
	case it.stride == 0:
		return d
	}
	return d/it.stride*it.run + min(d%it.stride, it.run)
}

// next is the first range at or behind x that is needed for the item: empty at the item's end if there is none.
func (it *item) next(x int64) (from, to int64) {
	switch x = max(x, it.start); {
	case x >= it.end:
		return it.end, it.end
	case it.stride == 0:
		return x, it.end
	}
	d := x - it.start
	row := it.start + d/it.stride*it.stride
	if d%it.stride >= it.run {
		row += it.stride
		x = row
	}
	return x, row + it.run
}

// needed is the first byte at or behind x that one of the items needs, which a buffer begins with.
func (g *group) needed(x int64) int64 {
	from := g.end
	for _, it := range g.items {
		if a, b := it.next(x); a < b {
			from = min(from, a)
		}
	}
	return from
}

// next is the first range at or behind x that is to be read for the group: empty at the group's end if there is none.
func (g *group) next(x int64) (from, to int64) {
	if g.dense {
		return min(x, g.end), g.end
	}
	from, to = g.end, g.end
	for _, it := range g.items {
		if a, b := it.next(x); a < b && a < from {
			from, to = a, b
		}
	}
	return from, to
}

// ready reports whether the next group has been admitted.
func (c *cutter) ready() bool {
	items := c.groups[c.cur].items
	return items[len(items)-1].index < c.admitted
}

// fill cuts what comes next, as much as goes into a buffer and has been admitted, all of one shard. The next group must have been admitted.
func (c *cutter) fill(sl *slot) {
	sl.segs, sl.parts, sl.gathers = sl.segs[:0], sl.parts[:0], false
	sl.feed = c.groups[c.cur].feed
	for c.cur < len(c.groups) {
		g := c.groups[c.cur]
		if g.feed != sl.feed || !c.ready() {
			break
		}
		from := g.needed(c.pos)
		pos, seg := sl.add(g, from, c.size)
		if seg < 0 {
			break
		}
		k := len(sl.parts)
		for _, it := range g.items {
			off := it.before(from)
			if n := it.before(pos) - off; n > 0 {
				x, _ := it.next(from)
				sl.parts = append(sl.parts, part{item: it, off: off, n: n, from: x, seg: seg})
			}
		}
		if g.strided {
			sl.parts[k].tied = len(sl.parts) - k
			sl.gathers = true
		}
		if pos < g.end {
			c.pos = pos
			break
		}
		c.cur, c.pos = c.cur+1, 0
		g.feed.left--
	}
	for k := range sl.parts { // only now: segments may have been extended at their beginning
		p := &sl.parts[k]
		for ; p.from >= sl.segs[p.seg].off+int64(sl.segs[p.seg].n); p.seg++ {
		}
		p.at = sl.segs[p.seg].at + int(p.from-sl.segs[p.seg].off)
	}
}

// add takes up what is needed of g from the position from on. It returns the first position that did not fit, and the segment in which the
// group begins, negative if nothing fitted.
func (sl *slot) add(g *group, from int64, size int) (pos int64, first int) {
	f := g.feed
	first = -1
	for x, end := g.next(from); x < end; x, end = g.next(end) {
		lo, hi := x-x%f.block, min((end+f.block-1)/f.block*f.block, f.size)
		k := len(sl.segs) - 1
		used := 0
		if k >= 0 {
			used = sl.segs[k].at + sl.segs[k].n
		}
		used = min((used+int(f.block)-1)/int(f.block)*int(f.block), size)
		room := int64(size-used) / f.block * f.block
		gap := int64(0)
		if first >= 0 {
			gap = readThrough
		}
		var stop int64 // where the segment ends
		switch {
		case k >= 0 && x >= sl.segs[k].data && lo <= sl.segs[k].end()+gap: // it follows closely
			s := &sl.segs[k]
			stop = max(s.end(), min(hi, s.end()+room))
			if stop <= x {
				return x, first
			}
			s.n = int(stop - s.off)
		case k >= 0 && sl.around(g, from, lo, hi, room):
			return g.end, k
		default:
			if stop = min(hi, lo+room); stop <= x || k+1 == maxSegments {
				return x, first
			}
			k++
			sl.segs = append(sl.segs, segment{off: lo, at: used, n: int(stop - lo)})
		}
		if first < 0 {
			first = k
		}
		sl.segs[k].data = min(end, stop)
		if stop < end {
			return stop, first
		}
	}
	return g.end, first
}

// around takes g, which lies at [lo, hi), into the last segment if it is whole, lies within it or next to it, and nothing there needs gathering.
func (sl *slot) around(g *group, from, lo, hi, room int64) bool {
	s := &sl.segs[len(sl.segs)-1]
	if g.strided || sl.gathers || from > g.start || lo > s.end() || hi < s.off {
		return false
	}
	lo, hi = min(lo, s.off), max(hi, s.end())
	if hi-lo > int64(s.n)+room {
		return false
	}
	s.off, s.n, s.data = lo, int(hi-lo), max(s.data, g.end)
	return true
}

func (s *segment) end() int64 { return s.off + int64(s.n) }

// gather closes the holes in the slot's parts. scratch is kept between calls.
func (sl *slot) gather(scratch []byte) []byte {
	if !sl.gathers {
		return scratch
	}
	buf := sl.buf.Bytes()
	for k := 0; k < len(sl.parts); k += max(1, sl.parts[k].tied) {
		tied := sl.parts[k:][:sl.parts[k].tied]
		from := buf
		if len(tied) > 1 {
			// Several slices that lie between each other: none may be overwritten by another one's bytes.
			last := sl.segs[len(sl.segs)-1]
			scratch = append(scratch[:0], buf[:last.at+last.n]...)
			from = scratch
		}
		w := len(buf)
		for i := range tied {
			w = min(w, tied[i].at)
		}
		for i := range tied {
			w = sl.close(&tied[i], buf, w, from)
		}
	}
	return scratch
}

// close copies the runs of p to w, one behind the other, and returns where they end.
func (sl *slot) close(p *part, buf []byte, w int, from []byte) int {
	p.at = w
	x, seg := p.from, p.seg
	for n := p.n; n > 0; {
		for x >= sl.segs[seg].end() {
			seg++
		}
		_, end := p.item.next(x)
		m := min(end-x, n)
		at := sl.segs[seg].at + int(x-sl.segs[seg].off)
		copy(buf[w:], from[at:at+int(m)])
		w += int(m)
		n -= m
		x, _ = p.item.next(end)
	}
	return w
}
