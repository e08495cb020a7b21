package gpu

import "fmt"

const (
	defaultStreams = 2
	maxStreams     = 16
)

// Config chooses a device. The zero value is the driver's first one.
type Config struct {
	// Ordinal is the number of the device, as the driver counts.
	Ordinal int
	// PCI chooses the device by its address instead, such as 0000:c1:00.0.
	PCI string
	// Streams is the number of streams for each direction, at most 16. 0 means 2: one hides the gaps between the copies of the other.
	Streams int
	// Library is the driver library to load: a path, or a name for the dynamic linker. "" means the one that the environment names
	// (NVSTAGE_CUDA_LIBRARY, NVSTAGE_ROCM_LIBRARY), or else the driver's usual names.
	Library string
	// Trace shows every copy as a range in the vendor's profiler (NVTX, rocTX). When the library for this cannot be loaded, Info says so and nothing
	// else happens.
	Trace bool
	// TraceLibrary is the library for Trace: "" means libnvToolsExt or libroctx64.
	TraceLibrary string
}

// Info says what Open got.
type Info struct {
	DeviceInfo

	Library string // the driver library that was loaded
	Version int    // of the driver, as it reports it: 12040 is CUDA 12.4
	Streams int    // for each direction
	Trace   string // the library that shows ranges, or why none does; "" when not asked for
}

// String is one line for a log.
func (i Info) String() string {
	s := fmt.Sprintf("device %d, %s at %s, NUMA node %d, %.1f GiB; driver %d (%s), %d streams each way", i.Ordinal, i.Name, i.PCI, i.Node, float64(i.Bytes)/(1<<30), i.Version, i.Library, i.Streams)
	if i.Trace != "" {
		s += "; ranges: " + i.Trace
	}
	return s
}

// Stats counts what a device has done so far, and what it holds.
type Stats struct {
	InCopies, OutCopies int64 // to the device, and from it
	InBytes, OutBytes   int64
	// UnregisteredBytes of these were copied from or to memory that is not registered: not at the rate of the link, and while the caller waited.
	UnregisteredBytes int64

	Memory          int64 // bytes from Alloc that are not freed
	RegisteredBytes int64
}
