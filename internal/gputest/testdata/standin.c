// A stand-in for a GPU's driver library: libcuda.so.1, or with -DHIP libamdhip64.so. It implements the calls that package staging/cuda (rocm) makes,
// on host memory, with a thread for each stream, and checks how it is called. What is wrong is counted and described as a violation, and the call
// fails as the real driver would, or worse. Package gputest documents the settings.
#define _GNU_SOURCE
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <time.h>

#ifdef HIP
#define NAME(cuda, hip) hip
#else
#define NAME(cuda, hip) cuda
#endif

enum {
	INVALID_VALUE = 1, OUT_OF_MEMORY = 2, NOT_INITIALIZED = 3, NO_DEVICE = 100, INVALID_DEVICE = 101, INVALID_CONTEXT = 201,
	INVALID_HANDLE = 400, NOT_READY = 600, ILLEGAL_ADDRESS = 700, ALREADY_REGISTERED = 712, NOT_REGISTERED = 713, UNKNOWN = 999,
};

static const struct { int code; const char *name, *text; } errors[] = {
	{0, NAME("CUDA_SUCCESS", "hipSuccess"), "no error"},
	{INVALID_VALUE, NAME("CUDA_ERROR_INVALID_VALUE", "hipErrorInvalidValue"), "invalid argument"},
	{OUT_OF_MEMORY, NAME("CUDA_ERROR_OUT_OF_MEMORY", "hipErrorOutOfMemory"), "out of memory"},
	{NOT_INITIALIZED, NAME("CUDA_ERROR_NOT_INITIALIZED", "hipErrorNotInitialized"), "initialization error"},
	{NO_DEVICE, NAME("CUDA_ERROR_NO_DEVICE", "hipErrorNoDevice"), "no device is detected"},
	{INVALID_DEVICE, NAME("CUDA_ERROR_INVALID_DEVICE", "hipErrorInvalidDevice"), "invalid device ordinal"},
	{INVALID_CONTEXT, NAME("CUDA_ERROR_INVALID_CONTEXT", "hipErrorInvalidContext"), "invalid device context"},
	{INVALID_HANDLE, NAME("CUDA_ERROR_INVALID_HANDLE", "hipErrorInvalidHandle"), "invalid resource handle"},
	{NOT_READY, NAME("CUDA_ERROR_NOT_READY", "hipErrorNotReady"), "device not ready"},
	{ILLEGAL_ADDRESS, NAME("CUDA_ERROR_ILLEGAL_ADDRESS", "hipErrorIllegalAddress"), "an illegal memory access was encountered"},
	{ALREADY_REGISTERED, NAME("CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED", "hipErrorHostMemoryAlreadyRegistered"), "part or all of the requested memory range is already mapped"},
	{NOT_REGISTERED, NAME("CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED", "hipErrorHostMemoryNotRegistered"), "pointer does not correspond to a registered memory region"},
	{UNKNOWN, NAME("CUDA_ERROR_UNKNOWN", "hipErrorUnknown"), "unknown error"},
};

#define MAX_DEVICES 8
#define MAX_RULES 16
#define PAGE 4096
#define GUARD (64 << 10)
// Device addresses are host addresses with these bits changed: no address of the host has them, so the host faults when it uses one.
#define TAG (UINT64_C(0x6a) << 56)

struct alloc { uint8_t *mem; size_t n; int dev, busy; struct alloc *next; };
struct reg { uint8_t *mem; size_t n; int busy; struct reg *next; };
struct event;

// op is one entry of a stream: a copy, or an event to be reached.
struct op {
	struct op *next;
	void *dst;
	const void *src;
	size_t n;
	int64_t end; // when the link has carried it
	struct alloc *alloc;
	struct reg *reg;
	struct event *event;
};

struct stream {
	int alive, dev, error, stop;
	pthread_t thread;
	pthread_cond_t ready;
	struct op *head, **tail;
	int pending;
	unsigned seed;
};

// Streams and events are never given back to malloc, so that late uses are seen.
struct event { int alive, dev; uint64_t recorded, reached; struct stream *stream; };

// late is a copy from memory that is not registered: the caller may use that again, but the device has the bytes only when somebody waits for the default stream.
struct late { uint8_t *dst, *bytes; size_t n; int dev; struct alloc *alloc; struct late *next; };

struct rule { char call[48]; long n; int code; };

static pthread_mutex_t mu = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t progress = PTHREAD_COND_INITIALIZER; // some op is through
static struct alloc *allocs;
static struct reg *regs;
static struct late *lates;
static int64_t link_free[MAX_DEVICES][2]; // when the link is free again, by direction
static int64_t memory_used[MAX_DEVICES];
static int initialized, retained[MAX_DEVICES];
static long n_streams, n_events, n_pushed, n_ranges, executed, seeds;
static long calls, copies;
static int64_t bytes_copied[2];

// Settings.
static int devices = 2, move = 1, async_code;
static int64_t memory = INT64_C(80) << 30, rate, delay_us, jitter_us;
static long async_n;
static struct rule rules[MAX_RULES];
static int n_rules;

static char violations[8192];
static long n_violations;

static void violation(const char *call, const char *format, ...) {
	n_violations++;
	size_t at = strlen(violations);
	if (at + 300 > sizeof violations)
		return;
	at += snprintf(violations + at, 100, "%s: ", call);
	va_list args;
	va_start(args, format);
	at += vsnprintf(violations + at, 190, format, args);
	va_end(args);
	strcat(violations, "\n");
}

static int64_t now(void) {
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
}

static void sleep_until(int64_t when) {
	struct timespec t = {when / 1000000000, when % 1000000000};
	while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) == EINTR) {}
}

// set applies one setting, 0 if there is none of that name.
static int set(const char *key, const char *value) {
	if (!strcmp(key, "devices")) devices = atoi(value);
	else if (!strcmp(key, "memory")) memory = atoll(value);
	else if (!strcmp(key, "rate")) rate = (int64_t)atof(value);
	else if (!strcmp(key, "delay_us")) delay_us = atoll(value);
	else if (!strcmp(key, "jitter_us")) jitter_us = atoll(value);
	else if (!strcmp(key, "move")) move = atoi(value);
	else if (!strcmp(key, "fail_async")) return async_n = 0, sscanf(value, "%ld:%d", &async_n, &async_code) == 2 && (async_n += executed, 1);
	else if (!strcmp(key, "fail")) {
		if (*value == 0) return n_rules = 0, 1;
		struct rule *r = &rules[n_rules];
		if (n_rules == MAX_RULES || sscanf(value, "%47[^:]:%ld:%d", r->call, &r->n, &r->code) != 3) return 0;
		n_rules++;
	} else return 0;
	return devices >= 0 && devices <= MAX_DEVICES;
}

// standin_set applies settings such as "rate=25e9,delay_us=100". It returns 0 if it does not understand one.
int standin_set(const char *settings) {
	char text[1024];
	int ok = snprintf(text, sizeof text, "%s", settings) < (int)sizeof text;
	char *save;
	pthread_mutex_lock(&mu);
	for (char *s = strtok_r(text, ",", &save); s != NULL; s = strtok_r(NULL, ",", &save)) {
		char *value = strchr(s, '=');
		if (value == NULL) { ok = 0; continue; }
		*value = 0;
		ok &= set(s, value + 1);
	}
	pthread_mutex_unlock(&mu);
	return ok;
}

// standin_count returns one of the counters, -1 if there is none of that name.
int64_t standin_count(const char *name) {
	int64_t n = 0;
	pthread_mutex_lock(&mu);
	if (!strcmp(name, "allocations")) for (struct alloc *a = allocs; a; a = a->next) n++;
	else if (!strcmp(name, "registrations")) for (struct reg *r = regs; r; r = r->next) n++;
	else if (!strcmp(name, "streams")) n = n_streams;
	else if (!strcmp(name, "events")) n = n_events;
	else if (!strcmp(name, "contexts")) for (int i = 0; i < MAX_DEVICES; i++) n += retained[i];
	else if (!strcmp(name, "pushed")) n = n_pushed;
	else if (!strcmp(name, "ranges")) n = n_ranges;
	else if (!strcmp(name, "calls")) n = calls;
	else if (!strcmp(name, "copies")) n = copies;
	else if (!strcmp(name, "bytes_in")) n = bytes_copied[0];
	else if (!strcmp(name, "bytes_out")) n = bytes_copied[1];
	else if (!strcmp(name, "violations")) n = n_violations;
	else n = -1;
	pthread_mutex_unlock(&mu);
	return n;
}

// standin_violations copies the descriptions, one a line, and forgets them.
void standin_violations(char *text, size_t len) {
	pthread_mutex_lock(&mu);
	snprintf(text, len, "%s", violations);
	violations[0] = 0;
	n_violations = 0;
	pthread_mutex_unlock(&mu);
}

__attribute__((constructor)) static void from_environment(void) {
	const char *settings = getenv("NVSTAGE_STANDIN");
	if (settings != NULL && !standin_set(settings)) {
		fprintf(stderr, "NVSTAGE_STANDIN=%s: not understood\n", settings);
		abort();
	}
}

// The devices that are current on a thread: a stack with CUDA, one with HIP.
static _Thread_local int stack[16];
#ifndef HIP
static _Thread_local int depth;
#endif

static int current(void) { return NAME(depth > 0 ? stack[depth - 1] : -1, stack[0]); }

// standin_make_current sets the thread's device as another user of the driver would, standin_current tells it; -1 is none.
void standin_make_current(int device) {
	stack[0] = device;
#ifndef HIP
	depth = device >= 0;
#endif
}

int standin_current(void) { return current(); }

// injected counts a call, and returns the failure that a rule has for it. mu is held.
static int injected(const char *call) {
	calls++;
	for (int i = 0; i < n_rules; i++)
		if (!strcmp(rules[i].call, call) && rules[i].n > 0 && --rules[i].n == 0)
			return rules[i].code;
	return 0;
}

#define RETURN(code) do { int code_ = (code); pthread_mutex_unlock(&mu); return code_; } while (0)
#define WRONG(code, ...) do { violation(__func__, __VA_ARGS__); RETURN(code); } while (0)

// BEGIN is the start of each call; BEGIN_ON_DEVICE of those that need a current device.
#define BEGIN() \
	pthread_mutex_lock(&mu); \
	int failure = injected(__func__); \
	if (failure) RETURN(failure); \
	if (!initialized) WRONG(NOT_INITIALIZED, "before init")
#define BEGIN_ON_DEVICE() \
	BEGIN(); \
	int dev = current(); \
	if (dev < 0) WRONG(INVALID_CONTEXT, "no device is current on this thread"); \
	NAME(if (!retained[dev]) WRONG(INVALID_CONTEXT, "the context of device %d was given back", dev), (void)0)

int NAME(cuInit, hipInit)(unsigned flags) {
	pthread_mutex_lock(&mu);
	int failure = injected(__func__);
	if (failure) RETURN(failure);
	if (flags != 0) WRONG(INVALID_VALUE, "flags %u", flags);
	if (devices == 0) RETURN(NO_DEVICE);
	initialized = 1;
	RETURN(0);
}

int NAME(cuDriverGetVersion, hipDriverGetVersion)(int *version) {
	BEGIN();
	*version = NAME(12040, 60032830);
	RETURN(0);
}

int NAME(cuDeviceGetCount, hipGetDeviceCount)(int *count) {
	BEGIN();
	*count = devices;
	RETURN(0);
}

int NAME(cuDeviceGet, hipDeviceGet)(int *device, int ordinal) {
	BEGIN();
	if (ordinal < 0 || ordinal >= devices) RETURN(INVALID_DEVICE);
	*device = ordinal;
	RETURN(0);
}

int NAME(cuDeviceGetName, hipDeviceGetName)(char *name, int len, int device) {
	BEGIN();
	if (device < 0 || device >= devices) RETURN(INVALID_DEVICE);
	snprintf(name, len, "stand-in %s", NAME("NVIDIA", "AMD"));
	RETURN(0);
}

int NAME(cuDeviceGetPCIBusId, hipDeviceGetPCIBusId)(char *pci, int len, int device) {
	BEGIN();
	if (device < 0 || device >= devices) RETURN(INVALID_DEVICE);
	snprintf(pci, len, "0000:F%X:00.0", device);
	RETURN(0);
}

int NAME(cuDeviceTotalMem_v2, hipDeviceTotalMem)(size_t *bytes, int device) {
	BEGIN();
	if (device < 0 || device >= devices) RETURN(INVALID_DEVICE);
	*bytes = memory;
	RETURN(0);
}

int NAME(cuGetErrorName, hip_error_name)(int code, const char **s) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) return *s = errors[i].name, 0;
	return *s = NULL, INVALID_VALUE;
}

int NAME(cuGetErrorString, hip_error_text)(int code, const char **s) {
	for (size_t i = 0; i < sizeof errors / sizeof *errors; i++)
		if (errors[i].code == code) return *s = errors[i].text, 0;
	return *s = NULL, INVALID_VALUE;
}

#ifdef HIP

const char *hipGetErrorName(int code) { const char *s; return hip_error_name(code, &s) ? "hipErrorUnknown" : s; }
const char *hipGetErrorString(int code) { const char *s; return hip_error_text(code, &s) ? "unknown error" : s; }

int hipGetDevice(int *device) {
	BEGIN();
	*device = stack[0];
	RETURN(0);
}

int hipSetDevice(int device) {
	BEGIN();
	if (device < 0 || device >= devices) RETURN(INVALID_DEVICE);
	stack[0] = device;
	RETURN(0);
}

#else

// The context of a device is its number with this added.
#define CTX 0x5c000

int cuDevicePrimaryCtxRetain(uintptr_t *ctx, int device) {
	BEGIN();
	if (device < 0 || device >= devices) RETURN(INVALID_DEVICE);
	retained[device]++;
	*ctx = CTX + device;
	RETURN(0);
}

int cuDevicePrimaryCtxRelease_v2(int device) {
	BEGIN();
	if (device < 0 || device >= devices || !retained[device]) WRONG(INVALID_CONTEXT, "context of device %d was not retained", device);
	if (--retained[device] == 0)
		for (struct alloc *a = allocs; a; a = a->next)
			if (a->dev == device) violation(__func__, "%zu bytes of device memory were not freed", a->n);
	RETURN(0);
}

int cuCtxPushCurrent_v2(uintptr_t ctx) {
	BEGIN();
	int device = (int)ctx - CTX;
	if (device < 0 || device >= devices || !retained[device]) WRONG(INVALID_CONTEXT, "no such context");
	if (depth == 16) WRONG(INVALID_VALUE, "16 contexts on one thread");
	stack[depth++] = device;
	n_pushed++;
	RETURN(0);
}

int cuCtxPopCurrent_v2(uintptr_t *ctx) {
	BEGIN();
	if (depth == 0) WRONG(INVALID_CONTEXT, "no context on this thread");
	*ctx = CTX + stack[--depth];
	n_pushed--;
	RETURN(0);
}

#endif

int NAME(cuMemGetInfo_v2, hipMemGetInfo)(size_t *free, size_t *total) {
	BEGIN_ON_DEVICE();
	*total = memory;
	*free = memory - memory_used[dev];
	RETURN(0);
}

int NAME(cuMemAlloc_v2, hipMalloc)(uintptr_t *ptr, size_t n) {
	BEGIN_ON_DEVICE();
	if (n == 0) WRONG(INVALID_VALUE, "0 bytes");
	if (n > (size_t)(memory - memory_used[dev])) RETURN(OUT_OF_MEMORY);
	// Between guards, of which the second one begins where the memory ends, or at most 255 bytes behind.
	size_t room = (n + PAGE - 1) / PAGE * PAGE;
	uint8_t *whole = mmap(NULL, room + 2 * GUARD, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (whole == MAP_FAILED) RETURN(OUT_OF_MEMORY);
	if (mprotect(whole + GUARD, room, PROT_READ | PROT_WRITE) != 0) {
		munmap(whole, room + 2 * GUARD);
		RETURN(OUT_OF_MEMORY);
	}
	struct alloc *a = calloc(1, sizeof *a);
	*a = (struct alloc){whole + GUARD + (room - n) / 256 * 256, n, dev, 0, allocs};
	if (move) // nobody may rely on zeros
		memset(a->mem, 0xdb, n < PAGE ? n : PAGE);
	allocs = a;
	memory_used[dev] += n;
	*ptr = (uintptr_t)a->mem ^ TAG;
	RETURN(0);
}

int NAME(cuMemFree_v2, hipFree)(uintptr_t ptr) {
	BEGIN_ON_DEVICE();
	for (struct alloc **p = &allocs; *p; p = &(*p)->next) {
		struct alloc *a = *p;
		if ((uintptr_t)a->mem != (ptr ^ TAG)) continue;
		if (a->dev != dev) WRONG(INVALID_VALUE, "memory of device %d while %d is current", a->dev, dev);
		if (a->busy) WRONG(INVALID_VALUE, "%d copies are in flight from or to the memory", a->busy);
		*p = a->next;
		memory_used[dev] -= a->n;
		size_t room = (a->n + PAGE - 1) / PAGE * PAGE;
		munmap(a->mem - (room - a->n) / 256 * 256 - GUARD, room + 2 * GUARD);
		free(a);
		RETURN(0);
	}
	WRONG(INVALID_VALUE, "%#lx is not allocated, or freed already", (unsigned long)ptr);
}

int NAME(cuMemHostRegister_v2, hipHostRegister)(uint8_t *mem, size_t n, unsigned flags) {
	BEGIN_ON_DEVICE();
	if (flags != 1) WRONG(INVALID_VALUE, "flags %u: not portable", flags);
	if (n == 0 || n % PAGE || (uintptr_t)mem % PAGE) WRONG(INVALID_VALUE, "%zu bytes at %p are not whole pages", n, (void *)mem);
	for (struct reg *r = regs; r; r = r->next)
		if (mem < r->mem + r->n && r->mem < mem + n) RETURN(ALREADY_REGISTERED);
	struct reg *r = calloc(1, sizeof *r);
	*r = (struct reg){mem, n, 0, regs};
	regs = r;
	RETURN(0);
}

int NAME(cuMemHostUnregister, hipHostUnregister)(uint8_t *mem) {
	BEGIN_ON_DEVICE();
	for (struct reg **p = &regs; *p; p = &(*p)->next) {
		struct reg *r = *p;
		if (r->mem != mem) continue;
		if (r->busy) WRONG(INVALID_VALUE, "%d copies are in flight from or to the memory", r->busy);
		*p = r->next;
		free(r);
		RETURN(0);
	}
	WRONG(NOT_REGISTERED, "%p is not registered", (void *)mem);
}

// reserve says when the link will have carried n bytes more. Copies use it in the order in which they were started. mu is held.
static int64_t reserve(int dev, int dir, size_t n) {
	int64_t begin = now();
	if (link_free[dev][dir] > begin) begin = link_free[dev][dir];
	return link_free[dev][dir] = begin + (rate > 0 ? (int64_t)((double)n * 1e9 / rate) : 0);
}

static void *run(void *arg) {
	struct stream *s = arg;
	prctl(PR_SET_TIMERSLACK, 1UL);
	pthread_mutex_lock(&mu);
	for (;;) {
		while (s->head == NULL && !s->stop)
			pthread_cond_wait(&s->ready, &mu);
		struct op *op = s->head;
		if (op == NULL) break;
		if ((s->head = op->next) == NULL) s->tail = &s->head;
		if (op->event != NULL) {
			op->event->reached++;
		} else {
			if (!s->error && ++executed == async_n) s->error = async_code;
			if (!s->error) {
				int64_t end = op->end + 1000 * (delay_us + (jitter_us ? rand_r(&s->seed) % (jitter_us + 1) : 0));
				int moving = move;
				pthread_mutex_unlock(&mu);
				if (moving) memcpy(op->dst, op->src, op->n);
				if (end > now()) sleep_until(end);
				pthread_mutex_lock(&mu);
			}
			op->alloc->busy--;
			op->reg->busy--;
		}
		s->pending--;
		free(op);
		pthread_cond_broadcast(&progress);
	}
	pthread_mutex_unlock(&mu);
	return NULL;
}

int NAME(cuStreamCreate, hipStreamCreateWithFlags)(struct stream **out, unsigned flags) {
	BEGIN_ON_DEVICE();
	if (flags != 1) WRONG(INVALID_VALUE, "flags %u: ordered with the default stream", flags);
	struct stream *s = calloc(1, sizeof *s);
	s->alive = 1;
	s->dev = dev;
	s->tail = &s->head;
	s->seed = ++seeds;
	pthread_cond_init(&s->ready, NULL);
	if (pthread_create(&s->thread, NULL, run, s) != 0) RETURN(OUT_OF_MEMORY);
	n_streams++;
	*out = s;
	RETURN(0);
}

#define CHECK_STREAM(s) \
	if (!(s)->alive) WRONG(INVALID_HANDLE, "the stream is destroyed"); \
	if ((s)->dev != dev) WRONG(INVALID_HANDLE, "stream of device %d while %d is current", (s)->dev, dev)
#define CHECK_EVENT(e) \
	if (!(e)->alive) WRONG(INVALID_HANDLE, "the event is destroyed"); \
	if ((e)->dev != dev) WRONG(INVALID_HANDLE, "event of device %d while %d is current", (e)->dev, dev)

int NAME(cuStreamDestroy_v2, hipStreamDestroy)(struct stream *s) {
	BEGIN_ON_DEVICE();
	CHECK_STREAM(s);
	if (s->pending) violation(__func__, "%d entries are pending", s->pending);
	s->alive = 0;
	s->stop = 1;
	n_streams--;
	pthread_cond_signal(&s->ready);
	pthread_mutex_unlock(&mu);
	pthread_join(s->thread, NULL);
	return 0;
}

// finish_late brings the default stream's copies to the device. mu is held.
static void finish_late(int dev) {
	for (struct late **p = &lates; *p;) {
		struct late *l = *p;
		if (l->dev != dev) {
			p = &l->next;
			continue;
		}
		memcpy(l->dst, l->bytes, l->n);
		l->alloc->busy--;
		*p = l->next;
		free(l->bytes);
		free(l);
	}
}

int NAME(cuStreamSynchronize, hipStreamSynchronize)(struct stream *s) {
	BEGIN_ON_DEVICE();
	if (s == NULL) {
		finish_late(dev);
		RETURN(0);
	}
	CHECK_STREAM(s);
	while (s->pending)
		pthread_cond_wait(&progress, &mu);
	RETURN(s->error);
}

int NAME(cuEventCreate, hipEventCreateWithFlags)(struct event **out, unsigned flags) {
	BEGIN_ON_DEVICE();
	if (flags != 3) WRONG(INVALID_VALUE, "flags %u: who waits does not sleep", flags);
	struct event *e = calloc(1, sizeof *e);
	e->alive = 1;
	e->dev = dev;
	n_events++;
	*out = e;
	RETURN(0);
}

int NAME(cuEventDestroy_v2, hipEventDestroy)(struct event *e) {
	BEGIN_ON_DEVICE();
	CHECK_EVENT(e);
	if (e->reached < e->recorded) violation(__func__, "the event is pending");
	e->alive = 0;
	n_events--;
	RETURN(0);
}

// push appends an entry to a stream. mu is held.
static void push(struct stream *s, struct op op) {
	struct op *o = malloc(sizeof *o);
	*o = op;
	o->next = NULL;
	*s->tail = o;
	s->tail = &o->next;
	s->pending++;
	pthread_cond_signal(&s->ready);
}

int NAME(cuEventRecord, hipEventRecord)(struct event *e, struct stream *s) {
	BEGIN_ON_DEVICE();
	CHECK_EVENT(e);
	CHECK_STREAM(s);
	if (e->reached < e->recorded) WRONG(INVALID_HANDLE, "the event is recorded again before anybody waited for it");
	e->recorded++;
	e->stream = s;
	push(s, (struct op){.event = e});
	RETURN(0);
}

int NAME(cuEventSynchronize, hipEventSynchronize)(struct event *e) {
	BEGIN_ON_DEVICE();
	CHECK_EVENT(e);
	if (!e->recorded) WRONG(INVALID_HANDLE, "the event was not recorded");
	for (uint64_t n = e->recorded; e->reached < n;)
		pthread_cond_wait(&progress, &mu);
	RETURN(e->stream->error);
}

// find checks a copy of n bytes between device memory and the host. Its registration is not looked for when reg is NULL. mu is held.
static int find(const char *call, int dev, uintptr_t ptr, const uint8_t *host, size_t n, struct alloc **alloc, struct reg **reg) {
	const uint8_t *p = (const uint8_t *)(ptr ^ TAG);
	struct alloc *a = allocs;
	while (a && !(p >= a->mem && p < a->mem + a->n)) a = a->next;
	if (a == NULL) return violation(call, "no device memory is at %#lx", (unsigned long)ptr), INVALID_VALUE;
	if (a->dev != dev) return violation(call, "memory of device %d while %d is current", a->dev, dev), INVALID_VALUE;
	if (n == 0 || n > (size_t)(a->mem + a->n - p)) return violation(call, "%zu bytes, %zu behind the start of device memory of %zu", n, (size_t)(p - a->mem), a->n), INVALID_VALUE;
	*alloc = a;
	if (reg == NULL) return 0;
	struct reg *r = regs;
	while (r && !(host >= r->mem && host < r->mem + r->n)) r = r->next;
	if (r == NULL || n > (size_t)(r->mem + r->n - host))
		return violation(call, "asynchronous copy of %zu bytes of host memory at %p that is not registered", n, (const void *)host), INVALID_VALUE;
	*reg = r;
	return 0;
}

static int async(const char *call, int dev, int dir, uintptr_t ptr, uint8_t *host, size_t n, struct stream *s) {
	struct alloc *a;
	struct reg *r;
	int code = find(call, dev, ptr, host, n, &a, &r);
	if (code) return code;
	if (s->error) return s->error;
	a->busy++;
	r->busy++;
	copies++;
	bytes_copied[dir] += n;
	void *p = (void *)(ptr ^ TAG);
	push(s, (struct op){.dst = dir ? host : p, .src = dir ? p : host, .n = n, .end = reserve(dev, dir, n), .alloc = a, .reg = r});
	return 0;
}

// at_once is a copy on the default stream. mu is held; nobody else has business here meanwhile.
static int at_once(const char *call, int dev, int dir, uintptr_t ptr, uint8_t *host, size_t n) {
	struct alloc *a;
	int code = find(call, dev, ptr, host, n, &a, NULL);
	if (code) return code;
	copies++;
	bytes_copied[dir] += n;
	void *p = (void *)(ptr ^ TAG);
	if (dir) finish_late(dev);
	if (move && dir) memcpy(host, p, n);
	if (move && !dir) {
		struct late *l = malloc(sizeof *l);
		*l = (struct late){p, memcpy(malloc(n), host, n), n, dev, a, lates};
		lates = l;
		a->busy++;
	}
	sleep_until(reserve(dev, dir, n) + 1000 * delay_us);
	return 0;
}

int NAME(cuMemcpyHtoD_v2, hipMemcpyHtoD)(uintptr_t dst, uint8_t *src, size_t n) {
	BEGIN_ON_DEVICE();
	RETURN(at_once(__func__, dev, 0, dst, src, n));
}

int NAME(cuMemcpyDtoH_v2, hipMemcpyDtoH)(uint8_t *dst, uintptr_t src, size_t n) {
	BEGIN_ON_DEVICE();
	RETURN(at_once(__func__, dev, 1, src, dst, n));
}

int NAME(cuMemcpyHtoDAsync_v2, hipMemcpyHtoDAsync)(uintptr_t dst, uint8_t *src, size_t n, struct stream *s) {
	BEGIN_ON_DEVICE();
	CHECK_STREAM(s);
	RETURN(async(__func__, dev, 0, dst, src, n, s));
}

int NAME(cuMemcpyDtoHAsync_v2, hipMemcpyDtoHAsync)(uint8_t *dst, uintptr_t src, size_t n, struct stream *s) {
	BEGIN_ON_DEVICE();
	CHECK_STREAM(s);
	RETURN(async(__func__, dev, 1, src, dst, n, s));
}

// The profiler's library.

uint64_t NAME(nvtxRangeStartA, roctxRangeStartA)(const char *message) {
	pthread_mutex_lock(&mu);
	if (message == NULL || *message == 0) violation(__func__, "no message");
	uint64_t id = 1000 + n_ranges++;
	pthread_mutex_unlock(&mu);
	return id;
}

void NAME(nvtxRangeEnd, roctxRangeStop)(uint64_t id) {
	pthread_mutex_lock(&mu);
	if (id < 1000) violation(__func__, "range %lu was not started", (unsigned long)id);
	n_ranges--;
	pthread_mutex_unlock(&mu);
}
