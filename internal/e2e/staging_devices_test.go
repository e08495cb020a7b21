package e2e

import (
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/staging"
)

// deviceKind opens two devices for a test, at whose end nothing may be left on them. held is how many bytes are allocated there.
type deviceKind struct {
	name string
	open func(t *testing.T) (devs [2]staging.Device, held func() int64)
}

// deviceKinds is the host and, with the tags cuda and rocm, the stand-ins.
var deviceKinds = []deviceKind{{"host", openHosts}}

// countingHost is the host that counts what is allocated.
type countingHost struct {
	staging.Host
	held *atomic.Int64
}

type countedMemory struct {
	staging.Memory
	held *atomic.Int64
}

func (h countingHost) Alloc(n int64) (staging.Memory, error) {
	m, err := h.Host.Alloc(n)
	if err != nil {
		return nil, err
	}
	h.held.Add(n)
	return countedMemory{m, h.held}, nil
}

func (m countedMemory) Free() {
	m.held.Add(-m.Len())
	m.Memory.Free()
}

func openHosts(t *testing.T) ([2]staging.Device, func() int64) {
	held := new(atomic.Int64)
	t.Cleanup(func() { require.Zero(t, held.Load(), "bytes of the host are left over") })
	return [2]staging.Device{countingHost{held: held}, countingHost{held: held}}, held.Load
}
