/*
 * fakecuda.h - how a test finds the stand-in for libcuda and reads what it saw
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A test calls fakecuda_load() before its first hz_open(): the library then opens t/core/fakecuda.so
 * instead of the driver. What the stand-in presents is set by the environment, read at its first
 * use:
 *
 *	FAKECUDA_DEVICES=N		devices, 1 if not set; with 0 cuInit() says there is none
 *	FAKECUDA_SM=90,75		their compute capabilities; the last holds for all further
 *	FAKECUDA_MULTIPROCESSORS=132	of each: an H200 has so many, parts of it fewer
 *	FAKECUDA_VERSION=13000		the driver's CUDA version; what came later is missing
 *	FAKECUDA_MISSING=cuInit,...	entry points that are not found
 *	FAKECUDA_NOWHERE=1		fills of addresses where no memory is are accepted and not
 *					done: operands of any size then need none
 *	FAKECUDA_STUB=1			behaves like the toolkit's stub library
 *	FAKECUDA_INIT=CODE		what cuInit() returns
 *	FAKECUDA_IMAGE=CODE		what loading an image or a kernel returns
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

#define FAKECUDA_PARAMS 32764	/* bytes of parameters that a kernel may have, from CUDA 12.1 on */

struct fakecuda_launch {
	char kernel[128];
	unsigned grid[3], block[3];
	unsigned shared_bytes, cluster;		/* cluster 0: none asked for */
	int early;				/* may start before the kernel ahead has ended */
	int device;
	void *stream;
	int captured;				/* went into a graph instead of running */
	int replayed;				/* ran from a graph */
	size_t params_bytes;			/* 0: handed over by address, and not kept */
	unsigned char params[FAKECUDA_PARAMS];
};

/* What is alive: all 0 when everything was given back. */
struct fakecuda_live {
	int contexts;				/* retained and not released */
	int allocations, streams, events, libraries, graphs;
	int pushed;				/* contexts on this thread's stack */
	int dropped;				/* lost with their context since reset */
};

struct fakecuda {
	/* Forgets records, complaints, failures to come and errors that stuck, not what lives. */
	void (*reset)(void);
	long (*calls)(void);			/* driver calls since reset */
	void (*fail_at)(long k, int code, int ever);
	const char *(*failed)(void); /* the last call that was made to fail, "" if none */
	void (*break_device)(int device, int code);	/* every call returns code; 0 heals */
	void (*fail_late)(int code);		/* the next launch's error, told at the next wait */
	long (*launches)(void);
	const struct fakecuda_launch *(*launch)(long i);
	/* Called for every kernel that runs; may compute what the kernel would. */
	void (*hook)(void (*run)(const struct fakecuda_launch *l, void *user), void *user);
	struct fakecuda_live (*live)(void);
	/* Misuse that a driver might not even notice: the number, and the first one in words. */
	int (*complaints)(char *first, size_t size);
	const struct cu_functions *cu;
};

/* What is alive and should not be; dropped counts only where nothing kept it from being freed. */
__attribute__((unused)) static int fakecuda_leaked(const struct fakecuda *fake)
{
	const struct fakecuda_live l = fake->live();

	return l.contexts + l.allocations + l.streams + l.events + l.libraries + l.graphs +
	       l.pushed;
}

/* A file in t/core, found from the running program, t/<family>/<test>; until the next call */
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

/* That driver of t/core, or NULL with a line on stderr. */
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

/* The stand-in */
__attribute__((unused)) static const struct fakecuda *fakecuda_load(void)
{
	return fakecuda_load_from("fakecuda.so");
}

#endif
