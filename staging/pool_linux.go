package staging

import (
	"context"
	"errors"
	"fmt"
	"math/bits"
	"os"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
)

// allocate maps, binds, populates and locks the pool's memory.
func (p *Pool) allocate(ctx context.Context, cfg PoolConfig) error {
	node, err := p.chooseNode(cfg)
	if err != nil {
		return err
	}
	if err := p.mapHuge(ctx, cfg, node); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			return cause
		}
		if cfg.HugePages == Require {
			return fmt.Errorf("hugepages are required: %w", err)
		}
		p.info.HugePagesNote = err.Error()
		if err := p.mapNormal(ctx, cfg, node); err != nil {
			return err
		}
	}
	p.info.Node = nodeOf(p.areas())
	return p.lock(ctx, cfg.Lock)
}

// mapHuge maps reserved hugepages of one size or the other, or says why not.
func (p *Pool) mapHuge(ctx context.Context, cfg PoolConfig, node int) error {
	if cfg.HugePages == Never {
		return errors.New("not asked for")
	}
	if cfg.Debug && cfg.HugePages != Require {
		return errors.New("debug mode has guard pages, which must be ordinary ones")
	}
	sizes := []int64{1 << 30, 2 << 20}
	switch {
	case cfg.HugePageSize != 0:
		sizes = []int64{cfg.HugePageSize}
	case p.info.Bytes%sizes[0] != 0:
		sizes = sizes[1:]
	}
	var why []string
	for _, page := range sizes {
		keep := len(p.undo)
		err := p.mapPages(ctx, cfg, node, page)
		if err == nil {
			return nil
		}
		why = append(why, errors.Join(err, p.rollback(keep)).Error())
	}
	return errors.New(strings.Join(why, "; "))
}

// mapPages maps reserved hugepages of one size.
func (p *Pool) mapPages(ctx context.Context, cfg PoolConfig, node int, page int64) error {
	count := (p.info.Bytes + page - 1) / page
	n := count * page
	if int64(int(n)) != n {
		return fmt.Errorf("%d pages of %s are more than this system can address", count, sizeText(page))
	}
	if err := p.reserve(cfg.Limit, n); err != nil {
		return err
	}
	// mmap itself fails when too few pages are reserved; a node or a cgroup that lacks them shows only when they are touched.
	flags := unix.MAP_PRIVATE | unix.MAP_ANONYMOUS | unix.MAP_HUGETLB | bits.TrailingZeros64(uint64(page))<<unix.MAP_HUGE_SHIFT
	m, err := unix.Mmap(-1, 0, int(n), unix.PROT_READ|unix.PROT_WRITE, flags)
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%d pages of %s are needed%s", count, sizeText(page), reserveHint(page, count))
	}
	if err != nil {
		return fmt.Errorf("mmap of %d pages of %s: %w", count, sizeText(page), err)
	}
	p.undo = append(p.undo, func() error { return unix.Munmap(m) })
	if err := p.bound(cfg, node, func() error { return bind(m, node) }); err != nil {
		return err
	}
	if err := populate(ctx, m); err != nil {
		return fmt.Errorf("touching %d pages of %s: %w: too few are free on the node that they must be on, or a cgroup allows no more", count, sizeText(page), err)
	}
	p.mem = m[:p.info.Bytes:p.info.Bytes]
	p.info.HugePages, p.info.PageSize = true, page
	if cfg.Debug {
		p.info.GuardNote = "hugepages were required, and a guard page must be as large as they are"
	}
	return nil
}

// reserveHint says how many hugepages there are, and how to have count more.
func reserveHint(page, count int64) string {
	dir := fmt.Sprintf("/sys/kernel/mm/hugepages/hugepages-%dkB/", page>>10)
	var n [3]int64
	for i, name := range []string{"nr_hugepages", "free_hugepages", "resv_hugepages"} {
		text, err := os.ReadFile(dir + name)
		if err != nil {
			return ", which this machine does not have"
		}
		n[i], _ = strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64)
	}
	free := max(0, n[1]-n[2])
	return fmt.Sprintf(", %d are free: reserve more with `echo %d > %snr_hugepages`", free, n[0]+max(1, count-free), dir)
}

// mapNormal maps ordinary pages, with guard pages in debug mode, and touches them.
func (p *Pool) mapNormal(ctx context.Context, cfg PoolConfig, node int) error {
	page := os.Getpagesize()
	p.info.PageSize = int64(page)
	if err := p.reserve(cfg.Limit, (p.info.Bytes+int64(page)-1)/int64(page)*int64(page)); err != nil {
		return err
	}
	if free, err := topo.Available(); err == nil && free < p.info.Bytes {
		return fmt.Errorf("the machine, or the cgroup, has only %s to give: make the pool smaller or free memory", sizeText(free))
	}
	size, before := p.info.Bytes, 0
	if cfg.Debug {
		if p.info.GuardNote = noGuards(p.info, page); p.info.GuardNote == "" {
			p.stride, before = p.info.BufferSize+page, page
			p.info.Guards = p.info.Buffers
			size = int64(page) + int64(p.info.Buffers)*int64(p.stride)
		}
	}
	m, unmap, err := mapMemory(size)
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("%w; or make the pool smaller (PoolConfig.Bytes)", err)
	}
	if err != nil {
		return err
	}
	p.undo = append(p.undo, unmap)
	p.mem = m[before:]
	for at := 0; p.info.Guards > 0 && at < len(m); at += p.stride {
		if err := unix.Mprotect(m[at:at+page], unix.PROT_NONE); err != nil {
			return fmt.Errorf("a guard page: %w", err)
		}
	}
	if err := p.bound(cfg, node, func() error { return p.bindNormal(m, node) }); err != nil {
		return err
	}
	// The advice must come before the first touch, so MAP_POPULATE is too early, as it is for mbind.
	huge := cfg.HugePages != Never && p.info.Guards == 0
	var refused error
	if huge {
		refused = unix.Madvise(p.mem, unix.MADV_HUGEPAGE)
	}
	for _, area := range p.areas() {
		if err := populate(ctx, area); err != nil {
			return fmt.Errorf("touching the memory: %w", err)
		}
	}
	if huge {
		p.noteTransparent(refused)
	}
	return nil
}

// noGuards says why there can be no guard pages.
func noGuards(info PoolInfo, page int) string {
	if info.BufferSize%page != 0 {
		return fmt.Sprintf("buffers do not end where pages of %s end", sizeText(int64(page)))
	}
	limit := int64(65530) // the kernel's default
	if text, err := os.ReadFile("/proc/sys/vm/max_map_count"); err == nil {
		if n, err := strconv.ParseInt(strings.TrimSpace(string(text)), 10, 64); err == nil {
			limit = n
		}
	}
	if need := 2*int64(info.Buffers) + 2; need > limit/2 { // the other half is for the rest of the process
		return fmt.Sprintf("%d buffers need %d mappings, and vm.max_map_count is %d", info.Buffers, need, limit)
	}
	return ""
}

// atOnce is how many bytes are touched, or locked, between two looks at the context: the kernel cannot be interrupted meanwhile.
const atOnce = 64 << 20

// populate touches all pages for writing. When there are too few it is an error, not a signal.
func populate(ctx context.Context, mem []byte) error {
	for piece := range slices.Chunk(mem, atOnce) {
		if err := context.Cause(ctx); err != nil {
			return err
		}
		err := unix.Madvise(piece, unix.MADV_POPULATE_WRITE)
		if errors.Is(err, unix.EINVAL) { // before Linux 5.14
			err = touch(piece)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// touch does it by hand.
func touch(mem []byte) (err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if fault := recover(); fault != nil {
			err = fmt.Errorf("there is no page to be had (%v)", fault)
		}
	}()
	for i := 0; i < len(mem); i += bufferAlign {
		mem[i] = 0
	}
	return nil
}

// lock pins as much of the memory, from its start, as the limit allows. Reserved hugepages are never swapped, and would use up
// the limit for nothing.
func (p *Pool) lock(ctx context.Context, policy Policy) error {
	switch {
	case p.info.HugePages:
		p.info.LockedBytes = p.info.Bytes
		return nil
	case policy == Never:
		p.info.LockNote = "not asked for"
		return nil
	}
	for _, area := range p.areas() {
		for piece := range slices.Chunk(area, atOnce) {
			if err := context.Cause(ctx); err != nil {
				return err
			}
			n, why := lock(piece, p.info.LockedBytes)
			p.info.LockedBytes += n
			if why == "" {
				continue
			}
			if policy == Require {
				return fmt.Errorf("locked memory is required, got %s: %s", sizeText(p.info.LockedBytes), why)
			}
			p.info.LockNote = why
			return nil
		}
	}
	return nil
}

// lock pins as much of mem, from its start, as the limit allows besides the bytes locked before, and says why it was not all.
func lock(mem []byte, before int64) (locked int64, why string) {
	err := unix.Mlock(mem)
	if err == nil {
		return int64(len(mem)), ""
	}
	var limit unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); e != nil {
		return 0, fmt.Sprintf("mlock: %v; getrlimit: %v", err, e)
	}
	why = fmt.Sprintf("mlock: %v; RLIMIT_MEMLOCK is %d bytes (raise it with ulimit -l or LimitMEMLOCK=)", err, limit.Cur)
	part := min(uint64(len(mem)), limit.Cur-min(limit.Cur, uint64(before)))
	// Others in this process may have locked some already: halve until it fits.
	for part = part / bufferAlign * bufferAlign; part > 0; part = part / 2 / bufferAlign * bufferAlign {
		if unix.Mlock(mem[:part]) == nil {
			return int64(part), why
		}
	}
	return 0, why
}
