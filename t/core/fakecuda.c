/*
 * fakecuda.c - a stand-in for libcuda.so.1 that needs no GPU and finds misuse
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Device memory is host memory; kernels are recorded, not run. Everything else is meant to be
 * stricter than a driver: handles are checked, limits hold, calls without a current context are
 * complaints, a capturing stream refuses what a driver may refuse, and a child of fork() can use
 * nothing. fakecuda.h has the configuration and the interface. It is one file because every entry
 * point uses the same state (handles, contexts, errors), and none of it may be visible outside.
 */
#define _GNU_SOURCE 1

#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

#include "t/core/fakecuda.h"

#define EXPORT __attribute__((visibility("default")))

#define DEVICES 16
#define STACK 32
#define SHARED_FREE 49152
#define SHARED_OPTIN 232448	/* 227 KiB, as compute capability 9.0 */
#define FATBIN_MAGIC 0xba55ed50u
#define ELF_MAGIC 0x464c457fu

enum kind { STREAM = 0x5354, EVENT, LIBRARY, KERNEL, FUNCTION, GRAPH, EXEC };

/* The head of every handle; all live handles form one list. */
struct object {
	enum kind kind;
	int device;			/* -1: none */
	struct object *next;
};

struct CUctx_st {
	int device, retained;
	CUresult broken;		/* sticky error */
	CUresult late;			/* reported at the next wait */
};

struct op {
	enum { LAUNCH, COPY, FILL } what;
	struct fakecuda_launch launch;
	void *dst;
	const void *src;
	size_t bytes;
	int byte;
	struct op *next;
};

struct CUgraph_st {
	struct object o;
	struct op *first, **last;
};

struct CUgraphExec_st {
	struct object o;
	struct op *first;
};

struct CUstream_st {
	struct object o;
	struct CUgraph_st *capture;	/* NULL: not capturing */
	int mode;
	bool spoiled, blocking;
};

struct CUevent_st {
	struct object o;
	bool recorded;
	long time;
};

struct CUlib_st {
	struct object o;
};

struct CUkern_st {
	struct object o;
	struct CUlib_st *library;
	char name[128];
};

struct CUfunc_st {
	struct object o;
	struct CUkern_st *kernel;
	unsigned shared_bytes;
	bool wide_cluster;
};

struct allocation {
	int device;
	char *p;
	size_t bytes;
	struct allocation *next;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* lock guards everything below. */
static struct CUctx_st context[DEVICES];
static struct object *objects;
static struct allocation *allocations;
static int captures;			/* streams capturing in global mode */
static int capturing;			/* streams capturing in any mode */
static pid_t owner;			/* the process that called cuInit(); 0: none */
static long time_now;
static struct {
	int devices, sm[DEVICES], sms, version, init, image;
	size_t memory;
	bool stub, nowhere, unpack;
	const char *missing;
	bool read;
} setting;
static struct {
	long calls, fail_at;
	CUresult fail_code;
	bool fail_ever;
	CUresult late;
	struct fakecuda_launch *launches;
	long launches_count, launches_capacity;
	int complaints, dropped;
	const char *failed;
	char first[256], image[512];
	void (*run)(const struct fakecuda_launch *l, void *user);
	void *user;
} state;
static CUresult injected;		/* error that a releasing call returns after its work */

static _Thread_local CUcontext stack[STACK];
static _Thread_local int depth;
static _Thread_local int thread_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

/* ---- Settings and misuse --------------------------------------------------------------------- */

static int number(const char *name, int otherwise)
{
	const char *s = getenv(name);

	return s && *s ? atoi(s) : otherwise;
}

static void read_settings(void)
{
	const char *sm = getenv("FAKECUDA_SM");
	int value = 90;

	if (setting.read)
		return;
	setting.read = true;
	setting.devices = number("FAKECUDA_DEVICES", 1);
	if (setting.devices > DEVICES)
		setting.devices = DEVICES;
	for (int i = 0; i < DEVICES; i++) {
		context[i].device = i;
		if (sm && *sm) {
			value = (int)strtol(sm, (char **)&sm, 10);
			if (*sm == ',')
				sm++;
		}
		setting.sm[i] = value;
	}
	setting.sms = number("FAKECUDA_SMS", 132);
	setting.version = number("FAKECUDA_VERSION", 13000);
	setting.init = number("FAKECUDA_INIT", 0);
	setting.image = number("FAKECUDA_IMAGE", 0);
	setting.memory = (size_t)number("FAKECUDA_MEMORY", 1 << 30);
	setting.stub = number("FAKECUDA_STUB", 0);
	setting.nowhere = number("FAKECUDA_NOWHERE", 0);
	setting.unpack = number("FAKECUDA_UNPACK", 0);
	setting.missing = getenv("FAKECUDA_MISSING");
	state.fail_at = number("FAKECUDA_FAIL_AT", 0);
	state.fail_code = number("FAKECUDA_FAIL_CODE", CUDA_ERROR_UNKNOWN);
	state.fail_ever = number("FAKECUDA_FAIL_EVER", 0);
}

__attribute__((format(printf, 2, 3))) static CUresult complain(CUresult r, const char *format, ...)
{
	va_list ap;

	if (state.complaints++ == 0) {
		va_start(ap, format);
		vsnprintf(state.first, sizeof(state.first), format, ap);
		va_end(ap);
	}
	return r;
}

/* ---- Entry and exit of every call ------------------------------------------------------------ */

enum {
	INIT = 1,		/* needs cuInit() */
	CONTEXT = 2 | INIT,	/* needs a current context without a sticky error */
	RELEASE = 4,		/* does its work even if it returns an injected error */
	UNSAFE = 8,		/* refused during a capture, except in relaxed mode */
	WAIT = 16		/* reports errors of earlier launches */
};

static CUcontext current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

static void spoil_captures(void)
{
	for (struct object *o = objects; o; o = o->next) {
		if (o->kind == STREAM && ((CUstream)o)->capture)
			((CUstream)o)->spoiled = true;
	}
}

/* Errors after which the whole context stays unusable */
static bool sticks(CUresult r)
{
	return (r >= 700 && r < 720 && r != CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES) ||
	       r == CUDA_ERROR_ECC_UNCORRECTABLE;
}

static CUresult surface(CUcontext c)
{
	const CUresult r = c->late;

	c->late = CUDA_SUCCESS;
	if (sticks(r))
		c->broken = r;
	return r;
}

/* Takes the lock. A result other than CUDA_SUCCESS is what the call must return. */
static CUresult begin(const char *name, int flags)
{
	CUcontext c = current();

	pthread_mutex_lock(&lock);
	read_settings();
	injected = CUDA_SUCCESS;
	state.calls++;
	if (owner && owner != getpid())
		return complain(CUDA_ERROR_NOT_INITIALIZED, "%s in a child of fork()", name);
	if ((flags & INIT) && !owner)
		return complain(CUDA_ERROR_NOT_INITIALIZED, "%s before cuInit", name);
	if ((flags & CONTEXT) == CONTEXT && !c)
		return complain(CUDA_ERROR_INVALID_CONTEXT, "%s without a current context", name);
	if (state.fail_at && (state.calls == state.fail_at ||
			      (state.fail_ever && state.calls > state.fail_at)))
		injected = state.fail_code, state.failed = name;
	else if ((flags & CONTEXT) == CONTEXT && c->broken)
		injected = c->broken;
	else if ((flags & WAIT) && c->late)
		injected = surface(c);
	if (injected && sticks(injected) && c)
		c->broken = injected;
	if (injected)
		return flags & RELEASE ? CUDA_SUCCESS : injected;
	if ((flags & UNSAFE) && captures && thread_mode != CU_STREAM_CAPTURE_MODE_RELAXED) {
		spoil_captures();
		return complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "%s during capture", name);
	}
	return CUDA_SUCCESS;
}

static CUresult end(CUresult r)
{
	if (r == CUDA_SUCCESS)
		r = injected;
	pthread_mutex_unlock(&lock);
	return r;
}

#define BEGIN(name, flags) \
	do { \
		CUresult begin_ = begin(name, flags); \
		if (begin_ != CUDA_SUCCESS) { \
			injected = CUDA_SUCCESS; \
			return end(begin_); \
		} \
	} while (0)

/* ---- Handles --------------------------------------------------------------------------------- */

static void *make(enum kind kind, size_t size)
{
	struct object *o = calloc(1, size);

	if (!o)
		abort();
	o->kind = kind;
	o->device = current() ? current()->device : -1;
	o->next = objects;
	objects = o;
	return o;
}

static bool lives(const void *p, enum kind kind)
{
	for (struct object *o = objects; o; o = o->next) {
		if (o == p)
			return o->kind == kind;
	}
	return false;
}

static void drop(void *p)
{
	struct object **o = &objects;

	while (*o && *o != p)
		o = &(*o)->next;
	if (*o) {
		*o = (*o)->next;
		free(p);
	}
}

static void free_ops(struct op *op)
{
	while (op) {
		struct op *next = op->next;

		free(op);
		op = next;
	}
}

static bool is_function_of(const struct object *o, const struct CUlib_st *library)
{
	return o->kind == FUNCTION && ((const struct CUfunc_st *)o)->kernel->library == library;
}

static bool is_kernel_of(const struct object *o, const struct CUlib_st *library)
{
	return o->kind == KERNEL && ((const struct CUkern_st *)o)->library == library;
}

/* In a single pass: t/core/cuda closes thousands of contexts with every kernel loaded. */
static void drop_all_of(bool (*of)(const struct object *o, const struct CUlib_st *library),
		       const struct CUlib_st *library)
{
	for (struct object **o = &objects; *o;) {
		struct object *const gone = *o;

		if (!of(gone, library)) {
			o = &gone->next;
			continue;
		}
		*o = gone->next;
		free(gone);
	}
}

static void drop_library(struct CUlib_st *library)
{
	drop_all_of(is_function_of, library);
	drop_all_of(is_kernel_of, library);
	drop(library);
}

static const struct allocation *allocation_of(const void *p, size_t bytes)
{
	for (const struct allocation *a = allocations; a; a = a->next) {
		if ((const char *)p >= a->p && (const char *)p < a->p + a->bytes)
			return bytes <= (size_t)(a->p + a->bytes - (const char *)p) ? a : NULL;
	}
	return NULL;
}

/* Checks a range of device memory of the current context. */
static bool on_device(const char *name, const void *p, size_t bytes)
{
	const struct allocation *a = allocation_of(p, bytes);

	if (a && a->device == current()->device)
		return true;
	complain(0, "%s: %zu bytes at %p are not memory of device %d", name, bytes, p,
		 current()->device);
	return false;
}

static bool on_host(const char *name, const void *p)
{
	if (p && !allocation_of(p, 1))
		return true;
	complain(0, "%s: %p is not host memory", name, p);
	return false;
}

/* ---- Errors, devices, contexts --------------------------------------------------------------- */

static const struct {
	CUresult code;
	const char *name, *text;
} error_table[] = {
	{CUDA_SUCCESS, "CUDA_SUCCESS", "no error"},
	{CUDA_ERROR_INVALID_VALUE, "CUDA_ERROR_INVALID_VALUE", "invalid argument"},
	{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY", "out of memory"},
	{CUDA_ERROR_NOT_INITIALIZED, "CUDA_ERROR_NOT_INITIALIZED", "initialization error"},
	{CUDA_ERROR_DEVICE_UNAVAILABLE, "CUDA_ERROR_DEVICE_UNAVAILABLE",
	 "CUDA-capable device(s) is/are busy or unavailable"},
	{CUDA_ERROR_NO_DEVICE, "CUDA_ERROR_NO_DEVICE", "no CUDA-capable device is detected"},
	{CUDA_ERROR_INVALID_IMAGE, "CUDA_ERROR_INVALID_IMAGE", "device kernel image is invalid"},
	{CUDA_ERROR_INVALID_CONTEXT, "CUDA_ERROR_INVALID_CONTEXT", "invalid device context"},
	{CUDA_ERROR_NO_BINARY_FOR_GPU, "CUDA_ERROR_NO_BINARY_FOR_GPU",
	 "no kernel image is available for execution on the device"},
	{CUDA_ERROR_ECC_UNCORRECTABLE, "CUDA_ERROR_ECC_UNCORRECTABLE",
	 "uncorrectable ECC error encountered"},
	{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION",
	 "the provided PTX was compiled with an unsupported toolchain."},
	{CUDA_ERROR_INVALID_HANDLE, "CUDA_ERROR_INVALID_HANDLE", "invalid resource handle"},
	{CUDA_ERROR_NOT_FOUND, "CUDA_ERROR_NOT_FOUND", "named symbol not found"},
	{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS",
	 "an illegal memory access was encountered"},
	{CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES, "CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES",
	 "too many resources requested for launch"},
	{CUDA_ERROR_LAUNCH_FAILED, "CUDA_ERROR_LAUNCH_FAILED", "unspecified launch failure"},
	{CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED",
	 "operation not permitted when stream is capturing"},
	{CUDA_ERROR_UNKNOWN, "CUDA_ERROR_UNKNOWN", "unknown error"},
};

static CUresult error_string(CUresult error, const char **text, bool name)
{
	for (size_t i = 0; i < sizeof(error_table) / sizeof(*error_table); i++) {
		if (error_table[i].code == error) {
			*text = name ? error_table[i].name : error_table[i].text;
			return CUDA_SUCCESS;
		}
	}
	*text = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

static CUresult fake_GetErrorName(CUresult error, const char **text)
{
	return error_string(error, text, true);
}

static CUresult fake_GetErrorString(CUresult error, const char **text)
{
	return error_string(error, text, false);
}

static CUresult fake_Init(unsigned flags)
{
	BEGIN("cuInit", 0);
	if (flags)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuInit: flags are %u", flags));
	if (setting.init)
		return end(setting.init);
	if (setting.devices == 0)
		return end(CUDA_ERROR_NO_DEVICE);
	owner = getpid();
	return end(CUDA_SUCCESS);
}

static CUresult fake_DriverGetVersion(int *version)
{
	BEGIN("cuDriverGetVersion", 0);
	*version = setting.version;
	return end(CUDA_SUCCESS);
}

static CUresult fake_DeviceGetCount(int *count)
{
	BEGIN("cuDeviceGetCount", INIT);
	*count = setting.devices;
	return end(CUDA_SUCCESS);
}

/* Device handles differ from ordinals here, so that mixing them up fails. */
#define HANDLE 100

static CUresult fake_DeviceGet(CUdevice *device, int ordinal)
{
	BEGIN("cuDeviceGet", INIT);
	if (ordinal < 0 || ordinal >= setting.devices)
		return end(complain(CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet: ordinal %d", ordinal));
	*device = HANDLE + ordinal;
	return end(CUDA_SUCCESS);
}

static bool is_device(const char *name, CUdevice device)
{
	if (device >= HANDLE && device < HANDLE + setting.devices)
		return true;
	complain(0, "%s: device %d", name, device);
	return false;
}

static CUresult fake_DeviceGetName(char *name, int size, CUdevice device)
{
	BEGIN("cuDeviceGetName", INIT);
	if (!is_device("cuDeviceGetName", device))
		return end(CUDA_ERROR_INVALID_DEVICE);
	snprintf(name, (size_t)size, "Stand-in %d", device - HANDLE);
	return end(CUDA_SUCCESS);
}

static CUresult fake_DeviceGetAttribute(int *value, int attribute, CUdevice device)
{
	BEGIN("cuDeviceGetAttribute", INIT);
	if (!is_device("cuDeviceGetAttribute", device))
		return end(CUDA_ERROR_INVALID_DEVICE);
	switch (attribute) {
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = setting.sms; break;
	case CU_DEVICE_ATTRIBUTE_CLOCK_RATE: *value = 1980000; break;
	case CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE: *value = 3201000; break;
	case CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH: *value = 6144; break;
	case CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE: *value = 50 << 20; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR:
		*value = setting.sm[device - HANDLE] / 10;
		break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR:
		*value = setting.sm[device - HANDLE] % 10;
		break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR: *value = 233472; break;
	case CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN: *value = SHARED_OPTIN; break;
	default:
		return end(
			complain(CUDA_ERROR_INVALID_VALUE, "cuDeviceGetAttribute: %d", attribute));
	}
	return end(CUDA_SUCCESS);
}

static CUresult fake_DeviceTotalMem(size_t *bytes, CUdevice device)
{
	BEGIN("cuDeviceTotalMem", INIT);
	if (!is_device("cuDeviceTotalMem", device))
		return end(CUDA_ERROR_INVALID_DEVICE);
	*bytes = setting.memory;
	return end(CUDA_SUCCESS);
}

static CUresult fake_DevicePrimaryCtxRetain(CUcontext *c, CUdevice device)
{
	BEGIN("cuDevicePrimaryCtxRetain", INIT);
	if (!is_device("cuDevicePrimaryCtxRetain", device))
		return end(CUDA_ERROR_INVALID_DEVICE);
	*c = &context[device - HANDLE];
	(*c)->retained++;
	return end(CUDA_SUCCESS);
}

static void end_capture(CUstream stream)
{
	if (stream->capture)
		capturing--;
	if (stream->capture && stream->mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		captures--;
	stream->capture = NULL;
	stream->spoiled = false;
}

static void drop_graph(CUgraph graph)
{
	free_ops(graph->first);
	drop(graph);
}

/* Drops a stream, an event or a graph of a device; false if there are none left. */
static bool drop_one(int device)
{
	for (struct object *o = objects; o; o = o->next) {
		if (o->device != device)
			continue;
		switch (o->kind) {
		case STREAM:
			/* The list contains its graph as well. */
			end_capture((CUstream)o);
			drop(o);
			return true;
		case EVENT:
			drop(o);
			return true;
		case GRAPH:
			drop_graph((CUgraph)o);
			return true;
		case EXEC:
			free_ops(((CUgraphExec)o)->first);
			drop(o);
			return true;
		default:
			break;
		}
	}
	return false;
}

/* Drops what a context still holds, which should have been released before. */
static void destroy(CUcontext c)
{
	for (struct allocation **a = &allocations, *gone; (gone = *a);) {
		if (gone->device != c->device) {
			a = &gone->next;
			continue;
		}
		*a = gone->next;
		free(gone->p);
		free(gone);
		state.dropped++;
	}
	while (drop_one(c->device))
		state.dropped++;
	c->broken = c->late = CUDA_SUCCESS;
}

static CUresult fake_DevicePrimaryCtxRelease(CUdevice device)
{
	CUcontext c;

	BEGIN("cuDevicePrimaryCtxRelease", INIT | RELEASE);
	if (!is_device("cuDevicePrimaryCtxRelease", device))
		return end(CUDA_ERROR_INVALID_DEVICE);
	c = &context[device - HANDLE];
	if (c->retained == 0)
		return end(
			complain(CUDA_ERROR_INVALID_CONTEXT, "primary context released too often"));
	if (--c->retained == 0)
		destroy(c);
	return end(CUDA_SUCCESS);
}

static CUresult fake_CtxPushCurrent(CUcontext c)
{
	BEGIN("cuCtxPushCurrent", INIT);
	if (c < context || c >= context + DEVICES || c->retained == 0)
		return end(
			complain(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPushCurrent: no such context"));
	if (depth == STACK)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuCtxPushCurrent: never popped"));
	stack[depth++] = c;
	return end(CUDA_SUCCESS);
}

static CUresult fake_CtxPopCurrent(CUcontext *c)
{
	BEGIN("cuCtxPopCurrent", INIT | RELEASE);
	if (depth == 0)
		return end(complain(CUDA_ERROR_INVALID_CONTEXT, "cuCtxPopCurrent: nothing pushed"));
	*c = stack[--depth];
	return end(CUDA_SUCCESS);
}

static CUresult fake_CtxGetCurrent(CUcontext *c)
{
	BEGIN("cuCtxGetCurrent", INIT);
	*c = current();
	return end(CUDA_SUCCESS);
}

static CUresult fake_CtxSynchronize(void)
{
	BEGIN("cuCtxSynchronize", CONTEXT | WAIT);
	for (struct object *o = objects; o; o = o->next) {
		if (o->kind == STREAM && o->device == current()->device && ((CUstream)o)->capture) {
			((CUstream)o)->spoiled = true;
			return end(complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
					    "cuCtxSynchronize during capture"));
		}
	}
	return end(CUDA_SUCCESS);
}

/* ---- Memory ---------------------------------------------------------------------------------- */

static CUresult fake_MemAlloc(CUdeviceptr *p, size_t bytes)
{
	struct allocation *a;
	size_t used = 0;

	BEGIN("cuMemAlloc", CONTEXT | UNSAFE);
	if (bytes == 0)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuMemAlloc of 0 bytes"));
	for (a = allocations; a; a = a->next)
		used += a->device == current()->device ? a->bytes : 0;
	if (bytes > setting.memory - used)
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	a = calloc(1, sizeof(*a));
	if (!a || posix_memalign((void **)&a->p, 512, bytes)) {
		free(a);
		return end(CUDA_ERROR_OUT_OF_MEMORY);
	}
	memset(a->p, 0xa5, bytes);
	a->bytes = bytes;
	a->device = current()->device;
	a->next = allocations;
	allocations = a;
	*p = (uintptr_t)a->p;
	return end(CUDA_SUCCESS);
}

static CUresult fake_MemFree(CUdeviceptr p)
{
	BEGIN("cuMemFree", CONTEXT | UNSAFE | RELEASE);
	for (struct allocation **a = &allocations; *a; a = &(*a)->next) {
		struct allocation *found = *a;

		if ((uintptr_t)found->p == p && found->device == current()->device) {
			*a = found->next;
			free(found->p);
			free(found);
			return end(CUDA_SUCCESS);
		}
	}
	return end(complain(CUDA_ERROR_INVALID_VALUE, "cuMemFree of %#llx", p));
}

static void run(struct op *op)
{
	time_now++;
	if (op->what == COPY) {
		memmove(op->dst, op->src, op->bytes);
	} else if (op->what == FILL) {
		memset(op->dst, op->byte, op->bytes);
	} else {
		if (state.launches_count == state.launches_capacity) {
			const long capacity = 2 * state.launches_capacity + 16;
			struct fakecuda_launch *more =
				realloc(state.launches, (size_t)capacity * sizeof(*more));

			if (!more)
				abort();
			state.launches = more;
			state.launches_capacity = capacity;
		}
		/* Copies only the parameter bytes in use. */
		memcpy(&state.launches[state.launches_count++], &op->launch,
		       offsetof(struct fakecuda_launch, params) + op->launch.params_bytes);
		if (state.run && !op->launch.captured)
			state.run(&op->launch, state.user);
		if (state.late && !op->launch.captured) {
			context[op->launch.device].late = state.late;
			state.late = CUDA_SUCCESS;
		}
	}
}

/* Runs an operation, or adds it to the graph that its stream is capturing. */
static CUresult submit(const char *name, CUstream stream, struct op *op)
{
	struct op *kept;

	if (!stream) {
		/* The default stream would wait for a capturing stream, unless that is
		 * non-blocking. */
		for (struct object *o = capturing ? objects : NULL; o; o = o->next) {
			if (o->kind == STREAM && ((CUstream)o)->capture &&
			    ((CUstream)o)->blocking) {
				((CUstream)o)->spoiled = true;
				return complain(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT,
						"%s on the default stream during capture", name);
			}
		}
		run(op);
		return CUDA_SUCCESS;
	}
	if (!lives(stream, STREAM) || stream->o.device != current()->device)
		return complain(CUDA_ERROR_INVALID_HANDLE, "%s: no such stream on device %d", name,
				current()->device);
	if (!stream->capture) {
		run(op);
		return CUDA_SUCCESS;
	}
	if (stream->spoiled)
		return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	kept = malloc(sizeof(*kept));
	if (!kept)
		abort();
	*kept = *op;
	kept->next = NULL;
	*stream->capture->last = kept;
	stream->capture->last = &kept->next;
	if (op->what == LAUNCH) {
		op->launch.captured = 1;
		run(op);
	}
	return CUDA_SUCCESS;
}

static CUresult fake_MemcpyHtoDAsync(CUdeviceptr dst, const void *src, size_t bytes,
				     CUstream stream)
{
	struct op op = {.what = COPY, .dst = (void *)(uintptr_t)dst, .src = src, .bytes = bytes};

	BEGIN("cuMemcpyHtoDAsync", CONTEXT);
	if (!on_device("cuMemcpyHtoDAsync", op.dst, bytes) || !on_host("cuMemcpyHtoDAsync", src))
		return end(CUDA_ERROR_INVALID_VALUE);
	return end(submit("cuMemcpyHtoDAsync", stream, &op));
}

static CUresult fake_MemcpyDtoHAsync(void *dst, CUdeviceptr src, size_t bytes, CUstream stream)
{
	struct op op = {.what = COPY, .dst = dst, .src = (void *)(uintptr_t)src, .bytes = bytes};

	BEGIN("cuMemcpyDtoHAsync", CONTEXT);
	if (!on_device("cuMemcpyDtoHAsync", op.src, bytes) || !on_host("cuMemcpyDtoHAsync", dst))
		return end(CUDA_ERROR_INVALID_VALUE);
	return end(submit("cuMemcpyDtoHAsync", stream, &op));
}

static CUresult fake_MemcpyDtoDAsync(CUdeviceptr dst, CUdeviceptr src, size_t bytes,
				     CUstream stream)
{
	struct op op = {.what = COPY, .dst = (void *)(uintptr_t)dst, .src = (void *)(uintptr_t)src,
			.bytes = bytes};

	BEGIN("cuMemcpyDtoDAsync", CONTEXT);
	if (!on_device("cuMemcpyDtoDAsync", op.dst, bytes) ||
	    !on_device("cuMemcpyDtoDAsync", op.src, bytes))
		return end(CUDA_ERROR_INVALID_VALUE);
	return end(submit("cuMemcpyDtoDAsync", stream, &op));
}

static CUresult fake_MemsetD8Async(CUdeviceptr dst, unsigned char value, size_t n, CUstream stream)
{
	struct op op = {.what = FILL, .dst = (void *)(uintptr_t)dst, .byte = value, .bytes = n};

	BEGIN("cuMemsetD8Async", CONTEXT);
	if (setting.nowhere && !allocation_of(op.dst, 1))
		return end(CUDA_SUCCESS);
	if (!on_device("cuMemsetD8Async", op.dst, n))
		return end(CUDA_ERROR_INVALID_VALUE);
	return end(submit("cuMemsetD8Async", stream, &op));
}

/* ---- Streams and graphs ---------------------------------------------------------------------- */

static bool is_stream(const char *name, CUstream stream)
{
	if (lives(stream, STREAM))
		return true;
	complain(0, "%s: no such stream", name);
	return false;
}

static CUresult fake_StreamCreate(CUstream *stream, unsigned flags)
{
	BEGIN("cuStreamCreate", CONTEXT);
	if (flags & ~1u)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuStreamCreate: flags %#x", flags));
	*stream = make(STREAM, sizeof(**stream));
	(*stream)->blocking = !(flags & CU_STREAM_NON_BLOCKING);
	return end(CUDA_SUCCESS);
}

static CUresult fake_StreamDestroy(CUstream stream)
{
	CUgraph graph;

	BEGIN("cuStreamDestroy", CONTEXT | RELEASE);
	if (!is_stream("cuStreamDestroy", stream))
		return end(CUDA_ERROR_INVALID_HANDLE);
	graph = stream->capture;
	end_capture(stream);
	if (graph)
		drop_graph(graph);
	drop(stream);
	return end(CUDA_SUCCESS);
}

static CUresult fake_StreamSynchronize(CUstream stream)
{
	BEGIN("cuStreamSynchronize", CONTEXT | WAIT);
	if (stream && !is_stream("cuStreamSynchronize", stream))
		return end(CUDA_ERROR_INVALID_HANDLE);
	if (stream && stream->capture) {
		stream->spoiled = true;
		return end(complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
				    "cuStreamSynchronize during capture"));
	}
	return end(CUDA_SUCCESS);
}

static CUresult fake_StreamBeginCapture(CUstream stream, int mode)
{
	BEGIN("cuStreamBeginCapture", CONTEXT);
	if (!stream)
		return end(complain(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED,
				    "cuStreamBeginCapture: the default stream"));
	if (!is_stream("cuStreamBeginCapture", stream) || stream->capture)
		return end(complain(CUDA_ERROR_INVALID_VALUE,
				    "cuStreamBeginCapture: already capturing"));
	stream->capture = make(GRAPH, sizeof(*stream->capture));
	stream->capture->last = &stream->capture->first;
	stream->mode = mode;
	capturing++;
	if (mode != CU_STREAM_CAPTURE_MODE_RELAXED)
		captures++;
	return end(CUDA_SUCCESS);
}

static CUresult fake_StreamEndCapture(CUstream stream, CUgraph *graph)
{
	bool spoiled;

	BEGIN("cuStreamEndCapture", CONTEXT | RELEASE);
	if (!is_stream("cuStreamEndCapture", stream) || !stream->capture)
		return end(complain(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED,
				    "cuStreamEndCapture: no capture"));
	*graph = stream->capture;
	spoiled = stream->spoiled || injected;
	end_capture(stream);
	if (spoiled) {
		drop_graph(*graph);
		*graph = NULL;
		return end(injected ? CUDA_SUCCESS : CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
	}
	return end(CUDA_SUCCESS);
}

static CUresult fake_StreamIsCapturing(CUstream stream, int *status)
{
	BEGIN("cuStreamIsCapturing", CONTEXT);
	if (stream && !is_stream("cuStreamIsCapturing", stream))
		return end(CUDA_ERROR_INVALID_HANDLE);
	*status = stream && stream->capture ? 1 + stream->spoiled : 0;
	return end(CUDA_SUCCESS);
}

static CUresult fake_ThreadExchangeStreamCaptureMode(int *mode)
{
	const int old = thread_mode;

	BEGIN("cuThreadExchangeStreamCaptureMode", INIT);
	if (*mode < 0 || *mode > 2)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "capture mode %d", *mode));
	thread_mode = *mode;
	*mode = old;
	return end(CUDA_SUCCESS);
}

static CUresult fake_GraphInstantiateWithFlags(CUgraphExec *exec, CUgraph graph,
					       unsigned long long flags)
{
	struct op **last;

	BEGIN("cuGraphInstantiateWithFlags", CONTEXT);
	if (!lives(graph, GRAPH) || flags)
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuGraphInstantiate: no such graph"));
	*exec = make(EXEC, sizeof(**exec));
	last = &(*exec)->first;
	for (const struct op *op = graph->first; op; op = op->next) {
		*last = malloc(sizeof(**last));
		if (!*last)
			abort();
		**last = *op;
		(*last)->next = NULL;
		last = &(*last)->next;
	}
	return end(CUDA_SUCCESS);
}

static CUresult fake_GraphLaunch(CUgraphExec exec, CUstream stream)
{
	BEGIN("cuGraphLaunch", CONTEXT);
	if (!lives(exec, EXEC) || (stream && !is_stream("cuGraphLaunch", stream)))
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuGraphLaunch: no such graph"));
	for (struct op *op = exec->first; op; op = op->next) {
		op->launch.replayed = 1;
		op->launch.stream = stream;
		run(op);
	}
	return end(CUDA_SUCCESS);
}

static CUresult fake_GraphExecDestroy(CUgraphExec exec)
{
	BEGIN("cuGraphExecDestroy", INIT | RELEASE);
	if (!lives(exec, EXEC))
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuGraphExecDestroy: no such graph"));
	free_ops(exec->first);
	drop(exec);
	return end(CUDA_SUCCESS);
}

static CUresult fake_GraphDestroy(CUgraph graph)
{
	BEGIN("cuGraphDestroy", INIT | RELEASE);
	if (!lives(graph, GRAPH))
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuGraphDestroy: no such graph"));
	drop_graph(graph);
	return end(CUDA_SUCCESS);
}

/* ---- Events ---------------------------------------------------------------------------------- */

static CUresult fake_EventCreate(CUevent *event, unsigned flags)
{
	(void)flags;
	BEGIN("cuEventCreate", CONTEXT);
	*event = make(EVENT, sizeof(**event));
	return end(CUDA_SUCCESS);
}

static CUresult fake_EventRecord(CUevent event, CUstream stream)
{
	BEGIN("cuEventRecord", CONTEXT);
	if (!lives(event, EVENT) || (stream && !is_stream("cuEventRecord", stream)))
		return end(complain(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord: no such event"));
	event->recorded = true;
	event->time = ++time_now;
	return end(CUDA_SUCCESS);
}

static CUresult fake_EventSynchronize(CUevent event)
{
	BEGIN("cuEventSynchronize", CONTEXT | WAIT);
	if (!lives(event, EVENT))
		return end(
			complain(CUDA_ERROR_INVALID_HANDLE, "cuEventSynchronize: no such event"));
	return end(CUDA_SUCCESS);
}

static CUresult fake_EventElapsedTime(float *milliseconds, CUevent start, CUevent stop)
{
	BEGIN("cuEventElapsedTime", CONTEXT);
	if (!lives(start, EVENT) || !lives(stop, EVENT) || !start->recorded || !stop->recorded)
		return end(complain(CUDA_ERROR_INVALID_HANDLE, "cuEventElapsedTime: not recorded"));
	*milliseconds = (float)(stop->time - start->time) * 1e-3f;
	return end(CUDA_SUCCESS);
}

static CUresult fake_EventDestroy(CUevent event)
{
	BEGIN("cuEventDestroy", INIT | RELEASE);
	if (!lives(event, EVENT))
		return end(complain(CUDA_ERROR_INVALID_HANDLE, "cuEventDestroy: no such event"));
	drop(event);
	return end(CUDA_SUCCESS);
}

/* ---- Code and launches ----------------------------------------------------------------------- */

static CUresult fake_LibraryLoadData(CUlibrary *library, const void *code, int *jit_options,
				     void **jit_values, unsigned jit_count, int *options,
				     void **values, unsigned count)
{
	uint32_t magic = 0;

	(void)jit_options, (void)jit_values, (void)options, (void)values;
	BEGIN("cuLibraryLoadData", CONTEXT | UNSAFE);
	if (code)
		memcpy(&magic, code, sizeof(magic));
	/*
	 * A fatbin, a cubin or PTX, which begins with a comment, a directive or an empty line; or a
	 * packed image, which begins with sm_ or compute_.
	 */
	if ((magic != FATBIN_MAGIC && magic != ELF_MAGIC &&
	     (!(char)magic || !strchr(setting.unpack ? "/.\n" : "sc", (char)magic))) ||
	    jit_count || count > 1)
		return end(complain(CUDA_ERROR_INVALID_IMAGE, "cuLibraryLoadData: not an image"));
	snprintf(state.image, sizeof(state.image), "%s",
		 magic == FATBIN_MAGIC ? "" : (const char *)code);
	if (setting.image)
		return end(setting.image);
	*library = make(LIBRARY, sizeof(**library));
	return end(CUDA_SUCCESS);
}

static CUresult fake_LibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	BEGIN("cuLibraryGetKernel", CONTEXT | UNSAFE);
	if (!lives(library, LIBRARY) || !name || !*name)
		return end(
			complain(CUDA_ERROR_INVALID_HANDLE, "cuLibraryGetKernel: no such library"));
	*kernel = make(KERNEL, sizeof(**kernel));
	(*kernel)->library = library;
	snprintf((*kernel)->name, sizeof((*kernel)->name), "%s", name);
	return end(CUDA_SUCCESS);
}

static CUresult fake_LibraryUnload(CUlibrary library)
{
	BEGIN("cuLibraryUnload", INIT | UNSAFE | RELEASE);
	if (!lives(library, LIBRARY))
		return end(complain(CUDA_ERROR_INVALID_HANDLE, "cuLibraryUnload: no such library"));
	drop_library(library);
	return end(CUDA_SUCCESS);
}

static CUresult fake_KernelGetFunction(CUfunction *function, CUkernel kernel)
{
	BEGIN("cuKernelGetFunction", CONTEXT | UNSAFE);
	if (!lives(kernel, KERNEL))
		return end(
			complain(CUDA_ERROR_INVALID_HANDLE, "cuKernelGetFunction: no such kernel"));
	*function = make(FUNCTION, sizeof(**function));
	(*function)->kernel = kernel;
	(*function)->shared_bytes = SHARED_FREE;
	return end(CUDA_SUCCESS);
}

static CUresult fake_FuncLoad(CUfunction function)
{
	BEGIN("cuFuncLoad", CONTEXT | UNSAFE);
	if (!lives(function, FUNCTION))
		return end(complain(CUDA_ERROR_INVALID_HANDLE, "cuFuncLoad: no such function"));
	return end(CUDA_SUCCESS);
}

static CUresult fake_OccupancyMaxActiveClusters(int *count, CUfunction function,
						const CUlaunchConfig *config)
{
	BEGIN("cuOccupancyMaxActiveClusters", CONTEXT);
	if (!lives(function, FUNCTION) || config->attributes_count != 1 ||
	    config->shared_bytes > function->shared_bytes)
		return end(complain(CUDA_ERROR_INVALID_VALUE,
				    "cuOccupancyMaxActiveClusters: bad values"));
	*count = 132 / (int)config->attributes[0].value.cluster.x;
	return end(CUDA_SUCCESS);
}

static CUresult fake_TensorMapEncodeTiled(void *map, int type, uint32_t rank, void *p,
					  const uint64_t *sizes, const uint64_t *steps,
					  const uint32_t *box, const uint32_t *element_steps,
					  int interleave, int swizzle, int promotion, int fill)
{
	BEGIN("cuTensorMapEncodeTiled", INIT);
	bool good = type == CU_TENSOR_MAP_DATA_TYPE_UINT8 && rank >= 2 && rank <= 5 &&
		    !interleave && !fill &&
		    swizzle >= CU_TENSOR_MAP_SWIZZLE_32B && swizzle <= CU_TENSOR_MAP_SWIZZLE_128B &&
		    (promotion == CU_TENSOR_MAP_L2_PROMOTION_NONE ||
		     promotion == CU_TENSOR_MAP_L2_PROMOTION_L2_256B) && (uintptr_t)map % 64 == 0 &&
		    (uintptr_t)p % 16 == 0 &&
		    box[0] <= 16u << swizzle;

	/* Limits of a tensor map of bytes with this swizzle */
	for (uint32_t i = 0; good && i < rank; i++)
		good = sizes[i] >= 1 && sizes[i] <= 1ull << 32 && box[i] >= 1 && box[i] <= 256 &&
		       element_steps[i] >= 1 && element_steps[i] <= (i ? 8u : 1u) &&
		       (i == 0 || (steps[i - 1] % 16 == 0 && steps[i - 1] < 1ull << 40 &&
				   steps[i - 1] >= sizes[0]));
	if (!good)
		return end(
			complain(CUDA_ERROR_INVALID_VALUE, "cuTensorMapEncodeTiled: bad values"));
	memset(map, 0x5a, 128);
	return end(CUDA_SUCCESS);
}

static CUresult fake_FuncSetAttribute(CUfunction function, int attribute, int value)
{
	BEGIN("cuFuncSetAttribute", CONTEXT);
	if (!lives(function, FUNCTION))
		return end(complain(CUDA_ERROR_INVALID_HANDLE,
				    "cuFuncSetAttribute: no such function"));
	switch (attribute) {
	case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
		if (value < 0 || value > SHARED_OPTIN)
			return end(complain(CUDA_ERROR_INVALID_VALUE,
					    "%s: %d bytes of shared memory, a "
					    "block may have %d",
					    function->kernel->name, value, SHARED_OPTIN));
		function->shared_bytes = (unsigned)value;
		break;
	case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
		function->wide_cluster = value;
		break;
	default:
		return end(complain(CUDA_ERROR_INVALID_VALUE, "cuFuncSetAttribute: %d", attribute));
	}
	return end(CUDA_SUCCESS);
}

/* Reads the parameter buffer; false if it is missing or too large. */
static bool read_params(struct fakecuda_launch *l, void **params, void **extra)
{
	const void *buffer = NULL;

	/* A pointer to the struct itself: only the kernel knows its size. */
	if (params && !extra)
		return params[0] != NULL;
	if (params || !extra)
		return false;
	for (; *extra != CU_LAUNCH_PARAM_END; extra += 2) {
		if (*extra == CU_LAUNCH_PARAM_BUFFER_POINTER)
			buffer = extra[1];
		else if (*extra == CU_LAUNCH_PARAM_BUFFER_SIZE)
			l->params_bytes = *(const size_t *)extra[1];
		else
			return false;
	}
	if (!buffer || l->params_bytes == 0 || l->params_bytes > sizeof(l->params))
		return false;
	memcpy(l->params, buffer, l->params_bytes);
	return true;
}

static CUresult check_launch(const struct fakecuda_launch *l, CUfunction f)
{
	static const unsigned max_grid[3] = {2147483647, 65535, 65535};
	static const unsigned max_block[3] = {1024, 1024, 64};
	const int sm = setting.sm[l->device];
	const char *name = l->kernel;

	for (int i = 0; i < 3; i++) {
		if (l->grid[i] == 0 || l->grid[i] > max_grid[i])
			return complain(CUDA_ERROR_INVALID_VALUE, "%s: grid[%d] is %u", name, i,
					l->grid[i]);
		if (l->block[i] == 0 || l->block[i] > max_block[i])
			return complain(CUDA_ERROR_INVALID_VALUE, "%s: block[%d] is %u", name, i,
					l->block[i]);
	}
	if ((uint64_t)l->block[0] * l->block[1] * l->block[2] > 1024)
		return complain(CUDA_ERROR_INVALID_VALUE, "%s: %u x %u x %u threads", name,
				l->block[0], l->block[1], l->block[2]);
	if (l->cooperative &&
	    (uint64_t)l->grid[0] * l->grid[1] * l->grid[2] > (uint64_t)setting.sms)
		return complain(CUDA_ERROR_INVALID_VALUE, "%s: %u x %u x %u blocks at a time", name,
				l->grid[0], l->grid[1], l->grid[2]);
	if (l->shared_bytes > f->shared_bytes)
		return complain(CUDA_ERROR_INVALID_VALUE,
				"%s: %u bytes of shared memory, %u asked for", name,
				l->shared_bytes, f->shared_bytes);
	if (l->cluster > 1 && (sm < 90 || l->cluster > 16 || (l->cluster > 8 && !f->wide_cluster) ||
			       l->grid[0] % l->cluster))
		return complain(CUDA_ERROR_INVALID_CLUSTER_SIZE,
				"%s: clusters of %u in a grid of %u", name, l->cluster, l->grid[0]);
	return CUDA_SUCCESS;
}

static CUresult fake_LaunchKernelEx(const CUlaunchConfig *c, CUfunction f, void **params,
				    void **extra)
{
	struct op *op;
	CUresult r;

	BEGIN("cuLaunchKernelEx", CONTEXT);
	if (!lives(f, FUNCTION) || f->o.device != current()->device)
		return end(
			complain(CUDA_ERROR_INVALID_HANDLE, "cuLaunchKernelEx: no such function"));
	op = calloc(1, sizeof(*op));
	if (!op)
		abort();
	op->what = LAUNCH;
	snprintf(op->launch.kernel, sizeof(op->launch.kernel), "%s", f->kernel->name);
	memcpy(op->launch.grid, (unsigned[]){c->grid_x, c->grid_y, c->grid_z},
	       sizeof(op->launch.grid));
	memcpy(op->launch.block, (unsigned[]){c->block_x, c->block_y, c->block_z},
	       sizeof(op->launch.block));
	op->launch.shared_bytes = c->shared_bytes;
	op->launch.device = current()->device;
	op->launch.stream = c->stream;
	for (unsigned i = 0; i < c->attributes_count; i++) {
		if (c->attributes[i].id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
			op->launch.cluster = c->attributes[i].value.cluster.x;
		else if (c->attributes[i].id ==
			 CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION)
			op->launch.early = c->attributes[i].value.programmatic;
		else if (c->attributes[i].id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE)
			op->launch.cooperative = c->attributes[i].value.cooperative;
		else
			complain(0, "cuLaunchKernelEx: attribute %d", c->attributes[i].id);
	}
	r = check_launch(&op->launch, f);
	if (r == CUDA_SUCCESS && !read_params(&op->launch, params, extra))
		r = complain(CUDA_ERROR_INVALID_VALUE, "%s: bad parameters", f->kernel->name);
	if (r == CUDA_SUCCESS)
		r = submit("cuLaunchKernelEx", c->stream, op);
	free(op);
	return end(r);
}

/* ---- The exports ----------------------------------------------------------------------------- */

static const struct cu_functions table = {
#define CU_NEED(name, params) .name = fake_##name,
#define CU_MAY(version, name, params) .name = fake_##name,
	CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
};

/* Whether a comma-separated list contains a name */
static bool listed(const char *list, const char *name)
{
	const size_t n = strlen(name);

	for (const char *s = list; s && *s; s = strchr(s, ',') ? strchr(s, ',') + 1 : NULL) {
		if (strncmp(s, name, n) == 0 && (s[n] == ',' || s[n] == '\0'))
			return true;
	}
	return false;
}

/* The CUDA version that introduced an entry point, if it matters here */
static int born(const char *name)
{
	if (strcmp(name, "cuFuncLoad") == 0)
		return 12040;
	if (strncmp(name, "cuLibrary", 9) == 0 || strncmp(name, "cuKernel", 8) == 0 ||
	    strncmp(name, "cuTensor", 8) == 0)
		return 12000;
	return 2000;
}

EXPORT int fakecuda_takes_packed(void);

EXPORT int fakecuda_takes_packed(void)
{
	pthread_mutex_lock(&lock);
	read_settings();
	pthread_mutex_unlock(&lock);
	return !setting.unpack;
}

EXPORT cu_get_proc_address cuGetProcAddress_v2;

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
				    uint64_t flags, int *found)
{
	static const struct {
		const char *name;
		const void *where;
	} rows[] = {
#define CU_NEED(name, params) {"cu" #name, &table.name},
#define CU_MAY(version, name, params) {"cu" #name, &table.name},
		CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
	};
	CUresult r = CUDA_ERROR_NOT_FOUND;

	pthread_mutex_lock(&lock);
	read_settings();
	*function = NULL;
	*found = 1;
	if (setting.stub)
		r = CUDA_ERROR_STUB_LIBRARY;
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows) && !setting.stub; i++) {
		if (strcmp(rows[i].name, symbol) == 0 && !listed(setting.missing, symbol) &&
		    born(symbol) <= version && born(symbol) <= setting.version && flags == 0) {
			memcpy(function, rows[i].where, sizeof(*function));
			*found = 0;
			r = CUDA_SUCCESS;
		}
	}
	pthread_mutex_unlock(&lock);
	return r;
}

/* Looked up by name if cuGetProcAddress() cannot be used */
EXPORT CUresult cuDriverGetVersion(int *version);

EXPORT CUresult cuDriverGetVersion(int *version)
{
	return table.DriverGetVersion(version);
}

static void reset(void)
{
	struct fakecuda_launch *kept;
	long capacity;

	pthread_mutex_lock(&lock);
	read_settings();
	kept = state.launches;
	capacity = state.launches_capacity;
	memset(&state, 0, sizeof(state));
	state.launches = kept;
	state.launches_capacity = capacity;
	for (int i = 0; i < DEVICES; i++)
		context[i].broken = context[i].late = CUDA_SUCCESS;
	pthread_mutex_unlock(&lock);
}

static long calls(void)
{
	return state.calls;
}

static void fail_at(long k, int code, int ever)
{
	pthread_mutex_lock(&lock);
	read_settings();
	state.calls = 0;
	state.fail_at = k;
	state.fail_code = code;
	state.fail_ever = ever;
	pthread_mutex_unlock(&lock);
}

static const char *failed(void)
{
	return state.failed ? state.failed : "";
}

static void break_device(int device, int code)
{
	context[device].broken = code;
}

static void fail_late(int code)
{
	state.late = code;
}

static long launches(void)
{
	return state.launches_count;
}

static const struct fakecuda_launch *launch(long i)
{
	return i >= 0 && i < state.launches_count ? &state.launches[i] : NULL;
}

static void hook(void (*function)(const struct fakecuda_launch *l, void *user), void *user)
{
	state.run = function;
	state.user = user;
}

static struct fakecuda_live live(void)
{
	struct fakecuda_live n = {.pushed = depth, .dropped = state.dropped};

	pthread_mutex_lock(&lock);
	for (int i = 0; i < DEVICES; i++)
		n.contexts += context[i].retained;
	for (const struct allocation *a = allocations; a; a = a->next)
		n.allocations++;
	for (const struct object *o = objects; o; o = o->next) {
		n.streams += o->kind == STREAM;
		n.events += o->kind == EVENT;
		n.libraries += o->kind == LIBRARY;
		n.graphs += o->kind == GRAPH || o->kind == EXEC;
	}
	pthread_mutex_unlock(&lock);
	return n;
}

static const char *image(void)
{
	return state.image;
}

static int complaints(char *first, size_t size)
{
	if (first)
		snprintf(first, size, "%s", state.first);
	return state.complaints;
}

EXPORT const struct fakecuda *fakecuda(void);

EXPORT const struct fakecuda *fakecuda(void)
{
	static const struct fakecuda api = {
		.reset = reset,
		.calls = calls,
		.fail_at = fail_at,
		.failed = failed,
		.break_device = break_device,
		.fail_late = fail_late,
		.launches = launches,
		.launch = launch,
		.hook = hook,
		.live = live,
		.image = image,
		.complaints = complaints,
		.cu = &table,
	};

	return &api;
}
