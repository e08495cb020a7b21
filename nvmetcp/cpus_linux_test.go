package nvmetcp

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
)

// TestF15QueuesWithoutTheirCPU has fewer CPUs than queues, and one that is not there.
func TestF15QueuesWithoutTheirCPU(t *testing.T) {
	const none = 1 << 20
	data := content(1 << 20)
	sub := dial(t, start(t, disk(nvmetest.ModeNVMET, 512, data)), &Options{NumIOQueues: 3, CPUs: []int{none, 0}})
	queues := sub.Controller().Queues
	require.Len(t, queues, 3)
	for i, missing := range []bool{true, false, true} {
		note := "not pinned to CPU 1048576"
		if missing {
			require.Contains(t, strings.Join(queues[i].Notes, "\n"), note)
		} else {
			require.NotContains(t, strings.Join(queues[i].Notes, "\n"), note)
		}
	}
	ns, err := sub.Namespace(t.Context(), 1)
	require.NoError(t, err)
	b := make([]byte, len(data))
	_, err = ns.ReadAt(b, 0)
	require.NoError(t, err)
	require.Equal(t, data, b)
}
