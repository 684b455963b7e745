/*
 * fakecuda.h - loading the stand-in for libcuda, and reading what it has recorded
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A test calls fakecuda_load() before its first hz_open(), which then opens t/core/fakecuda.so
 * instead of the driver. The environment configures the stand-in, which reads it at its first use:
 *
 *	FAKECUDA_DEVICES=N		number of devices, default 1; with 0 cuInit() fails
 *	FAKECUDA_SM=90,75		their compute capabilities; the last holds for all further
 *	FAKECUDA_SMS=132		SMs of each: 132 as an H200; MIG slices have fewer
 *	FAKECUDA_VERSION=13000		the driver's CUDA version: later entry points are missing
 *	FAKECUDA_MISSING=cuInit,...	entry points that are not found
 *	FAKECUDA_NOWHERE=1		accept and ignore fills of addresses without memory:
 *					operands of any size need none
 *	FAKECUDA_STUB=1			behave like the toolkit's stub library
 *	FAKECUDA_INIT=CODE		result of cuInit()
 *	FAKECUDA_IMAGE=CODE		result of loading an image or a kernel
 *	FAKECUDA_UNPACK=1		take no packed image: the library unpacks, which takes tests
 *					that open thousands of contexts minutes, and only works
 *					for GPUs that there is code for
 *	FAKECUDA_MEMORY=BYTES		of each device
 *	FAKECUDA_FAIL_AT=K FAKECUDA_FAIL_CODE=CODE FAKECUDA_FAIL_EVER=1
 *					the K-th call fails, or all from the K-th on
 */
#ifndef FAKECUDA_H
#define FAKECUDA_H

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "gpu/runtime/cuabi.h"

#define FAKECUDA_PARAMS 32764	/* limit of a kernel's parameters in bytes, since CUDA 12.1 */

struct fakecuda_launch {
	char kernel[128];
	unsigned grid[3], block[3];
	unsigned shared_bytes, cluster;		/* cluster 0: no cluster attribute */
	int early;				/* programmatic dependent launch */
	int cooperative;			/* all blocks at a time, here one on an SM */
	int device;
	void *stream;
	int captured;				/* recorded in a graph, not run */
	int replayed;				/* run from a graph */
	size_t params_bytes;			/* 0: passed by address, not recorded */
	unsigned char params[FAKECUDA_PARAMS];
};

/* Live objects: all 0 when everything has been released */
struct fakecuda_live {
	int contexts;				/* primary contexts retained */
	int allocations, streams, events, libraries, graphs;
	int pushed;				/* contexts on this thread's stack */
	int dropped;				/* lost with their context since reset() */
};

struct fakecuda {
	/* Clears records, complaints, pending failures and sticky errors; live objects stay. */
	void (*reset)(void);
	long (*calls)(void);			/* driver calls since reset() */
	void (*fail_at)(long k, int code, int ever);
	const char *(*failed)(void); /* name of the last call that was made to fail, or "" */
	void (*break_device)(int device, int code);	/* every call returns code; 0 repairs it */
	void (*fail_late)(int code);		/* the next launch fails asynchronously: reported
						 * at the next wait */
	long (*launches)(void);
	const struct fakecuda_launch *(*launch)(long i);
	/* run() is called for each kernel that runs; it may compute what the kernel would. */
	void (*hook)(void (*run)(const struct fakecuda_launch *l, void *user), void *user);
	struct fakecuda_live (*live)(void);
	/* How the image that was loaded last begins, as text; "" for a fatbin */
	const char *(*image)(void);
	/* Misuse that a driver might not notice: the count, and the first one as text */
	int (*complaints)(char *first, size_t size);
	const struct cu_functions *cu;
};

/* Objects that have leaked; those dropped count only if nothing prevented their release. */
__attribute__((unused)) static int fakecuda_leaked(const struct fakecuda *fake)
{
	const struct fakecuda_live l = fake->live();

	return l.contexts + l.allocations + l.streams + l.events + l.libraries + l.graphs +
	       l.pushed;
}

/* Path of a file in t/core, relative to the running program t/<family>/<test>; valid until the next
 * call */
__attribute__((unused)) static const char *fakecuda_path(const char *file)
{
	static char path[4096];
	const ssize_t n = readlink("/proc/self/exe", path, sizeof(path) - 32);
	char *slash;

	path[n < 0 ? 0 : n] = '\0';
	slash = strrchr(path, '/');
	snprintf(slash ? slash + 1 : path, 32, "../core/%s", file);
	return path;
}

/* Loads that driver from t/core; prints a line to stderr and returns NULL on failure. */
__attribute__((unused)) static const struct fakecuda *fakecuda_load_from(const char *file)
{
	const char *const path = fakecuda_path(file);
	const struct fakecuda *(*get)(void);
	void *library, *symbol;

	setenv("HURWITZ_LIBCUDA", path, 1);
	library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
	symbol = library ? dlsym(library, "fakecuda") : NULL;
	if (!symbol) {
		fprintf(stderr, "%s\n", dlerror());
		return NULL;
	}
	memcpy(&get, &symbol, sizeof(get));
	return get();
}

/* Loads the stand-in. */
__attribute__((unused)) static const struct fakecuda *fakecuda_load(void)
{
	return fakecuda_load_from("fakecuda.so");
}

#endif
