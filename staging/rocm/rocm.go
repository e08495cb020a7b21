// Package rocm makes AMD GPUs devices of package staging, through HIP (libamdhip64.so).
//
// It is built in with the tag rocm, on Linux, with cgo and a C compiler; the driver library is loaded at run time, and no SDK is needed. Without the
// tag the package is there all the same, and Open and Devices answer with an error that says what to do.
//
//	dev, err := rocm.Open(rocm.Config{})
//	defer dev.Close()
//	for t, err := range shard.Stream(ctx, pool, dev) {
//		use(t.Name, t.Memory.(*rocm.Memory).Pointer())
//		t.Release()
//	}
//
// Copies run at the rate of the link, and behind the caller's back, from memory that is registered with the device: name it in PoolConfig.Devices of
// the pool. Other memory works, slower, and is counted in Stats.
//
// Packages cuda and rocm have the same API and the same types.
package rocm

import "github.com/nvstage/nvstage/staging/internal/gpu"

// Errors of Open and Devices, and of a closed device. The full text says what was tried and what to do.
var (
	ErrNotBuilt = gpu.ErrNotBuilt // the program was built without the tag rocm
	ErrNoDriver = gpu.ErrNoDriver // no driver library could be loaded
	ErrNoDevice = gpu.ErrNoDevice // the driver has no such device, or none at all
	ErrClosed   = gpu.ErrClosed   // the device is closed
)

type (
	// Config chooses a device. The zero value is the driver's first one.
	Config = gpu.Config
	// Device is an open device. It implements staging.Device and staging.Registrar; Wrap makes memory of a device pointer that the caller owns.
	// It tells what it is by Info, and what it did by Stats.
	Device = gpu.Device
	// DeviceInfo is one device of the driver: its ordinal, name, PCI address, NUMA node and memory.
	DeviceInfo = gpu.DeviceInfo
	// Error is a call of the driver that failed: the call, the code, and its name.
	Error = gpu.Error
	// Info says what Open got: the device, the driver library and its version, the streams.
	Info = gpu.Info
	// Memory is device memory. It implements staging.Memory, and has Pointer.
	Memory = gpu.Memory
	// Stats counts what a device has done.
	Stats = gpu.Stats
)

// Open opens a device. Errors match [ErrNotBuilt], [ErrNoDriver], [ErrNoDevice], or are of type *[Error].
func Open(cfg Config) (*Device, error) { return gpu.Open(gpu.ROCm, tagged, cfg) }

// Devices lists the devices without opening one. library is as in [Config]: "" for the usual one. Errors are those of Open; a driver without
// devices is [ErrNoDevice].
func Devices(library string) ([]DeviceInfo, error) { return gpu.Devices(gpu.ROCm, tagged, library) }
