package queue

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// F35: a CID is of one slot, differs from the slot's last one, and is never FFFFh, while generations wrap.
func TestF35CIDs(t *testing.T) {
	for _, depth := range []int{1, 2, 127, 128, 4095} {
		s := newSlots(depth, 0)
		last := make([]uint16, depth)
		taken := make([]*slot, depth)
		for range 1<<17/depth + 1 {
			for i := range taken {
				x := s.take()
				if x.cid == 0xFFFF || x.cid == last[s.index(x)] || s.find(x.cid) != x {
					require.FailNow(t, "bad CID", "%#04x of slot %d, depth %d", x.cid, s.index(x), depth)
				}
				last[s.index(x)] = x.cid
				taken[i] = x
			}
			for _, x := range taken {
				s.put(x)
				require.Nil(t, s.find(x.cid), "it is not outstanding any more")
			}
		}
	}
}
