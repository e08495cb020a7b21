package staging

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// allocate maps, populates and locks the pool's memory.
func (p *Pool) allocate(cfg PoolConfig) error {
	if err := p.mapHuge(cfg.HugePages); err != nil {
		if cfg.HugePages == Require {
			return fmt.Errorf("hugepages are required: %w; reserve some with `sysctl vm.nr_hugepages=%d`", err, (p.info.Bytes+hugePage-1)/hugePage)
		}
		p.info.HugePagesNote = err.Error()
		if err := p.mapNormal(cfg.HugePages != Never); err != nil {
			return err
		}
	}
	p.info.LockedBytes, p.info.LockNote = lock(p.mem, cfg.Lock)
	if cfg.Lock == Require && p.info.LockedBytes < p.info.Bytes {
		return errors.Join(fmt.Errorf("locked memory is required, got %d bytes: %s", p.info.LockedBytes, p.info.LockNote), p.unmap())
	}
	return nil
}

// mapHuge maps reserved 2 MiB pages, or says why not.
func (p *Pool) mapHuge(policy Policy) error {
	if policy == Never {
		return errors.New("not asked for")
	}
	size := (int(p.info.Bytes) + hugePage - 1) / hugePage * hugePage
	// mmap itself fails when too few pages are reserved; a cgroup limit shows only when they are touched.
	m, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_HUGETLB|unix.MAP_HUGE_2MB)
	if errors.Is(err, unix.ENOMEM) {
		return fmt.Errorf("fewer than %d pages of 2 MiB are free", size/hugePage)
	}
	if err != nil {
		return fmt.Errorf("mmap of %d pages of 2 MiB: %w", size/hugePage, err)
	}
	if err := unix.Madvise(m, unix.MADV_POPULATE_WRITE); err != nil && !errors.Is(err, unix.EINVAL) {
		return errors.Join(fmt.Errorf("touching %d pages of 2 MiB: %w", size/hugePage, err), unix.Munmap(m))
	}
	p.info.HugePages = true
	p.mem = m[:p.info.Bytes]
	p.unmap = func() error { return unix.Munmap(m) }
	return nil
}

// mapNormal maps ordinary pages and touches them.
func (p *Pool) mapNormal(huge bool) error {
	m, unmap, err := mapMemory(p.info.Bytes)
	if err != nil {
		return err
	}
	p.mem, p.unmap = m, unmap
	if huge {
		if err := unix.Madvise(p.mem, unix.MADV_HUGEPAGE); err != nil {
			p.info.HugePagesNote += fmt.Sprintf("; transparent ones: %v", err)
		} else {
			p.info.HugePagesNote += "; asked for transparent ones"
		}
	}
	// The advice must come before the first touch, so MAP_POPULATE is too early.
	err = unix.Madvise(p.mem, unix.MADV_POPULATE_WRITE)
	if errors.Is(err, unix.EINVAL) { // before Linux 5.14
		for i := 0; i < len(p.mem); i += os.Getpagesize() {
			p.mem[i] = 0
		}
		err = nil
	}
	if err != nil {
		return errors.Join(fmt.Errorf("touching the memory: %w", err), p.unmap())
	}
	return nil
}

// lock pins as much of mem, from its start, as the limit allows.
func lock(mem []byte, policy Policy) (locked int64, note string) {
	if policy == Never {
		return 0, "not asked for"
	}
	err := unix.Mlock(mem)
	if err == nil {
		return int64(len(mem)), ""
	}
	var limit unix.Rlimit
	if e := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &limit); e != nil {
		return 0, fmt.Sprintf("mlock: %v; getrlimit: %v", err, e)
	}
	note = fmt.Sprintf("mlock: %v; RLIMIT_MEMLOCK is %d bytes (raise it with ulimit -l or LimitMEMLOCK=)", err, limit.Cur)
	part := min(uint64(len(mem)), limit.Cur)
	// Others in this process may have locked some already: halve until it fits.
	for part = part / bufferAlign * bufferAlign; part > 0; part = part / 2 / bufferAlign * bufferAlign {
		if unix.Mlock(mem[:part]) == nil {
			return int64(part), note
		}
	}
	return 0, note
}
