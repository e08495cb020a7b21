package staging_test

import (
	"errors"
	"fmt"
	"log"

	"github.com/nvstage/nvstage/staging"
)

// What all pools of a process may take together.
func ExampleLimit() {
	limit := &staging.Limit{Bytes: 64 << 20}
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 48 << 20, Limit: limit})
	if err != nil {
		log.Fatal(err)
	}
	_, err = staging.NewPool(staging.PoolConfig{Bytes: 32 << 20, Limit: limit})
	var full *staging.LimitError
	fmt.Println(errors.As(err, &full), full)
	if err := pool.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(limit.Used())
	// Output:
	// true 32 MiB asked for, 16 MiB free of the memory limit of 64 MiB: ask for less, release something first, or raise the limit
	// 0
}

// Who forgets a buffer, and who writes to one that is not his, is found in debug mode.
func ExamplePoolConfig_debug() {
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 8192, BufferSize: 4096, Debug: true})
	if err != nil {
		log.Fatal(err)
	}
	buf, _ := pool.TryGet()
	mem := buf.Bytes()
	buf.Release()
	mem[100] = 1 // too late
	defer func() {
		text := fmt.Sprint(recover())
		fmt.Println(text[:len("staging: buffer 0 was written to while it was free, at offset 100")])
	}()
	pool.TryGet()
	// Output: staging: buffer 0 was written to while it was free, at offset 100
}

// A pool near a GPU, on node 0 as its driver says, in hugepages if there are any.
func ExampleNewPool() {
	node := 0
	pool, err := staging.NewPool(staging.PoolConfig{Bytes: 16 << 20, Node: &node, Devices: []staging.Device{staging.Host{}}})
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	fmt.Println(pool.Info().Buffers) // and log pool.Info(), which says what it got
	// Output: 16
}
