package main

import (
	"fmt"

	"github.com/nvstage/nvstage/staging"
	"github.com/nvstage/nvstage/staging/cuda"
	"github.com/nvstage/nvstage/staging/rocm"
)

// openDevice opens where models go. node is the NUMA node that the staging memory should be on, nil if any will do. Without the build tag
// of a GPU its package is there all the same, and the error says what to do.
func openDevice(name string, ordinal int) (dev staging.Device, node *int, err error) {
	switch name {
	case "host":
		return staging.Host{}, nil, nil
	case "cuda":
		d, err := cuda.Open(cuda.Config{Ordinal: ordinal})
		if err != nil {
			return nil, nil, err
		}
		n := d.Info().Node
		return d, &n, nil
	case "rocm":
		d, err := rocm.Open(rocm.Config{Ordinal: ordinal})
		if err != nil {
			return nil, nil, err
		}
		n := d.Info().Node
		return d, &n, nil
	}
	return nil, nil, fmt.Errorf("--device %q: want host, cuda or rocm", name)
}
