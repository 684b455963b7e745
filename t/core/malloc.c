/*
 * malloc.c - for LD_PRELOAD: counts allocations; the HZ_MALLOC_FAIL-th of a process fails
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * A program that ends before that allocation has the exit status 77. glibc only.
 */
#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __GLIBC__

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t count, size_t bytes);
void *__libc_realloc(void *p, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static long fail_at = -1, count;

/* Allocations up to now */
long malloc_count(void)
{
	return __atomic_load_n(&count, __ATOMIC_RELAXED);
}

/* Read at the first call: the environment exists before the first constructor runs. */
static int fails(void)
{
	if (fail_at < 0) {
		const char *const at = getenv("HZ_MALLOC_FAIL");

		fail_at = at ? atol(at) : 0;
	}
	if (__atomic_add_fetch(&count, 1, __ATOMIC_RELAXED) != fail_at)
		return 0;
	errno = ENOMEM;
	return 1;
}

void *malloc(size_t bytes)
{
	return fails() ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t bytes)
{
	return fails() ? NULL : __libc_calloc(n, bytes);
}

void *realloc(void *p, size_t bytes)
{
	return fails() ? NULL : __libc_realloc(p, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
	return fails() ? NULL : __libc_memalign(align, bytes);
}

int posix_memalign(void **p, size_t align, size_t bytes)
{
	void *const got = aligned_alloc(align, bytes);

	if (!got)
		return ENOMEM;
	*p = got;
	return 0;
}

__attribute__((destructor)) static void end(void)
{
	if (count < fail_at)
		_exit(77);
}

#endif
