package capture

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/nvstage/nvstage/pdu"
	"github.com/nvstage/nvstage/pdu/nvme"
)

// needTshark returns the path of tshark. Without it the test is skipped, unless
// NVSTAGE_REQUIRE_TSHARK=1 says that it must be there.
func needTshark(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("tshark")
	switch {
	case err == nil:
	case os.Getenv("NVSTAGE_REQUIRE_TSHARK") == "1":
		t.Fatalf("NVSTAGE_REQUIRE_TSHARK=1, but: %v", err)
	default:
		t.Skipf("tshark is not installed (Debian: apt install tshark): %v", err)
	}
	return path
}

// seen is what both decoders tell of a PDU.
type seen struct {
	frame, port, typ, flags, hlen, pdo, plen int // port: of the sender
	cid, ttag, offset, length                int // -1: the PDU has none
	header, data                             string
}

// byTshark has tshark decode a capture.
func byTshark(t testing.TB, file []byte, ports ...int) (all []seen) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "trace.pcap")
	require.NoError(t, os.WriteFile(path, file, 0o600))
	args := []string{
		"-r", path, "-T", "pdml", "-J", "nvme-tcp nvme tcp",
		"-o", "nvme-tcp.check_hdgst:TRUE", "-o", "nvme-tcp.check_ddgst:TRUE", "-o", "tcp.reassemble_out_of_order:TRUE",
	}
	for _, p := range ports {
		args = append(args, "-d", fmt.Sprintf("tcp.port==%d,nvme-tcp", p))
	}
	cmd := exec.Command(needTshark(t), args...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	require.NoError(t, err, stderr.String())

	// One element stands on a line, "<" occurs nowhere else, and what matters of a field is a number;
	// a reader of XML would take ten times as long, and choke on strings of the traffic.
	attr := func(line []byte, name string) (string, bool) {
		_, v, ok := bytes.Cut(line, []byte(" "+name+`="`))
		v, _, _ = bytes.Cut(v, []byte(`"`))
		return string(v), ok
	}
	var fields []map[string]string // one for each PDU of the packet; the protocol "nvme" follows its PDU
	frame, port, proto := 0, "", ""
	for line := range bytes.Lines(out) {
		line = bytes.TrimLeft(line, " ")
		switch {
		case bytes.HasPrefix(line, []byte("<packet>")):
			fields = nil
			frame++
		case bytes.HasPrefix(line, []byte("<proto ")):
			if proto, _ = attr(line, "name"); proto == "nvme-tcp" {
				fields = append(fields, map[string]string{})
			}
		case bytes.HasPrefix(line, []byte("<field ")):
			name, _ := attr(line, "name")
			show, ok := attr(line, "show")
			if proto == "tcp" && name == "tcp.srcport" {
				port = show
			} else if ok && strings.HasPrefix(proto, "nvme") && len(fields) > 0 {
				if f := fields[len(fields)-1]; f[name] == "" {
					f[name] = show
				}
			}
		case bytes.HasPrefix(line, []byte("</packet>")):
			for _, f := range fields {
				all = append(all, seenByTshark(t, frame, port, f))
			}
		}
	}
	return all
}

func seenByTshark(t testing.TB, frame int, port string, f map[string]string) seen {
	num := func(names ...string) int {
		for _, name := range names {
			if s, ok := f[name]; ok {
				n, err := strconv.ParseInt(s, 0, 64)
				require.NoError(t, err, name)
				return int(n)
			}
		}
		return -1
	}
	verdict := func(name string) string {
		return map[int]string{-1: "none", 0: "bad", 1: "good", 2: "not checked"}[num(name)]
	}
	p, err := strconv.Atoi(port)
	require.NoError(t, err)
	return seen{
		frame: frame, port: p, typ: num("nvme-tcp.type"), flags: num("nvme-tcp.flags"),
		hlen: num("nvme-tcp.hlen"), pdo: num("nvme-tcp.pdo"), plen: num("nvme-tcp.plen"),
		cid:    num("nvme-tcp.cmd.cid", "nvme.fabrics.cmd.cid", "nvme.cmd.cid", "nvme.cqe.cid"),
		ttag:   num("nvme-tcp.ttag"),
		offset: num("nvme-tcp.data.offset", "nvme-tcp.r2t.offset"),
		length: num("nvme-tcp.data.length", "nvme-tcp.r2t.length"),
		header: verdict("nvme-tcp.hdgst.status"), data: verdict("nvme-tcp.ddgst.status"),
	}
}

// byUs has this package decode a capture.
func byUs(t testing.TB, c Config, file []byte) (all []seen) {
	t.Helper()
	r := read(c, file)
	require.Empty(t, r.errs)
	verdict := func(has, bad bool) string {
		return map[[2]bool]string{{true, false}: "good", {true, true}: "bad"}[[2]bool{has, bad}]
	}
	for _, p := range r.pdus {
		s := seen{
			frame: p.Frame, port: int(p.Conn.Host.Port()),
			typ: int(p.Type), flags: int(p.Flags), hlen: int(p.HLEN), pdo: int(p.PDO), plen: int(p.PLEN),
			cid: -1, ttag: -1, offset: -1, length: -1, header: "none", data: "none",
		}
		if p.To == pdu.Host {
			s.port = int(p.Conn.Controller.Port())
		}
		if p.Flags.Has(pdu.FlagHDGST) {
			s.header = verdict(true, p.BadHeader)
		}
		if p.Flags.Has(pdu.FlagDDGST) {
			s.data = verdict(true, p.BadData)
		}
		switch p.Type {
		case pdu.TypeCapsuleCmd:
			s.cid = int(p.SQE.CID)
		case pdu.TypeCapsuleResp:
			s.cid = int(p.CQE.CID)
		case pdu.TypeH2CData, pdu.TypeC2HData:
			var d pdu.Data
			require.NoError(t, d.Decode(p.Header))
			s.cid, s.ttag, s.offset, s.length = int(d.CCCID), int(d.TTAG), int(d.DATAO), int(d.DATAL)
		case pdu.TypeR2T:
			var d pdu.R2T
			require.NoError(t, d.Decode(p.Header))
			s.cid, s.ttag, s.offset, s.length = int(d.CCCID), int(d.TTAG), int(d.R2TO), int(d.R2TL)
		}
		all = append(all, s)
	}
	return all
}

// same requires that both saw the same PDUs.
func same(t testing.TB, theirs, ours []seen) {
	t.Helper()
	for i := range min(len(theirs), len(ours)) {
		if theirs[i] != ours[i] {
			t.Fatalf("PDU %d of %d and %d\ntshark %+v\nwe     %+v", i, len(theirs), len(ours), theirs[i], ours[i])
		}
	}
	require.Equal(t, len(theirs), len(ours), "PDUs that tshark saw, and we")
}

// padded reports whether the PDU has PAD.
func (s *seen) padded() bool {
	head := s.hlen
	if s.header != "none" {
		head += pdu.DigestLen
	}
	return s.pdo > head
}

// lenient forgives tshark 4.0 what it does to padded PDUs: it takes PAD for data, so that its verdict
// on their data digests is no evidence, and it calls some malformed, shows not all of their fields,
// and knows nothing of the command that was in one when the response comes.
func lenient(theirs, ours []seen) []seen {
	theirs = slices.Clone(theirs)
	for i := range min(len(theirs), len(ours)) {
		their, our := &theirs[i], &ours[i]
		if our.padded() {
			their.data = our.data
		}
		for _, f := range [][2]*int{{&their.cid, &our.cid}, {&their.ttag, &our.ttag}, {&their.offset, &our.offset}, {&their.length, &our.length}} {
			if *f[0] == -1 {
				*f[0] = *f[1]
			}
		}
	}
	return theirs
}

// byDirection sorts PDUs by who sent them, and drops the frame numbers: when segments come out of
// order, the two decoders may see a PDU complete at different packets.
func byDirection(all []seen) []seen {
	for i := range all {
		all[i].frame = 0
	}
	slices.SortStableFunc(all, func(a, b seen) int { return a.port - b.port })
	return all
}

// own gives each connection ports of its own, so that PDUs can be told apart by port.
func own(t testing.TB, align uint8, segments ...int) *trace {
	tr := &trace{t: t, segments: segments}
	for i, dgst := range allDigests {
		c := tr.dial(fmt.Sprintf("192.0.2.1:%d", 50000+i), fmt.Sprintf("192.0.2.9:%d", 4420+i)).handshake().ic(dgst, align)
		c.traffic(uint32(i))
		bad := c.data(pdu.Host, pdu.Data{CCCID: 0x15, DATAO: 1 << 20}, pat(64, 0))
		if dgst.Data {
			bad[len(bad)-10] ^= 1
		}
		if dgst.Header {
			bad[9] ^= 1 // the high byte of CCCID
		}
		c.send(pdu.Host, bad, c.data(pdu.Host, pdu.Data{CCCID: 0x16, DATAO: 1<<32 - 1<<18, Flags: pdu.FlagLast}, pat(1<<18, 1)))
		c.send(pdu.Controller, c.cmd(nvme.SQE{Opcode: 2, CID: 0xffff, NSID: 1 << 31}, nil))
		c.termReq()
		c.bye()
	}
	return tr
}

// mildDisorder swaps neighbours of one direction and sends segments twice. tshark needs the command
// before its completion, and does not find its way through worse.
func mildDisorder(rnd *rand.Rand, in []frame) (out []frame) {
	for _, f := range in {
		out = append(out, f)
		if len(f.data) > 0 && rnd.IntN(4) == 0 {
			out = append(out, f)
		}
	}
	for i := 1; i < len(out); i++ {
		a, b := &out[i-1], &out[i]
		if a.src == b.src && len(a.data) > 0 && len(b.data) > 0 && rnd.IntN(3) == 0 {
			*a, *b = *b, *a
			i++
		}
	}
	return out
}

var ownPorts = []int{4420, 4421, 4422, 4423}

func TestTshark(t *testing.T) {
	needTshark(t)
	for name, segments := range map[string][]int{
		"MTU 1500": {1448}, "MTU 9000": {8948}, "odd": {1, 7, 64, 1448, 3, 4000, 8, 333, 30000}, "offload": {65000},
	} {
		t.Run(name, func(t *testing.T) {
			file := own(t, 0, segments...).pcap("Ethernet")
			ours := byUs(t, Config{}, file)
			require.Len(t, ours, 4*22)
			same(t, byTshark(t, file, ownPorts...), ours)
		})
	}
	for seed := range uint64(2) {
		t.Run(fmt.Sprintf("disorder %d", seed), func(t *testing.T) {
			tr := own(t, 0, 1448, 900, 8948)
			tr.packets = mildDisorder(rand.New(rand.NewPCG(seed, 2)), tr.packets)
			file := tr.pcap("Ethernet")
			same(t, byDirection(byTshark(t, file, ownPorts...)), byDirection(byUs(t, Config{}, file)))
		})
	}
	t.Run("padding", func(t *testing.T) {
		file := own(t, 7, 1448).pcap("Ethernet")
		ours, theirs := byUs(t, Config{}, file), byTshark(t, file, ownPorts...)
		padded := 0
		for _, s := range ours {
			if s.padded() {
				padded++
			}
		}
		require.Greater(t, padded, 20)
		same(t, lenient(theirs, ours), ours)
	})
}
