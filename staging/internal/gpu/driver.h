// The part of the CUDA driver API and of HIP that the package uses, behind one set of functions. The declarations are our own, so that
// neither SDK is needed.
#include <stddef.h>
#include <stdint.h>

typedef struct gpu gpu;

// outcome is what a driver call returned: its code, 0 for success, and which call it was (see gpu_call_name).
typedef struct {
	int code;
	int call;
} outcome;

enum direction { TO_DEVICE, TO_HOST };

// gpu_load opens a driver library and finds all functions. On failure it returns NULL and says why in err.
gpu *gpu_load(const char *library, int hip, char *err, size_t errlen);
// gpu_trace opens a library of profiler ranges, or says why not and returns 0.
int gpu_trace(gpu *g, const char *library, int hip, char *err, size_t errlen);
// gpu_free frees g. The libraries stay: their threads would not survive their end.
void gpu_free(gpu *g);

const char *gpu_library(gpu *g);
const char *gpu_call_name(gpu *g, int call);
const char *gpu_error_name(gpu *g, int code);
const char *gpu_error_text(gpu *g, int code);

// These need no context.
outcome gpu_init(gpu *g);
outcome gpu_version(gpu *g, int *version);
outcome gpu_count(gpu *g, int *count);
outcome gpu_name(gpu *g, int ordinal, char *name, int len);
outcome gpu_pci(gpu *g, int ordinal, char *pci, int len);
outcome gpu_total(gpu *g, int ordinal, size_t *bytes);

// gpu_open chooses the device that all functions below are about, and gpu_close gives its context back.
outcome gpu_open(gpu *g, int ordinal);
outcome gpu_close(gpu *g);

// Each of these makes the device current on the calling thread and restores what was before it returns: goroutines move between
// threads, but not in the middle of a call, and other users of the driver find their threads as they left them.
outcome gpu_mem_info(gpu *g, size_t *free, size_t *total);
outcome gpu_alloc(gpu *g, uintptr_t *ptr, size_t n);
outcome gpu_release(gpu *g, uintptr_t ptr);
outcome gpu_register(gpu *g, void *mem, size_t n);
outcome gpu_unregister(gpu *g, void *mem);
outcome gpu_stream_create(gpu *g, uintptr_t *stream);
outcome gpu_stream_destroy(gpu *g, uintptr_t stream);
outcome gpu_stream_wait(gpu *g, uintptr_t stream);
outcome gpu_event_create(gpu *g, uintptr_t *event);
outcome gpu_event_destroy(gpu *g, uintptr_t event);
outcome gpu_event_record(gpu *g, uintptr_t event, uintptr_t stream);
outcome gpu_event_wait(gpu *g, uintptr_t event);
outcome gpu_copy(gpu *g, int dir, uintptr_t ptr, void *host, size_t n, uintptr_t stream);
// gpu_copy_now returns when the copy is done; host need not be registered.
outcome gpu_copy_now(gpu *g, int dir, uintptr_t ptr, void *host, size_t n);

uint64_t gpu_range_start(gpu *g, int dir);
void gpu_range_end(gpu *g, uint64_t range);
