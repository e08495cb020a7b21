package gpu

// handle is a stream or an event.
type handle uintptr

// direction is the way of a copy. The values are those of driver.h.
type direction int

const (
	toDevice direction = iota
	toHost
)

// driver is a driver library, and after open one of its devices. Each method is one call, on whatever thread, safe for concurrent use. Errors are
// of type [*Error].
type driver interface {
	library() string
	unload()

	init() error
	version() (int, error)
	count() (int, error)
	describe(ordinal int) (DeviceInfo, error)

	open(ordinal int) error
	close() error
	trace(library string) error

	memInfo() (free, total int64, err error)
	alloc(n int64) (uintptr, error)
	free(ptr uintptr) error
	register(mem []byte) error
	unregister(mem []byte) error

	newStream() (handle, error)
	destroyStream(s handle) error
	waitStream(s handle) error
	newEvent() (handle, error)
	destroyEvent(e handle) error
	record(e, s handle) error
	waitEvent(e handle) error

	// copy starts a copy between device memory at ptr and host, copyNow makes one.
	copy(dir direction, ptr uintptr, host []byte, s handle) error
	copyNow(dir direction, ptr uintptr, host []byte) error

	rangeStart(dir direction) uint64
	rangeEnd(id uint64)
}
