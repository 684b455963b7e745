/*
 * proxycuda.c - a proxy of the CUDA driver in which any call can be made to fail
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A library like libcuda.so.1 that forwards each call to it, or to the library that
 * PROXYCUDA_DRIVER names. A call that is to fail is not forwarded, unless it releases something:
 * that is released, and the call returns the error. fakecuda.h has the interface; members that are
 * not set here need the stand-in.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "t/core/fakecuda.h"

#define EXPORT __attribute__((visibility("default")))

enum {
#define CU_NEED(name, params) AT_##name,
#define CU_MAY(version, name, params) AT_##name,
	CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
	FUNCTIONS
};

/*
 * As many parameters as the longest function has. All are integers or pointers: in the calling
 * conventions of processors with a CUDA driver, a function with fewer parameters finds its own in
 * the same places.
 */
#define PARAMETERS uintptr_t a, uintptr_t b, uintptr_t c, uintptr_t d, uintptr_t e, uintptr_t f, \
	uintptr_t g, uintptr_t h, uintptr_t i, uintptr_t j, uintptr_t k, uintptr_t l
#define ARGUMENTS a, b, c, d, e, f, g, h, i, j, k, l

typedef CUresult entry(PARAMETERS);

static struct {
	entry *function[FUNCTIONS];	/* the driver's */
	long calls, fail_at;
	CUresult code;
	int ever;
	const char *failed;
	struct fakecuda_live live;
} state;

static const char *const names[] = {
#define CU_NEED(name, params) "cu" #name,
#define CU_MAY(version, name, params) "cu" #name,
	CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
};

/* Functions that create or release something */
static const struct {
	int at, by;
	int *live;
} changes[] = {
	{AT_DevicePrimaryCtxRetain, 1, &state.live.contexts},
	{AT_DevicePrimaryCtxRelease, -1, &state.live.contexts},
	{AT_CtxPushCurrent, 1, &state.live.pushed},
	{AT_CtxPopCurrent, -1, &state.live.pushed},
	{AT_MemAlloc, 1, &state.live.allocations},
	{AT_MemFree, -1, &state.live.allocations},
	{AT_StreamCreate, 1, &state.live.streams},
	{AT_StreamDestroy, -1, &state.live.streams},
	{AT_EventCreate, 1, &state.live.events},
	{AT_EventDestroy, -1, &state.live.events},
	{AT_LibraryLoadData, 1, &state.live.libraries},
	{AT_LibraryUnload, -1, &state.live.libraries},
	{AT_StreamEndCapture, 1, &state.live.graphs},
	{AT_GraphInstantiateWithFlags, 1, &state.live.graphs},
	{AT_GraphExecDestroy, -1, &state.live.graphs},
	{AT_GraphDestroy, -1, &state.live.graphs},
};

static CUresult forward(int at, PARAMETERS)
{
	CUresult injected = CUDA_SUCCESS, result;
	int by = 0, *live = NULL;

	if (at == AT_GetErrorName || at == AT_GetErrorString)
		return state.function[at](ARGUMENTS);
	for (size_t n = 0; n < sizeof(changes) / sizeof(*changes); n++) {
		if (changes[n].at == at)
			by = changes[n].by, live = changes[n].live;
	}
	state.calls++;
	if (state.fail_at && (state.calls == state.fail_at ||
			      (state.ever && state.calls > state.fail_at)))
		injected = state.code, state.failed = names[at];
	if (injected != CUDA_SUCCESS && by >= 0)
		return injected;
	result = state.function[at](ARGUMENTS);
	if (result == CUDA_SUCCESS && live)
		*live += by;
	return result == CUDA_SUCCESS ? injected : result;
}

/* An exported function for each */
#define CU_NEED(name, params) \
	static CUresult proxy_##name(PARAMETERS) { return forward(AT_##name, ARGUMENTS); }
#define CU_MAY(version, name, params) CU_NEED(name, params)
CU_FUNCTIONS
#undef CU_NEED

static entry *const proxies[] = {
#define CU_NEED(name, params) proxy_##name,
	CU_FUNCTIONS
#undef CU_NEED
#undef CU_MAY
};

EXPORT cu_get_proc_address cuGetProcAddress_v2;

EXPORT CUresult cuGetProcAddress_v2(const char *symbol, void **function, int version,
				    uint64_t flags, int *found)
{
	static cu_get_proc_address *get;
	CUresult result;

	if (!get) {
		const char *path = getenv("PROXYCUDA_DRIVER");
		void *driver = dlopen(path ? path : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
		void *at = driver ? dlsym(driver, "cuGetProcAddress_v2") : NULL;

		if (!at)
			return CUDA_ERROR_UNKNOWN;
		memcpy(&get, &at, sizeof(get));
	}
	result = get(symbol, function, version, flags, found);
	for (int at = 0; at < FUNCTIONS && result == CUDA_SUCCESS && *function; at++) {
		if (strcmp(symbol, names[at]) == 0) {
			memcpy(&state.function[at], function, sizeof(*function));
			memcpy(function, &proxies[at], sizeof(*function));
			break;
		}
	}
	return result;
}

/* ---- The interface of fakecuda.h ------------------------------------------------------------- */

static void fail_at(long k, int code, int ever)
{
	state.calls = 0;
	state.fail_at = k;
	state.code = code;
	state.ever = ever;
}

static void reset(void)
{
	fail_at(0, 0, 0);
	state.failed = NULL;
}

static long calls(void)
{
	return state.calls;
}

static const char *failed(void)
{
	return state.failed ? state.failed : "";
}

static struct fakecuda_live live(void)
{
	return state.live;
}

EXPORT const struct fakecuda *fakecuda(void);

EXPORT const struct fakecuda *fakecuda(void)
{
	static const struct fakecuda api = {
		.reset = reset, .calls = calls, .fail_at = fail_at, .failed = failed, .live = live,
	};

	return &api;
}
