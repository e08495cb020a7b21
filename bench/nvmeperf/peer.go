package main

import (
	"errors"
	"regexp"
	"strconv"

	"github.com/nvstage/nvstage/bench/internal/measure"
)

var (
	// peerTotal is the last line of spdk_nvme_perf's table: IOPS, MiB/s, and the average latency.
	peerTotal = regexp.MustCompile(`(?m)^Total\s*:\s*([0-9.]+)\s+([0-9.]+)`)
	// peerDevice is a line of the table, which has no total where it has one line only.
	peerDevice = regexp.MustCompile(`(?m)^TCP\b.*:\s*([0-9.]+)\s+([0-9.]+)\s+[0-9.]+\s+[0-9.]+\s+[0-9.]+\s*$`)
	// peerQuantile is a line of what it prints with -L.
	peerQuantile = regexp.MustCompile(`(?m)^\s*(50\.00000|99\.90000)%\s*:\s*([0-9.]+)us`)
)

// parsePeer reads what spdk_nvme_perf prints.
func parsePeer(out string, size int) (*measure.Report, error) {
	m := peerTotal.FindStringSubmatch(out)
	if m == nil {
		m = peerDevice.FindStringSubmatch(out)
	}
	if m == nil {
		return nil, errors.New("it printed no line like spdk_nvme_perf's Total: IOPS MiB/s")
	}
	iops, err := strconv.ParseFloat(m[1], 64)
	if err != nil {
		return nil, err
	}
	r := &measure.Report{Command: "peer", IOPS: iops, BytesPS: iops * float64(size)}
	for _, q := range peerQuantile.FindAllStringSubmatch(out, -1) {
		v, err := strconv.ParseFloat(q[2], 64)
		if err != nil {
			return nil, err
		}
		if r.Latency == nil {
			r.Latency = &measure.Latency{}
		}
		if q[1] == "50.00000" {
			r.Latency.P50 = v
		} else {
			r.Latency.P999 = v
		}
	}
	return r, nil
}
