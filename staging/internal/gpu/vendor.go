package gpu

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
)

// Vendor is one of the two drivers.
type Vendor struct {
	// Name is the name of the build tag and of the package.
	Name string
	// Env names a driver library, if Config.Library does not.
	Env string
	// Libraries and Traces are the file names to try.
	Libraries, Traces []string

	hip     bool
	install string // what to do when no library is found
	check   string // what to do when the driver finds no device
}

// CUDA and ROCm are the drivers.
var (
	CUDA = &Vendor{
		Name: "cuda", Env: "NVSTAGE_CUDA_LIBRARY",
		Libraries: []string{"libcuda.so.1", "libcuda.so"},
		Traces:    []string{"libnvToolsExt.so.1", "libnvToolsExt.so"},
		install:   "install NVIDIA's driver (for a container: the NVIDIA Container Toolkit on its host, and --gpus all)",
		check:     "nvidia-smi should list a device, and /dev/nvidia* must be there for this user, also in a container",
	}
	ROCm = &Vendor{
		Name: "rocm", Env: "NVSTAGE_ROCM_LIBRARY", hip: true,
		Libraries: []string{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so.5", "libamdhip64.so", "/opt/rocm/lib/libamdhip64.so"},
		Traces:    []string{"libroctx64.so.4", "libroctx64.so", "/opt/rocm/lib/libroctx64.so"},
		install:   "install ROCm's HIP runtime (Debian: libamdhip64-5; AMD's own packages: hip-runtime-amd)",
		check:     "rocminfo should list a device, and this user must be able to open /dev/kfd and /dev/dri/render* (groups render and video), also in a container",
	}
)

// Errors that say why there is no device. Their text says what to do.
var (
	// ErrNotBuilt: the program was built without support for the vendor's devices.
	ErrNotBuilt = errors.New("not built in")
	// ErrNoDriver: no driver library could be loaded.
	ErrNoDriver = errors.New("no driver library")
	// ErrNoDevice: the driver has no such device, or none at all.
	ErrNoDevice = errors.New("no such device")
	// ErrClosed is what a closed device answers.
	ErrClosed = errors.New("the device is closed")
)

// Error is a call of the driver that failed.
type Error struct {
	Vendor string // cuda or rocm
	Call   string // the function of the driver
	Code   int
	Name   string // of the code, as the driver names it
	Text   string // the driver's description
}

func (e *Error) Error() string {
	return fmt.Sprintf("%s: %s: %s (%d): %s", e.Vendor, e.Call, e.Name, e.Code, e.Text)
}

// The codes of which both drivers have the same.
const (
	codeOutOfMemory   = 2
	codeNoDevice      = 100
	codeInvalidDevice = 101
)

// Is makes the codes for a missing device match [ErrNoDevice].
func (e *Error) Is(target error) bool {
	return target == ErrNoDevice && (e.Code == codeNoDevice || e.Code == codeInvalidDevice)
}

// load finds the driver. tagged says whether the program was built with the vendor's tag.
func (v *Vendor) load(tagged bool, library string) (driver, error) {
	if !tagged {
		return nil, fmt.Errorf("%s: %w: build the program with -tags %s (on Linux, with cgo and a C compiler; no SDK is needed)", v.Name, ErrNotBuilt, v.Name)
	}
	if !linked {
		return nil, fmt.Errorf("%s: %w in spite of -tags %s: that takes Linux (this is %s), CGO_ENABLED=1 and a C compiler", v.Name, ErrNotBuilt, v.Name, runtime.GOOS)
	}
	names := v.Libraries
	if library == "" {
		library = os.Getenv(v.Env)
	}
	if library != "" {
		names = []string{library}
	}
	var tried []string
	for _, name := range names {
		d, err := openDriver(v, name)
		if err == nil {
			return d, nil
		}
		tried = append(tried, fmt.Sprintf("%s (%v)", name, err))
	}
	return nil, fmt.Errorf("%s: %w: tried %s; %s, or name the library in Config.Library or %s", v.Name, ErrNoDriver, strings.Join(tried, ", "), v.install, v.Env)
}

// start loads the driver, initialises it, and counts its devices.
func (v *Vendor) start(tagged bool, library string) (d driver, devices int, err error) {
	if d, err = v.load(tagged, library); err != nil {
		return nil, 0, err
	}
	if err = d.init(); err == nil {
		devices, err = d.count()
	}
	if err == nil && devices == 0 {
		err = fmt.Errorf("%s: %w: the driver counts none", v.Name, ErrNoDevice)
	}
	if err != nil {
		err = fmt.Errorf("%w; the library is %s; %s", err, d.library(), v.check)
		d.unload()
		return nil, 0, err
	}
	return d, devices, nil
}

// DeviceInfo is one device of a driver.
type DeviceInfo struct {
	Ordinal int    // as the driver counts them; CUDA_VISIBLE_DEVICES or HIP_VISIBLE_DEVICES may hide some
	Name    string // the model
	PCI     string // address as in sysfs, such as 0000:c1:00.0
	Node    int    // NUMA node, -1 when it is not known or there is none
	Bytes   int64  // memory
}

// Devices lists the devices. library is as in [Config].
func Devices(v *Vendor, tagged bool, library string) ([]DeviceInfo, error) {
	d, n, err := v.start(tagged, library)
	if err != nil {
		return nil, err
	}
	defer d.unload()
	devices := make([]DeviceInfo, n)
	for i := range devices {
		if devices[i], err = d.describe(i); err != nil {
			return nil, err
		}
	}
	return devices, nil
}
