package staging

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"

	"golang.org/x/sys/unix"
)

// pageScan is struct pm_scan_arg, and pageRegion struct page_region, of linux/fs.h.
type pageScan struct {
	size, flags, start, end, walkEnd, vec, vecLen, maxPages, inverted, mask, anyOf, returned uint64
}

type pageRegion struct{ start, end, categories uint64 }

const (
	pagemapScan = 0xc0606610 // PAGEMAP_SCAN
	pageIsHuge  = 1 << 6     // PAGE_IS_HUGE
)

// noteTransparent reports how much of the memory has transparent hugepages, or that they were refused.
func (p *Pool) noteTransparent(refused error) {
	if refused != nil {
		p.info.HugePagesNote += fmt.Sprintf("; transparent ones: %v", refused)
		return
	}
	n, err := transparent(p.mem)
	if err != nil {
		p.info.HugePagesNote += "; asked for transparent ones (how many it got cannot be told before Linux 6.7)"
		return
	}
	p.info.TransparentBytes = n
	p.info.HugePagesNote += fmt.Sprintf("; transparent ones hold %s of %s", sizeText(n), sizeText(p.info.Bytes))
}

// transparent is how many bytes of mem hugepages hold.
func transparent(mem []byte) (n int64, err error) {
	f, err := os.Open("/proc/self/pagemap")
	if err != nil {
		return 0, err
	}
	defer f.Close()
	regions := make([]pageRegion, 64)
	var pin runtime.Pinner // the kernel gets its address as a number
	pin.Pin(&regions[0])
	defer pin.Unpin()
	start := uint64(uintptr(unsafe.Pointer(unsafe.SliceData(mem))))
	end := start + uint64(len(mem))
	for start < end {
		arg := pageScan{start: start, end: end, mask: pageIsHuge, returned: pageIsHuge, vecLen: uint64(len(regions))}
		arg.size = uint64(unsafe.Sizeof(arg))
		arg.vec = uint64(uintptr(unsafe.Pointer(&regions[0])))
		found, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), pagemapScan, uintptr(unsafe.Pointer(&arg)))
		if errno != 0 {
			return 0, fmt.Errorf("PAGEMAP_SCAN: %w", errno)
		}
		for _, r := range regions[:found] {
			n += int64(r.end - r.start)
		}
		if arg.walkEnd <= start {
			break
		}
		start = arg.walkEnd
	}
	return n, nil
}
