// Package load reads and writes a namespace as fast as it goes, through the public API of nvmetcp, and
// measures that.
package load

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nvstage/nvstage/nvmetcp"
)

// API is the way in to the queues.
type API string

// The ways in.
const (
	Feed   API = "feed"   // the queue's own thread pulls and completes: no hand-off
	ReadAt API = "readat" // goroutines that call ReadAt and WriteAt
	Batch  API = "batch"  // goroutines that call ReadBatch with as many reads as the queue is deep
)

// Config says what is to be measured. Each queue has an association of its own, since the queues of one
// association share a feed, and sharing takes a lock.
type Config struct {
	Host    nvmetcp.Host
	Target  nvmetcp.Target
	NSID    uint32
	Options nvmetcp.Options // NumIOQueues, QueueSize, MaxIO and CPUs are not looked at

	CPUs         []int // for the queues' threads, each with QueuesPerCPU queues; none: not pinned
	QueuesPerCPU int
	Depth        int // commands outstanding in each queue
	Size         int // bytes of an I/O
	Pattern      Pattern
	API          API
	Threads      int // goroutines of ReadAt and Batch together
	Garbage      int // bytes that a goroutine allocates beside it each second
	Warmup, Time time.Duration
}

// check is the error of a configuration with which nothing can be measured.
func (c *Config) check() error {
	switch {
	case c.Size < 1 || c.Depth < 1 || c.QueuesPerCPU < 1:
		return fmt.Errorf("I/O size %d, queue depth %d and %d queues per CPU: want at least 1 of each", c.Size, c.Depth, c.QueuesPerCPU)
	case !slices.Contains([]API{Feed, ReadAt, Batch}, c.API):
		return fmt.Errorf("API %q: want %s, %s or %s", c.API, Feed, ReadAt, Batch)
	case c.API != Feed && c.Threads < 1:
		return fmt.Errorf("%d threads: want at least 1", c.Threads)
	case c.API == Batch && c.Pattern.Reads < 100:
		return errors.New("a batch only reads")
	}
	return nil
}

// queues is how many queues there are.
func (c *Config) queues() int { return max(len(c.CPUs), 1) * c.QueuesPerCPU }

// depth is how many commands one queue must be able to hold.
func (c *Config) depth() int {
	if c.API == ReadAt {
		return max((c.Threads+c.queues()-1)/c.queues(), 1)
	}
	return c.Depth
}
