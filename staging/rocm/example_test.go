package rocm_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"

	"github.com/nvstage/nvstage/staging"
	"github.com/nvstage/nvstage/staging/rocm"
)

func ExampleOpen() {
	ctx := context.Background()
	dev, err := rocm.Open(rocm.Config{})
	if err != nil {
		log.Fatal(err)
	}
	defer dev.Close()
	// On the device's NUMA node, and registered with it: from such memory copies run at the rate of the link.
	node := dev.Info().Node
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 256 << 20, Node: &node, Devices: []staging.Device{dev}})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()

	model := bytes.NewReader(nil) // or the namespace that the model is on
	shard, err := staging.OpenShard(ctx, &staging.ReaderSource{ReaderAt: model, Bytes: model.Size()})
	if err != nil {
		log.Fatal(err)
	}
	for t, err := range shard.Stream(ctx, pool, dev) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("%s is at %#x\n", t.Name, t.Memory.(*rocm.Memory).Pointer())
		t.Release()
	}
}

func ExampleDevices() {
	devices, err := rocm.Devices("")
	if errors.Is(err, rocm.ErrNotBuilt) || errors.Is(err, rocm.ErrNoDriver) || errors.Is(err, rocm.ErrNoDevice) {
		fmt.Println("no device:", err) // the text says why, and what to do
		return
	}
	if err != nil {
		log.Fatal(err)
	}
	for _, d := range devices {
		fmt.Println(d.Ordinal, d.Name, d.PCI, d.Node, d.Bytes)
	}
}
