/*
 * sizes.h - sizes, offsets and scratch, for files that cut work into tiles
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_SIZES_H
#define HZI_CPU_SIZES_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "hurwitz.h"

static inline int64_t min_i64(int64_t a, int64_t b)
{
	return a < b ? a : b;
}

static inline int64_t max_i64(int64_t a, int64_t b)
{
	return a > b ? a : b;
}

static inline int64_t ceil_div(int64_t a, int64_t b)
{
	return a / b + (a % b != 0);
}

/* Bytes of a floating-point number, an s32 or an 8-bit code */
static inline int64_t dtype_bytes(int dtype)
{
	switch (dtype) {
	case HZ_F64:
		return 8;
	case HZ_F32:
	case HZ_S32:
		return 4;
	case HZ_U8:
	case HZ_S8:
		return 1;
	default:
		return 2;
	}
}

/* Rounds scratch bytes up to whole cache lines, so that threads share none. */
static inline size_t round_to_lines(int64_t bytes)
{
	return ((size_t)bytes + 63) & ~(size_t)63;
}

static inline void *take(char **scratch, int64_t bytes)
{
	void *p = *scratch;

	*scratch += round_to_lines(bytes);
	return p;
}

static inline int64_t item_count(int ndim, const int64_t *shape)
{
	int64_t count = 1;

	for (int d = 0; d < ndim; d++)
		count *= shape[d];
	return count;
}

/* The offset of item number `item` of the outer dimensions, the last one fastest */
static inline int64_t item_offset(int ndim, const int64_t *shape, const int64_t *stride,
				  int64_t item)
{
	int64_t offset = 0;

	for (int d = ndim - 1; d >= 0; d--) {
		offset += item % shape[d] * stride[d];
		item /= shape[d];
	}
	return offset;
}

/* Copies n elements of size bytes, 1, 2 or 4; steps count elements. */
static inline void copy_strided(void *to, int64_t to_step, const void *from, int64_t from_step,
				int64_t n, int64_t size)
{
	char *y = to;
	const char *x = from;

	if (to_step == 1 && from_step == 1) {
		memcpy(y, x, (size_t)(n * size));
	} else if (size == 4) {
		for (int64_t i = 0; i < n; i++)
			memcpy(y + 4 * i * to_step, x + 4 * i * from_step, 4);
	} else if (size == 2) {
		for (int64_t i = 0; i < n; i++)
			memcpy(y + 2 * i * to_step, x + 2 * i * from_step, 2);
	} else {
		for (int64_t i = 0; i < n; i++)
			y[i * to_step] = x[i * from_step];
	}
}

/*
 * to[j * to_ld + i] = from[i * from_ld + j] for i < rows, j < cols, in elements of size bytes, 1, 2
 * or 4. Rows of from and columns of to are contiguous.
 */
void hzi_cpu_transpose(void *to, int64_t to_ld, const void *from, int64_t from_ld, int64_t rows,
		       int64_t cols, int64_t size);

#endif
