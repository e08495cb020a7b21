package main

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/nvstage/nvstage/staging"
	"github.com/nvstage/nvstage/staging/cuda"
	"github.com/nvstage/nvstage/staging/rocm"
)

// deviceFlag is the flag --device. The zero value is none: tensors go no further than the staging memory.
type deviceFlag struct {
	kind    string
	ordinal int
}

// The kinds of devices.
const (
	deviceHost = "host"
	deviceCUDA = "cuda"
	deviceROCm = "rocm"
)

const deviceUsage = "where tensors go: host, or cuda or rocm with :N for the N-th GPU (default nowhere: from the staging memory they are dropped)"

// maxOrdinal bounds the number of a GPU.
const maxOrdinal = 1 << 16

func (d *deviceFlag) Type() string { return "NAME" }

func (d *deviceFlag) String() string {
	if d.kind == deviceCUDA || d.kind == deviceROCm {
		return fmt.Sprintf("%s:%d", d.kind, d.ordinal)
	}
	return d.kind
}

func (d *deviceFlag) Set(s string) error {
	kind, number, numbered := strings.Cut(s, ":")
	n := uint64(0)
	var err error
	if numbered {
		n, err = strconv.ParseUint(number, 10, 32)
	}
	gpu := kind == deviceCUDA || kind == deviceROCm
	if err != nil || n > maxOrdinal || !gpu && (kind != deviceHost || numbered) {
		return errors.New("want host, cuda or rocm, or the N-th GPU like cuda:1, counted from 0")
	}
	*d = deviceFlag{kind, int(n)}
	return nil
}

// gpu is a device of package cuda or rocm: both have the same types.
type gpu = cuda.Device

// open opens the device, nil for none.
func (d *deviceFlag) open() (staging.Device, error) {
	var dev *gpu
	var err error
	switch d.kind {
	case deviceCUDA:
		dev, err = cuda.Open(cuda.Config{Ordinal: d.ordinal})
	case deviceROCm:
		dev, err = rocm.Open(rocm.Config{Ordinal: d.ordinal})
	case deviceHost:
		return staging.Host{}, nil
	default:
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return dev, nil
}

// closeDevice closes a device, if there is one. What goes wrong only matters to whoever wonders about the device.
func closeDevice(con console, dev staging.Device) {
	if dev == nil {
		return
	}
	if err := dev.Close(); err != nil {
		fmt.Fprintf(con.err, "shardload: %s\n", explain(err))
	}
}

// deviceReport is where the tensors went.
type deviceReport struct {
	Kind string     `json:"kind"`
	GPU  *gpuReport `json:"gpu,omitempty"`
}

type gpuReport struct {
	Ordinal           int    `json:"ordinal"`
	Name              string `json:"name"`
	PCI               string `json:"pci"`
	Node              int    `json:"numa_node"`
	Library           string `json:"library"`
	Driver            int    `json:"driver_version"`
	UnregisteredBytes int64  `json:"unregistered_bytes"`
}

// report describes the device, nil for none.
func (d *deviceFlag) report(dev staging.Device) *deviceReport {
	if dev == nil {
		return nil
	}
	r := &deviceReport{Kind: d.kind}
	if g, ok := dev.(*gpu); ok {
		i := g.Info()
		r.GPU = &gpuReport{
			Ordinal: i.Ordinal, Name: i.Name, PCI: i.PCI, Node: i.Node, Library: i.Library, Driver: i.Version,
			UnregisteredBytes: g.Stats().UnregisteredBytes,
		}
	}
	return r
}

func (r *deviceReport) String() string {
	g := r.GPU
	if g == nil {
		return "the host's memory"
	}
	s := fmt.Sprintf("%s:%d, %s at %s, NUMA node %d; driver %d (%s)", r.Kind, g.Ordinal, nameText(g.Name), g.PCI, g.Node, g.Driver, nameText(g.Library))
	if g.UnregisteredBytes > 0 {
		s += fmt.Sprintf("; %s were copied from memory that is not registered, slowly", bytesText(g.UnregisteredBytes))
	}
	return s
}

// copyBack computes the checksums of what is on the device, through the buffers of the pool.
func copyBack(ctx context.Context, con console, dev staging.Device, pool *staging.Pool, tensors []*staging.Tensor, newHash func() hash.Hash) (map[string]string, error) {
	var done atomic.Int64
	total := int64(0)
	for _, t := range tensors {
		total += t.Bytes()
	}
	defer watch(con, "checking", "checked", total, done.Load)()
	buf, err := pool.Get(ctx)
	if err != nil {
		return nil, err
	}
	defer buf.Release()
	sums := make(map[string]string, len(tensors))
	copied := make(chan error, 1)
	for _, t := range tensors {
		h := newHash()
		for off, size := int64(0), t.Memory.Len(); off < size; {
			if err := context.Cause(ctx); err != nil {
				return nil, err
			}
			b := buf.Bytes()[:min(int64(len(buf.Bytes())), size-off)]
			dev.CopyOut(b, t.Memory, off, func(err error) { copied <- err })
			if err := <-copied; err != nil {
				return nil, fmt.Errorf("copying tensor %s back: %w", nameText(t.Name), err)
			}
			h.Write(b)
			off += int64(len(b))
			done.Add(int64(len(b)))
		}
		sums[t.Name] = hex.EncodeToString(h.Sum(nil))
	}
	return sums, nil
}
