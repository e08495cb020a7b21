package staging

import (
	"errors"
	"fmt"
	"slices"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/nvstage/nvstage/internal/topo"
)

// chooseNode is the NUMA node to bind to, or -1 with a note why not the one asked for.
func (p *Pool) chooseNode(cfg PoolConfig) (node int, err error) {
	if cfg.Node == nil || cfg.Bind == Never {
		return -1, nil
	}
	node, note := whichNode(*cfg.Node, topo.Nodes())
	p.info.NodeNote = note
	if node < 0 && cfg.Bind == Require {
		return -1, errors.New("a NUMA node is required: " + note)
	}
	return node, nil
}

func whichNode(node int, nodes []int) (int, string) {
	switch {
	case node < 0:
		return -1, "the device's node is not known"
	case len(nodes) == 0:
		return -1, "this system knows of no NUMA nodes"
	case !slices.Contains(nodes, node):
		return -1, fmt.Sprintf("there is no node %d with memory, only %s", node, topo.FormatList(nodes))
	case len(nodes) == 1:
		return node, "the machine's only node"
	}
	return node, ""
}

// bound binds, if there is a node to bind to, and notes why that failed where the policy does not make it an error.
func (p *Pool) bound(cfg PoolConfig, node int, bind func() error) error {
	if node < 0 {
		return nil
	}
	err := bind()
	if err != nil && cfg.Bind != Require {
		p.info.NodeNote = err.Error()
		return nil
	}
	return err
}

// bindNormal binds ordinary pages that are not touched yet, unless they are more than the node has: then the kernel would end
// processes rather than refuse.
func (p *Pool) bindNormal(mem []byte, node int) error {
	if free, err := topo.AvailableOn(node); err == nil && free < p.info.Bytes {
		return fmt.Errorf("node %d has only %s to give", node, sizeText(free))
	}
	return bind(mem, node)
}

// bind makes all pages of mem that are not touched yet come from one node.
func bind(mem []byte, node int) error {
	const word = 8 * unsafe.Sizeof(uintptr(0))
	mask := make([]uintptr, uintptr(node)/word+1)
	mask[uintptr(node)/word] = 1 << (uintptr(node) % word)
	// The kernel takes one bit less than it is told of.
	_, _, errno := unix.Syscall6(unix.SYS_MBIND, uintptr(unsafe.Pointer(unsafe.SliceData(mem))), uintptr(len(mem)),
		unix.MPOL_BIND, uintptr(unsafe.Pointer(unsafe.SliceData(mask))), uintptr(len(mask))*word+1, 0)
	switch errno {
	case 0:
		return nil
	case unix.EPERM:
		return fmt.Errorf("mbind to node %d: %w (in a container it wants CAP_SYS_NICE, or a seccomp profile that allows it)", node, errno)
	case unix.EINVAL:
		return fmt.Errorf("mbind to node %d: %w: the process's cpuset.mems may leave it out", node, errno)
	}
	return fmt.Errorf("mbind to node %d: %w", node, errno)
}

// nodeOf is the NUMA node that all of the pages lie on that it looks at: up to 1024, spread over the areas.
func nodeOf(areas [][]byte) int {
	const most = 1024
	total := 0
	for _, a := range areas {
		total += len(a)
	}
	step := max(bufferAlign, total/most/bufferAlign*bufferAlign)
	var pages []uintptr
	next := 0 // where in the concatenation of the areas the next page to look at begins
	for _, a := range areas {
		for ; next < len(a); next += step {
			pages = append(pages, uintptr(unsafe.Pointer(&a[next])))
		}
		next -= len(a)
	}
	status := make([]int32, len(pages))
	// Without nodes to move them to, it tells where they are.
	_, _, errno := unix.Syscall6(unix.SYS_MOVE_PAGES, 0, uintptr(len(pages)), uintptr(unsafe.Pointer(unsafe.SliceData(pages))),
		0, uintptr(unsafe.Pointer(unsafe.SliceData(status))), 0)
	if errno != 0 || slices.Min(status) != slices.Max(status) {
		return -1
	}
	return max(-1, int(status[0])) // negative is an error of that page
}
