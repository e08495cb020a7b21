package nvmetcp

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// Namespace is a handle of a namespace: an array of bytes that is read at any offset and length, and
// written in whole blocks. Its methods may be called from any goroutine, and reads and writes run in
// parallel over all queues of the subsystem.
//
// A buffer that was handed over belongs to the Namespace until the call returns: that of a read must
// be neither read nor changed meanwhile, that of a write not changed. It is sent from where it lies,
// so copy what may change. With data digests a change on its way is taken for damage, of which the
// write fails, and Linux targets end the association; without them the controller stores a mixture.
type Namespace struct {
	sub      *Subsystem
	nsid     uint32
	ids      nvme.NamespaceIDs
	size     int64
	block    int64
	maxRead  int // bytes of one command, whole blocks
	maxWrite int
	requests sync.Pool // of *request
}

var (
	_ io.ReaderAt = (*Namespace)(nil)
	_ io.WriterAt = (*Namespace)(nil)
)

// Block sizes that are taken: anything from the smallest that there is to what a discard buffer may be.
const maxBlock = 64 << 10

// maxBlocks is how many logical blocks one command moves at most (NLB, 0's based, 16 bits).
const maxBlocks = 1 << 16

func newNamespace(s *Subsystem, c *controller, nsid uint32, id *nvme.IdentifyNamespace, ids *nvme.NamespaceIDs) (*Namespace, error) {
	if id.NSZE == 0 {
		return nil, fmt.Errorf("%w: Subsystem.Namespaces lists those that are", ErrNoNamespace)
	}
	if ids.HasCSI && ids.CSI != nvme.CSINVM {
		return nil, fmt.Errorf("%w: namespace %d has the %v command set, only NVM is supported", ErrController, nsid, ids.CSI)
	}
	size, err := id.Bytes()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrController, err)
	}
	block := int(id.BlockSize())
	if block > maxBlock {
		return nil, fmt.Errorf("%w: namespace %d has blocks of %d bytes, more than %d", ErrController, nsid, block, maxBlock)
	}
	if ms := id.MetadataSize(); ms != 0 || id.DPS&7 != 0 {
		return nil, fmt.Errorf("%w: namespace %d has %d bytes of metadata with each block and protection type %d; format it without",
			ErrMetadata, nsid, ms, id.DPS&7)
	}
	n := &Namespace{sub: s, nsid: nsid, ids: *ids, size: size, block: int64(block)}
	n.maxRead, n.maxWrite = c.limits(block)
	if n.maxRead == 0 {
		return nil, fmt.Errorf("%w: MaxIO %d and MDTS %d do not let one block of %d bytes through", ErrController, c.opts.MaxIO, c.identify.MDTS, block)
	}
	n.requests.New = func() any { return newRequest(n) }
	return n, nil
}

// limits returns how many bytes one read and one write may move, in whole blocks.
//
// With data digests a write must fit one H2CData: Linux targets compute the digest over the whole of
// a command's data for each H2CData that they get.
func (c *controller) limits(block int) (read, write int) {
	n := uint64(min(c.opts.MaxIO, maxBlocks*block))
	if mdts := c.identify.MaxTransfer(); mdts != 0 {
		n = min(n, mdts)
	}
	read = int(n) / block * block
	write = read
	if c.opts.DataDigest {
		for _, q := range c.io {
			write = min(write, max(int(min(q.Info().MAXH2CDATA, 1<<30))/block, 1)*block)
		}
	}
	return read, write
}

// NSID is the namespace identifier.
func (n *Namespace) NSID() uint32 { return n.nsid }

// Size is the size in bytes (NSZE blocks).
func (n *Namespace) Size() int64 { return n.size }

// BlockSize is the size of a logical block in bytes, the unit of writes.
func (n *Namespace) BlockSize() int { return int(n.block) }

// MaxIO is how many bytes one command reads at most, and so the largest [Read] that a [Feed] may
// hand out. Other reads may be larger; they are split.
func (n *Namespace) MaxIO() int { return n.maxRead }

// MaxWrite is how many bytes one command writes at most, and so the largest write that a [Feed] may
// hand out: MaxIO, or less with data digests. Other writes may be larger; they are split.
func (n *Namespace) MaxWrite() int { return n.maxWrite }

// UUID is the namespace's UUID, zero if it has none.
func (n *Namespace) UUID() [16]byte { return n.ids.UUID }

// NGUID is the namespace globally unique identifier, big-endian, zero if there is none.
func (n *Namespace) NGUID() [16]byte { return n.ids.NGUID }

// EUI64 is the IEEE extended unique identifier, big-endian, zero if there is none.
func (n *Namespace) EUI64() [8]byte { return n.ids.EUI64 }

// Flush makes all writes that have completed safe from a loss of power.
func (n *Namespace) Flush(ctx context.Context) error {
	c, err := n.sub.path()
	q := c.pick()
	if err == nil {
		cmd := queue.Command{SQE: nvme.Flush(n.nsid)}
		err = q.Do(ctx, &cmd)
	}
	if err == nil {
		return nil
	}
	return c.wrap(fmt.Sprintf("flush of namespace %d", n.nsid), q.Info().QID, err)
}

// pick chooses the I/O queue with the fewest commands of calls; of equals the first, so that a lone
// caller always meets the same queue, which has not gone to sleep yet.
func (c *controller) pick() *ioQueue {
	best := c.io[0]
	least := best.outstanding.Load()
	for _, q := range c.io[1:] {
		if least == 0 {
			break
		}
		if n := q.outstanding.Load(); n < least {
			best, least = q, n
		}
	}
	return best
}
