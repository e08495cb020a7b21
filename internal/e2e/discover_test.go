package e2e

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// Discovery lists what the host may use, where it can be dialled as it stands, and the referral.
func TestF25Discovery(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		for name, h := range map[string]nvmetcp.Host{"allowed": host(t), "stranger": nvmetcp.UniqueHost()} {
			log, err := h.Discover(deadline(t), nvmetcp.Target{Addr: tg.addr[0]}, nil)
			require.NoError(t, err)
			nqns := map[string]int{}
			referrals := 0
			for _, e := range log.Entries {
				switch e.SUBTYPE {
				case fabrics.SUBTYPENVM:
					nqns[e.SubNQN]++
					h, p := split(t, tg.addr[0])
					if e.TRADDR == h && e.TRSVCID == p {
						sub, err := host(t).Connect(deadline(t), nvmetcp.Target{Addr: e.TRADDR + ":" + e.TRSVCID, NQN: e.SubNQN}, nil)
						require.NoError(t, err)
						require.NoError(t, sub.Close())
					}
				case fabrics.SUBTYPEReferral:
					referrals++
					require.Equal(t, "127.0.9.9", e.TRADDR)
					require.Equal(t, "8009", e.TRSVCID)
				}
			}
			require.Positive(t, nqns[tg.multi], name)
			require.Equal(t, name == "allowed", nqns[tg.closed] > 0, name)
			require.Equal(t, 1, referrals)
			if tg.real && name == "allowed" {
				require.Len(t, log.Entries, 6, "itself, four subsystems, one referral")
			}
		}
	})
}

// A host that is not on the subsystem's list is told so, and what to do.
func TestHostNotAllowed(t *testing.T) {
	forTargets(t, func(t *testing.T, tg *target) {
		h := nvmetcp.UniqueHost()
		_, err := h.Connect(deadline(t), nvmetcp.Target{Addr: tg.addr[0], NQN: tg.closed}, nil)
		var st nvme.Status
		require.ErrorAs(t, err, &st)
		require.EqualValues(t, 0x184, st.Code())
		require.ErrorContains(t, err, "not allowed")
		require.ErrorContains(t, err, h.NQN)
		require.ErrorContains(t, err, tg.closed)
		require.NotContains(t, err.Error(), "\n")
	})
}
