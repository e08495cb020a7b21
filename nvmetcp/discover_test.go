package nvmetcp

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/nvmetcp/nvmetest"
	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/nvstage/nvstage/pdu/nvme"
	"github.com/nvstage/nvstage/queue"
)

// subsystems is a config with n subsystems, of which the last is not for this host.
func subsystems(mode nvmetest.Mode, prefix string, n int) nvmetest.Config {
	c := nvmetest.Config{Mode: mode}
	for i := range n {
		s := nvmetest.Subsystem{NQN: fmt.Sprintf("nqn.2025-01.io.example:%s%d", prefix, i)}
		if i == n-1 {
			s.AllowedHosts = []string{"nqn.2025-01.io.example:somebody-else"}
		}
		c.Subsystems = append(c.Subsystems, s)
	}
	return c
}

func TestDiscover(t *testing.T) {
	each(t, func(t *testing.T, mode nvmetest.Mode, d queue.Driver) {
		c := subsystems(mode, "s", 4)
		c.Referrals = []nvmetest.Referral{{Addr: "192.0.2.9:8009"}}
		tgt := start(t, c)
		log, err := testHost.Discover(within(t, 10*time.Second), Target{Addr: tgt.Addr()}, &Options{Driver: d, HeaderDigest: true, DataDigest: true})
		require.NoError(t, err)
		require.Equal(t, tgt.Addr(), log.Addr)
		require.Len(t, log.Entries, 1+3+1, "itself, the subsystems that the host may see, and the referral")
		require.Equal(t, fabrics.SUBTYPECurrent, log.Entries[0].SUBTYPE)
		for i, e := range log.Entries[1:4] {
			require.Equal(t, fmt.Sprintf("nqn.2025-01.io.example:s%d", i), e.SubNQN)
			to, err := TargetOf(&e)
			require.NoError(t, err)
			require.Equal(t, Target{Addr: tgt.Addr(), NQN: e.SubNQN}, to, "padding is trimmed")
		}
		require.Equal(t, fabrics.SUBTYPEReferral, log.Entries[4].SUBTYPE)
		require.Equal(t, "192.0.2.9", log.Entries[4].TRADDR)
		require.Eventually(t, func() bool { return tgt.Stats().Open == 0 }, 5*time.Second, time.Millisecond)
	})
}

func TestF19OneShotDiscoveryHasNoKATO(t *testing.T) {
	tgt := start(t, subsystems(nvmetest.ModeSPDK, "s", 2))
	katos := make(chan uint32, 1)
	tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.SQE.Opcode == nvme.OpFabrics && fabrics.Type(&c.SQE) == fabrics.TypeConnect {
			katos <- c.SQE.CDW12
		}
		return nvmetest.Action{}
	}})
	_, err := testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, &Options{KeepAlive: time.Second})
	require.NoError(t, err)
	require.Zero(t, <-katos)
}

func TestF25LongLog(t *testing.T) {
	for _, mode := range modes {
		tgt := start(t, subsystems(mode, "long", 301))
		log, err := testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, nil)
		require.NoError(t, err)
		require.Len(t, log.Entries, 301)
		require.Equal(t, "nqn.2025-01.io.example:long299", log.Entries[300].SubNQN)
	}
}

func TestF25LogChangesWhileItIsRead(t *testing.T) {
	for _, mode := range modes {
		tgt := start(t, subsystems(mode, "s", 3))
		tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{DiscoveryChanges: 4}})
		log, err := testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, nil)
		require.NoError(t, err)
		require.Len(t, log.Entries, 3)
		require.Greater(t, log.GENCTR, uint64(4), "what was read while it changed is not used")

		tgt.SetFaults(nvmetest.Faults{Controller: nvmetest.ControllerFaults{DiscoveryChanges: -1}})
		before := tgt.Stats().Admin[nvme.OpGetLogPage]
		_, err = testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, nil)
		require.ErrorIs(t, err, ErrController)
		require.ErrorContains(t, err, "the log changed each of the 10 times")
		require.EqualValues(t, 3*maxDiscoveryReads, tgt.Stats().Admin[nvme.OpGetLogPage]-before)
	}
}

func TestF25DiscoverRestart(t *testing.T) {
	tgt := start(t, subsystems(nvmetest.ModeSPDK, "s", 3))
	tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Opcodes: []nvme.Opcode{nvme.OpGetLogPage}, Nth: 2, Count: 2, Do: nvmetest.Action{Status: nvme.StatusDiscoverRestart.Status()},
	}}})
	log, err := testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, nil)
	require.NoError(t, err)
	require.Len(t, log.Entries, 3)

	tgt.SetFaults(nvmetest.Faults{Rules: []nvmetest.Rule{{
		Opcodes: []nvme.Opcode{nvme.OpGetLogPage}, Do: nvmetest.Action{Status: nvme.StatusDiscoverRestart.Status()},
	}}})
	_, err = testHost.Discover(within(t, 10*time.Second), Target{Addr: tgt.Addr()}, nil)
	require.ErrorIs(t, err, ErrController)
}

// TestF25RetainedEvents wants RAE on all reads of the log but the last.
func TestF25RetainedEvents(t *testing.T) {
	tgt := start(t, subsystems(nvmetest.ModeNVMET, "s", 3))
	var (
		mu  sync.Mutex
		rae []bool
	)
	tgt.SetFaults(nvmetest.Faults{OnCommand: func(c nvmetest.Command) nvmetest.Action {
		if c.SQE.Opcode == nvme.OpGetLogPage {
			mu.Lock()
			rae = append(rae, c.SQE.CDW10&(1<<15) != 0)
			mu.Unlock()
		}
		return nvmetest.Action{}
	}})
	_, err := testHost.Discover(t.Context(), Target{Addr: tgt.Addr()}, nil)
	require.NoError(t, err)
	mu.Lock()
	defer mu.Unlock()
	require.Equal(t, []bool{true, true, false}, rae)
}

func TestF25HostileLog(t *testing.T) {
	for name, c := range map[string]struct {
		header fabrics.DiscoveryHeader
		says   string
	}{
		"too many":       {fabrics.DiscoveryHeader{NUMREC: 1 << 60}, "claims 1152921504606846976 entries, more than the limit of 16384"},
		"all ones":       {fabrics.DiscoveryHeader{NUMREC: 1<<64 - 1}, "more than the limit"},
		"other format":   {fabrics.DiscoveryHeader{NUMREC: 1, RECFMT: 1}, "record format 1"},
		"entry no entry": {fabrics.DiscoveryHeader{NUMREC: 2}, "entry 0"},
	} {
		t.Run(name, func(t *testing.T) {
			tgt := start(t, subsystems(nvmetest.ModeNVMET, "s", 2))
			tgt.SetFaults(nvmetest.Faults{OnCommand: func(cmd nvmetest.Command) nvmetest.Action {
				if cmd.SQE.Opcode != nvme.OpGetLogPage {
					return nvmetest.Action{}
				}
				var r nvme.LogRequest
				r.DecodeSQE(&cmd.SQE)
				b := make([]byte, r.Bytes())
				if r.Offset == 0 {
					copy(b, c.header.Append(nil))
				}
				return nvmetest.Action{Raw: rawRead(cmd.SQE.CID, b)}
			}})
			_, err := testHost.Discover(within(t, 10*time.Second), Target{Addr: tgt.Addr()}, nil)
			require.ErrorIs(t, err, ErrController)
			require.ErrorContains(t, err, c.says)
		})
	}
}

// rawRead is a controller's answer to a command that reads data, on a queue without digests.
func rawRead(cid uint16, data []byte) []byte {
	d := pdu.Data{Type: pdu.TypeC2HData, Flags: pdu.FlagLast, CCCID: cid}
	b := d.Append(nil, pdu.Layout{}, data)
	b = append(b, byte(pdu.TypeCapsuleResp), 0, 24, 0)
	b = binary.LittleEndian.AppendUint32(b, 24)
	cqe := nvme.CQE{CID: cid}
	return cqe.Append(b)
}

func TestF25Referrals(t *testing.T) {
	// a refers to b and to itself, b to a and c, c to b, and to somebody who is not there.
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	lost := gone.Addr().String()
	gone.Close()
	var addr [3]string
	for i := range addr {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		addr[i] = l.Addr().String()
		l.Close()
	}
	refer := [3][]string{{addr[1], addr[0]}, {addr[0], addr[2]}, {addr[1], lost}}
	var tgt [3]*nvmetest.Target
	for i := range addr {
		c := subsystems(modes[i], string(rune('a'+i)), 2)
		c.Addr = addr[i]
		for _, r := range refer[i] {
			c.Referrals = append(c.Referrals, nvmetest.Referral{Addr: r})
		}
		tgt[i] = start(t, c)
	}
	entries, err := testHost.DiscoverAll(within(t, 20*time.Second), Target{Addr: addr[0]}, nil)
	require.ErrorContains(t, err, lost, "what could not be followed is told")
	require.NotContains(t, err.Error(), "\n")
	var nvm []string
	for _, e := range entries {
		if e.SUBTYPE == fabrics.SUBTYPENVM {
			nvm = append(nvm, e.SubNQN)
		}
	}
	require.Equal(t, []string{"nqn.2025-01.io.example:a0", "nqn.2025-01.io.example:b0", "nqn.2025-01.io.example:c0"}, nvm)
	require.Len(t, entries, 3+3+4, "without duplicates: subsystems, the three themselves, four referrals")
	for _, g := range tgt {
		require.Equal(t, 1, g.Stats().Connections, "each is read once")
	}
}

func TestF25ReferralsAreBounded(t *testing.T) {
	var next string
	const n = maxReferralDepth + 3
	for i := range n {
		c := subsystems(nvmetest.ModeNVMET, fmt.Sprintf("chain%d-", i), 2)
		if next != "" {
			c.Referrals = []nvmetest.Referral{{Addr: next}}
		}
		next = start(t, c).Addr()
	}
	entries, err := testHost.DiscoverAll(within(t, 20*time.Second), Target{Addr: next}, nil)
	require.ErrorContains(t, err, "more than 8 referrals deep")
	require.Len(t, entries, 3*(maxReferralDepth+1))
}

func TestF25AddressesCompareAsAddresses(t *testing.T) {
	same := func(a, b string) bool { return placeOf(a, "x") == placeOf(b, "x") }
	require.True(t, same("[2001:db8::1]:8009", "[2001:0DB8:0:0::0001]:8009"))
	require.True(t, same("[::ffff:192.0.2.1]:8009", "192.0.2.1:8009"))
	require.True(t, same("Storage.example:8009", "storage.example:8009"))
	require.False(t, same("192.0.2.1:8009", "192.0.2.1:4420"))
	require.False(t, same("192.0.2.1:8009", "192.0.2.2:8009"))
	require.False(t, same("[fe80::1%eth0]:8009", "[fe80::1%eth1]:8009"))
	require.NotEqual(t, placeOf("192.0.2.1:8009", "x"), placeOf("192.0.2.1:8009", "y"))
}

func TestTargetOf(t *testing.T) {
	e := fabrics.DiscoveryEntry{TRTYPE: fabrics.TRTYPETCP, SUBTYPE: fabrics.SUBTYPENVM, TRADDR: "2001:db8::1", SubNQN: "nqn.2025-01.io.example:x"}
	to, err := TargetOf(&e)
	require.NoError(t, err)
	require.Equal(t, "[2001:db8::1]:4420", to.Addr)
	e.SUBTYPE = fabrics.SUBTYPEReferral
	to, err = TargetOf(&e)
	require.NoError(t, err)
	require.Equal(t, "[2001:db8::1]:8009", to.Addr)
	e.TRTYPE = fabrics.TRTYPERDMA
	_, err = TargetOf(&e)
	require.ErrorContains(t, err, "rdma")
}

func TestDiscoverOfAnIOController(t *testing.T) {
	tgt := start(t, disk(nvmetest.ModeSPDK, 512, make([]byte, 1<<20)))
	_, err := testHost.Discover(t.Context(), at(tgt), nil)
	require.ErrorIs(t, err, nvme.StatusInvalidLogPage)
}
