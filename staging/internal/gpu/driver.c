//go:build linux && cgo && (cuda || rocm)

#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

// Handles and device pointers are uintptr_t here: the drivers' types (CUdeviceptr, CUstream, hipDeviceptr_t…) are pointers or integers of
// the same size, and are passed in the same way. Devices are ints, results are enums.
#define CALLS(X) \
	X(init, "cuInit", "hipInit", (unsigned flags)) \
	X(version, "cuDriverGetVersion", "hipDriverGetVersion", (int *version)) \
	X(count, "cuDeviceGetCount", "hipGetDeviceCount", (int *count)) \
	X(get, "cuDeviceGet", "hipDeviceGet", (int *device, int ordinal)) \
	X(name, "cuDeviceGetName", "hipDeviceGetName", (char *name, int len, int device)) \
	X(pci, "cuDeviceGetPCIBusId", "hipDeviceGetPCIBusId", (char *pci, int len, int device)) \
	X(total, "cuDeviceTotalMem_v2", "hipDeviceTotalMem", (size_t *bytes, int device)) \
	X(retain, "cuDevicePrimaryCtxRetain", NULL, (uintptr_t *ctx, int device)) \
	X(release, "cuDevicePrimaryCtxRelease_v2", NULL, (int device)) \
	X(push, "cuCtxPushCurrent_v2", NULL, (uintptr_t ctx)) \
	X(pop, "cuCtxPopCurrent_v2", NULL, (uintptr_t *ctx)) \
	X(get_device, NULL, "hipGetDevice", (int *device)) \
	X(set_device, NULL, "hipSetDevice", (int device)) \
	X(mem_info, "cuMemGetInfo_v2", "hipMemGetInfo", (size_t *free, size_t *total)) \
	X(mem_alloc, "cuMemAlloc_v2", "hipMalloc", (uintptr_t *ptr, size_t n)) \
	X(mem_free, "cuMemFree_v2", "hipFree", (uintptr_t ptr)) \
	X(host_register, "cuMemHostRegister_v2", "hipHostRegister", (void *mem, size_t n, unsigned flags)) \
	X(host_unregister, "cuMemHostUnregister", "hipHostUnregister", (void *mem)) \
	X(stream_create, "cuStreamCreate", "hipStreamCreateWithFlags", (uintptr_t *stream, unsigned flags)) \
	X(stream_destroy, "cuStreamDestroy_v2", "hipStreamDestroy", (uintptr_t stream)) \
	X(stream_wait, "cuStreamSynchronize", "hipStreamSynchronize", (uintptr_t stream)) \
	X(event_create, "cuEventCreate", "hipEventCreateWithFlags", (uintptr_t *event, unsigned flags)) \
	X(event_destroy, "cuEventDestroy_v2", "hipEventDestroy", (uintptr_t event)) \
	X(event_record, "cuEventRecord", "hipEventRecord", (uintptr_t event, uintptr_t stream)) \
	X(event_wait, "cuEventSynchronize", "hipEventSynchronize", (uintptr_t event)) \
	X(in, "cuMemcpyHtoD_v2", "hipMemcpyHtoD", (uintptr_t dst, void *src, size_t n)) \
	X(out, "cuMemcpyDtoH_v2", "hipMemcpyDtoH", (void *dst, uintptr_t src, size_t n)) \
	X(in_async, "cuMemcpyHtoDAsync_v2", "hipMemcpyHtoDAsync", (uintptr_t dst, void *src, size_t n, uintptr_t stream)) \
	X(out_async, "cuMemcpyDtoHAsync_v2", "hipMemcpyDtoHAsync", (void *dst, uintptr_t src, size_t n, uintptr_t stream))

// The same values in both APIs.
enum {
	HOST_REGISTER_PORTABLE = 1, // pinned for all contexts
	STREAM_NON_BLOCKING = 1,    // not ordered with the default stream
	EVENT_BLOCKING_SYNC = 1,    // who waits for it sleeps
	EVENT_DISABLE_TIMING = 2,
};

#define CALL_INDEX(f, cu, hip, args) CALL_##f,
enum { CALLS(CALL_INDEX) N_CALLS };

#define CALL_NAME(f, cu, hip, args) {cu, hip},
static const char *const names[N_CALLS][2] = {CALLS(CALL_NAME)};

struct gpu {
	int hip;
	int device;
	uintptr_t ctx; // CUDA's primary context
#define CALL_FIELD(f, cu, hip, args) int(*f) args;
	CALLS(CALL_FIELD)
	int (*cu_error_name)(int code, const char **name);
	int (*cu_error_text)(int code, const char **text);
	const char *(*hip_error_name)(int code);
	const char *(*hip_error_text)(int code);
	uint64_t (*range_start)(const char *message);
	void (*range_end)(uint64_t range);
};

static void *find(void *lib, const char *library, const char *name, char *err, size_t errlen) {
	void *f = dlsym(lib, name);
	if (f == NULL)
		snprintf(err, errlen, "%s lacks %s: it is too old, or not the driver's library", library, name);
	return f;
}

gpu *gpu_load(const char *library, int hip, char *err, size_t errlen) {
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		snprintf(err, errlen, "%s", dlerror());
		return NULL;
	}
	gpu *g = calloc(1, sizeof *g);
	if (g == NULL) {
		snprintf(err, errlen, "out of memory");
		return NULL;
	}
	g->hip = hip;
#define CALL_FIND(f, cu, hip_, args) \
	if (names[CALL_##f][hip] != NULL && (*(void **)&g->f = find(lib, library, names[CALL_##f][hip], err, errlen)) == NULL) \
		goto fail;
	CALLS(CALL_FIND)
	void *name = find(lib, library, hip ? "hipGetErrorName" : "cuGetErrorName", err, errlen);
	void *text = name == NULL ? NULL : find(lib, library, hip ? "hipGetErrorString" : "cuGetErrorString", err, errlen);
	if (text == NULL)
		goto fail;
	*(void **)(hip ? (void *)&g->hip_error_name : (void *)&g->cu_error_name) = name;
	*(void **)(hip ? (void *)&g->hip_error_text : (void *)&g->cu_error_text) = text;
	return g;
fail:
	free(g);
	return NULL;
}

int gpu_trace(gpu *g, const char *library, int hip, char *err, size_t errlen) {
	void *lib = dlopen(library, RTLD_NOW | RTLD_LOCAL);
	if (lib == NULL) {
		snprintf(err, errlen, "%s", dlerror());
		return 0;
	}
	void *start = find(lib, library, hip ? "roctxRangeStartA" : "nvtxRangeStartA", err, errlen);
	void *end = start == NULL ? NULL : find(lib, library, hip ? "roctxRangeStop" : "nvtxRangeEnd", err, errlen);
	if (end == NULL)
		return 0;
	*(void **)&g->range_start = start;
	*(void **)&g->range_end = end;
	return 1;
}

void gpu_free(gpu *g) { free(g); }

const char *gpu_library(gpu *g) {
	Dl_info info;
	return dladdr(*(void **)&g->init, &info) && info.dli_fname != NULL ? info.dli_fname : "";
}

const char *gpu_call_name(gpu *g, int call) { return names[call][g->hip]; }

const char *gpu_error_name(gpu *g, int code) {
	const char *s = NULL;
	if (g->hip)
		s = g->hip_error_name(code);
	else if (g->cu_error_name(code, &s) != 0)
		s = NULL;
	return s == NULL ? "unknown error" : s;
}

const char *gpu_error_text(gpu *g, int code) {
	const char *s = NULL;
	if (g->hip)
		s = g->hip_error_text(code);
	else if (g->cu_error_text(code, &s) != 0)
		s = NULL;
	return s == NULL ? "" : s;
}

#define CALL(g, f, ...) ((outcome){(g)->f(__VA_ARGS__), CALL_##f})

outcome gpu_init(gpu *g) { return CALL(g, init, 0); }
outcome gpu_version(gpu *g, int *version) { return CALL(g, version, version); }
outcome gpu_count(gpu *g, int *count) { return CALL(g, count, count); }

// The ordinal of a device need not be its handle.
#define OF_DEVICE(g, ordinal, f, ...) \
	int device; \
	outcome o = CALL(g, get, &device, ordinal); \
	return o.code != 0 ? o : CALL(g, f, __VA_ARGS__, device)

outcome gpu_name(gpu *g, int ordinal, char *name, int len) { OF_DEVICE(g, ordinal, name, name, len); }
outcome gpu_pci(gpu *g, int ordinal, char *pci, int len) { OF_DEVICE(g, ordinal, pci, pci, len); }
outcome gpu_total(gpu *g, int ordinal, size_t *bytes) { OF_DEVICE(g, ordinal, total, bytes); }

outcome gpu_open(gpu *g, int ordinal) {
	outcome o = CALL(g, get, &g->device, ordinal);
	if (o.code != 0 || g->hip)
		return o;
	return CALL(g, retain, &g->ctx, g->device);
}

outcome gpu_close(gpu *g) {
	if (g->hip) // the runtime keeps its context
		return (outcome){0, 0};
	return CALL(g, release, g->device);
}

static outcome enter(gpu *g, int *before) {
	if (!g->hip)
		return CALL(g, push, g->ctx);
	outcome o = CALL(g, get_device, before);
	if (o.code == 0 && *before != g->device)
		o = CALL(g, set_device, g->device);
	return o;
}

static outcome leave(gpu *g, int before, outcome o) {
	outcome left = {0, 0};
	uintptr_t ctx;
	if (!g->hip)
		left = CALL(g, pop, &ctx);
	else if (before != g->device)
		left = CALL(g, set_device, before);
	return o.code != 0 ? o : left;
}

#define WITHIN(g, f, ...) \
	int before = 0; \
	outcome entered = enter(g, &before); \
	return entered.code != 0 ? entered : leave(g, before, CALL(g, f, __VA_ARGS__))

outcome gpu_mem_info(gpu *g, size_t *free, size_t *total) { WITHIN(g, mem_info, free, total); }
outcome gpu_alloc(gpu *g, uintptr_t *ptr, size_t n) { WITHIN(g, mem_alloc, ptr, n); }
outcome gpu_release(gpu *g, uintptr_t ptr) { WITHIN(g, mem_free, ptr); }
outcome gpu_register(gpu *g, void *mem, size_t n) { WITHIN(g, host_register, mem, n, HOST_REGISTER_PORTABLE); }
outcome gpu_unregister(gpu *g, void *mem) { WITHIN(g, host_unregister, mem); }
outcome gpu_stream_create(gpu *g, uintptr_t *stream) { WITHIN(g, stream_create, stream, STREAM_NON_BLOCKING); }
outcome gpu_stream_destroy(gpu *g, uintptr_t stream) { WITHIN(g, stream_destroy, stream); }
outcome gpu_stream_wait(gpu *g, uintptr_t stream) { WITHIN(g, stream_wait, stream); }
outcome gpu_event_create(gpu *g, uintptr_t *event) { WITHIN(g, event_create, event, EVENT_BLOCKING_SYNC | EVENT_DISABLE_TIMING); }
outcome gpu_event_destroy(gpu *g, uintptr_t event) { WITHIN(g, event_destroy, event); }
outcome gpu_event_record(gpu *g, uintptr_t event, uintptr_t stream) { WITHIN(g, event_record, event, stream); }
outcome gpu_event_wait(gpu *g, uintptr_t event) { WITHIN(g, event_wait, event); }

outcome gpu_copy(gpu *g, int dir, uintptr_t ptr, void *host, size_t n, uintptr_t stream) {
	if (dir == TO_DEVICE) {
		WITHIN(g, in_async, ptr, host, n, stream);
	}
	WITHIN(g, out_async, host, ptr, n, stream);
}

outcome gpu_copy_now(gpu *g, int dir, uintptr_t ptr, void *host, size_t n) {
	int before = 0;
	outcome o = enter(g, &before);
	if (o.code != 0)
		return o;
	o = dir == TO_DEVICE ? CALL(g, in, ptr, host, n) : CALL(g, out, host, ptr, n);
	if (o.code == 0) // a copy to the device may return when the driver has the bytes, but the device has not
		o = CALL(g, stream_wait, 0);
	return leave(g, before, o);
}

uint64_t gpu_range_start(gpu *g, int dir) {
	return g->range_start == NULL ? 0 : g->range_start(dir == TO_DEVICE ? "nvstage: copy to device" : "nvstage: copy to host");
}

void gpu_range_end(gpu *g, uint64_t range) {
	if (g->range_end != NULL)
		g->range_end(range);
}
