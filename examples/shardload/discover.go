package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"

	"github.com/nvstage/nvstage/nvmetcp"
	"github.com/nvstage/nvstage/pdu/fabrics"
	"github.com/spf13/pflag"
)

func discoverCommand(fs *pflag.FlagSet) runner {
	var (
		c      connectFlags
		follow bool
		asJSON bool
	)
	c.add(fs, nvmetcp.DefaultDiscoveryPort)
	fs.BoolVar(&follow, "follow", false, "read the discovery logs that this one refers to as well")
	fs.BoolVar(&asJSON, "json", false, "print the log as a JSON object")
	return func(ctx context.Context, con console, _ []string) error {
		if err := c.needAddress(); err != nil {
			return err
		}
		host, err := c.host()
		if err != nil {
			return err
		}
		limited, cancel := c.within(ctx)
		defer cancel()
		log := &nvmetcp.DiscoveryLog{Addr: c.target().Addr}
		if follow {
			log.Entries, err = host.DiscoverAll(limited, c.target(), c.options())
		} else if l, e := host.Discover(limited, c.target(), c.options()); e == nil {
			log = l
		} else {
			err = e
		}
		if err != nil && len(log.Entries) == 0 {
			return err
		}
		// A referral that could not be followed leaves the rest worth printing.
		print := printLog
		if asJSON {
			print = printLogJSON
		}
		if e := print(con.out, log); e != nil {
			return e
		}
		return err
	}
}

// printLog prints a discovery log for people.
func printLog(w io.Writer, log *nvmetcp.DiscoveryLog) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "SUBTYPE\tTRTYPE\tTRADDR\tTRSVCID\tPORTID\tCNTLID\tSECTYPE\tSUBNQN\n")
	for i := range log.Entries {
		e := &log.Entries[i]
		fmt.Fprintf(t, "%v\t%v\t%s\t%s\t%d\t%s\t%v\t%s\n", e.SUBTYPE, e.TRTYPE, nameText(e.TRADDR), nameText(e.TRSVCID), e.PORTID, cntlidText(e.CNTLID), e.SECTYPE, nameText(e.SubNQN))
	}
	return t.Flush()
}

// cntlidText is a CNTLID of a discovery log, of which two mean something else.
func cntlidText(id uint16) string {
	switch id {
	case fabrics.CNTLIDDynamic:
		return "dynamic"
	case fabrics.CNTLIDStatic:
		return "static"
	}
	return fmt.Sprint(id)
}

// record is an entry of a discovery log with the field names that nvme discover has.
type record struct {
	TRTYPE  string `json:"trtype"`
	ADRFAM  string `json:"adrfam"`
	SUBTYPE string `json:"subtype"`
	TREQ    string `json:"treq"`
	PORTID  uint16 `json:"portid"`
	CNTLID  uint16 `json:"cntlid"`
	TRSVCID string `json:"trsvcid"`
	SubNQN  string `json:"subnqn"`
	TRADDR  string `json:"traddr"`
	EFLAGS  string `json:"eflags"`
	SECTYPE string `json:"sectype"`
}

func printLogJSON(w io.Writer, log *nvmetcp.DiscoveryLog) error {
	records := []record{}
	for i := range log.Entries {
		e := &log.Entries[i]
		records = append(records, record{
			TRTYPE: e.TRTYPE.String(), ADRFAM: e.ADRFAM.String(), SUBTYPE: e.SUBTYPE.String(), TREQ: e.TREQ.String(),
			PORTID: e.PORTID, CNTLID: e.CNTLID, TRSVCID: e.TRSVCID, SubNQN: e.SubNQN, TRADDR: e.TRADDR,
			EFLAGS: eflagsText(e.EFLAGS), SECTYPE: e.SECTYPE.String(),
		})
	}
	return printJSON(w, map[string]any{"address": log.Addr, "genctr": log.GENCTR, "records": records})
}

func eflagsText(f fabrics.EFLAGS) string {
	var s []string
	for _, known := range []struct {
		bit  fabrics.EFLAGS
		text string
	}{
		{fabrics.EFLAGSDuplicate, "duplicate discovery information"},
		{fabrics.EFLAGSPersistent, "explicit discovery connections"},
		{fabrics.EFLAGSNoCDC, "no cdc connectivity"},
	} {
		if f&known.bit != 0 {
			s = append(s, known.text)
		}
	}
	if len(s) == 0 {
		return "none"
	}
	return strings.Join(s, ", ")
}
