package nvmetcp

import (
	"errors"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

func TestF22SourceInterface(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeNVMET, 512, content(1<<20)))
	to := at(tgt)
	to.HostIface = "lo"
	sub, err := testHost.Connect(t.Context(), to, &Options{NumIOQueues: 1})
	if errors.Is(err, syscall.EPERM) {
		require.ErrorContains(t, err, "CAP_NET_RAW")
		t.Skip("binding to an interface is not permitted here")
	}
	require.NoError(t, err)
	require.NoError(t, sub.Close())

	to.HostIface = "nosuchif0"
	_, err = testHost.Connect(t.Context(), to, nil)
	require.ErrorContains(t, err, "nosuchif0 is not an interface of this machine")
}
