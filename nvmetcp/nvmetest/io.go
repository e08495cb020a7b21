package nvmetest

import (
	"bytes"
	"errors"

	"github.com/nvstage/nvstage/pdu/nvme"
)

// io executes a command of an I/O queue.
func (c *Conn) io(cmd *command, data []byte) nvme.Status {
	ns, st := c.checkIO(cmd)
	if !st.OK() {
		return st
	}
	sqe := &cmd.sqe
	off := int64(sqe.SLBA())
	if ns != nil {
		off <<= ns.shift
	}
	switch sqe.Opcode {
	case nvme.OpRead:
		return c.readBlocks(cmd, ns, off)
	case nvme.OpWrite:
		if _, err := ns.backend.WriteAt(data, off); err != nil {
			return c.writeError(err)
		}
		return 0
	case nvme.OpCompare:
		buf := c.t.pool.get(len(data))
		defer c.t.pool.put(buf)
		if n, _ := ns.backend.ReadAt(buf.b, off); n < len(data) {
			return c.fail(nvme.StatusUnrecoveredReadError)
		}
		if !bytes.Equal(buf.b, data) {
			return c.fail(nvme.StatusCompareFailure)
		}
		return 0
	case nvme.OpWriteZeroes:
		return c.writeZeroes(ns, off, int64(sqe.Blocks())<<ns.shift)
	case nvme.OpDatasetManagement:
		return c.datasetManagement(cmd, ns, data)
	}
	return c.flush(ns) // checkIO lets nothing else pass
}

// checkIO checks what can be checked without the data. It returns nil for a Flush of all namespaces.
func (c *Conn) checkIO(cmd *command) (*namespace, nvme.Status) {
	sqe := &cmd.sqe
	switch sqe.Opcode {
	case nvme.OpRead, nvme.OpWrite, nvme.OpWriteZeroes, nvme.OpDatasetManagement, nvme.OpFlush:
	case nvme.OpCompare:
		if c.t.profile.Mode == ModeNVMET {
			return nil, c.fail(nvme.StatusInvalidOpcode)
		}
	default:
		return nil, c.fail(nvme.StatusInvalidOpcode)
	}
	if sqe.Opcode == nvme.OpFlush && sqe.NSID == nvme.NSIDAll {
		return nil, 0
	}
	ns := c.ctrl.sub.namespace(sqe.NSID)
	if ns == nil {
		return nil, c.fail(nvme.StatusInvalidNamespace)
	}
	switch state := nvme.ANAState(ns.group.state.Load()); state {
	case nvme.ANAOptimized, nvme.ANANonOptimized:
	case nvme.ANAInaccessible:
		return nil, nvme.StatusANAInaccessible.Status()
	case nvme.ANAPersistentLoss:
		return nil, nvme.StatusANAPersistentLoss.Status()
	default:
		return nil, nvme.StatusANATransition.Status()
	}
	if sqe.Opcode == nvme.OpFlush {
		return ns, c.dataLength(cmd, 0)
	}
	if sqe.Opcode == nvme.OpDatasetManagement {
		return ns, c.dataLength(cmd, (int(sqe.CDW10&0xFF)+1)*nvme.DSMRangeLen)
	}
	if n := uint64(sqe.Blocks()); sqe.SLBA() > ns.blocks || n > ns.blocks-sqe.SLBA() {
		return nil, nvme.StatusLBAOutOfRange.Status().WithDNR()
	}
	if ns.metadata != 0 {
		return nil, c.fail(nvme.StatusInvalidField)
	}
	if sqe.Opcode == nvme.OpWriteZeroes {
		if st := c.dataLength(cmd, 0); !st.OK() {
			return nil, st
		}
	} else if st := c.dataLength(cmd, int(sqe.Blocks())<<ns.shift); !st.OK() {
		return nil, st
	}
	if ns.readOnly && (sqe.Opcode == nvme.OpWrite || sqe.Opcode == nvme.OpWriteZeroes) {
		return nil, nvme.StatusWriteProtected.Status().WithDNR()
	}
	return ns, 0
}

// dataLength compares the SGL with the length of a command's data.
func (c *Conn) dataLength(cmd *command, want int) nvme.Status {
	if int(cmd.sqe.SGL.Length) == want {
		return 0
	}
	c.note("%s with an SGL of %d bytes for %d bytes of data", c.name(&cmd.sqe), cmd.sqe.SGL.Length, want)
	return nvme.StatusDataSGLLengthInvalid.Status().WithDNR()
}

func (c *Conn) readBlocks(cmd *command, ns *namespace, off int64) nvme.Status {
	n := int(cmd.sqe.SGL.Length)
	if ns.slicer != nil {
		if cmd.data = ns.slicer.Slice(off, n); cmd.data != nil {
			return 0
		}
	}
	cmd.buf = c.t.pool.get(n)
	if got, err := ns.backend.ReadAt(cmd.buf.b, off); got < n {
		c.t.log.Warn("nvmetest: read", "nsid", ns.nsid, "offset", off, "err", err)
		return c.fail(nvme.StatusUnrecoveredReadError)
	}
	cmd.data = cmd.buf.b
	return 0
}

func (c *Conn) writeError(err error) nvme.Status {
	if errors.Is(err, ErrReadOnly) {
		return nvme.StatusWriteProtected.Status().WithDNR()
	}
	c.t.log.Warn("nvmetest: write", "err", err)
	return c.fail(nvme.StatusWriteFault)
}

// writeZeroes writes n zero bytes.
func (c *Conn) writeZeroes(ns *namespace, off, n int64) nvme.Status {
	buf := c.t.pool.get(int(min(n, 64<<10)))
	defer c.t.pool.put(buf)
	clear(buf.b)
	for n > 0 {
		p := buf.b[:min(n, int64(len(buf.b)))]
		if _, err := ns.backend.WriteAt(p, off); err != nil {
			return c.writeError(err)
		}
		off += int64(len(p))
		n -= int64(len(p))
	}
	return 0
}

// datasetManagement deallocates, which here is to write zeroes. Other hints are ignored.
func (c *Conn) datasetManagement(cmd *command, ns *namespace, data []byte) nvme.Status {
	var ranges [256]nvme.DSMRange
	n := len(data) / nvme.DSMRangeLen
	for i := range n {
		r := &ranges[i]
		if err := r.Decode(data[i*nvme.DSMRangeLen:]); err != nil {
			return c.fail(nvme.StatusInvalidField)
		}
		if r.SLBA > ns.blocks || uint64(r.NLB) > ns.blocks-r.SLBA {
			return nvme.StatusLBAOutOfRange.Status().WithDNR()
		}
	}
	if cmd.sqe.CDW11&nvme.DSMDeallocate == 0 {
		return 0
	}
	if ns.readOnly {
		return nvme.StatusWriteProtected.Status().WithDNR()
	}
	for i := range n {
		r := &ranges[i]
		if st := c.writeZeroes(ns, int64(r.SLBA)<<ns.shift, int64(r.NLB)<<ns.shift); !st.OK() {
			return st
		}
	}
	return 0
}

// flush flushes one namespace, or all for nil.
func (c *Conn) flush(ns *namespace) nvme.Status {
	if ns != nil {
		return c.flushOne(ns)
	}
	for _, ns := range *c.ctrl.sub.namespaces.Load() {
		if st := c.flushOne(ns); !st.OK() {
			return st
		}
	}
	return 0
}

func (c *Conn) flushOne(ns *namespace) nvme.Status {
	if ns.backend == nil {
		return 0
	}
	if err := ns.backend.Flush(); err != nil {
		return c.writeError(err)
	}
	return 0
}
