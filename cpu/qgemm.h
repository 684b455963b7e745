/*
 * qgemm.h - what files of quantized multiplication and of quantization on the CPU share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QGEMM_H
#define HZI_CPU_QGEMM_H

#include <string.h>

#include "cpu/cpu.h"
#include "lib/qgemm.h"

#define GATHER 512	/* elements that a buffer on the stack gathers */

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
	return (a + b - 1) / b;
}

static inline int64_t dtype_bytes(int dtype)
{
	return dtype == HZ_F32 || dtype == HZ_S32 ? 4 : dtype == HZ_U8 || dtype == HZ_S8 ? 1 : 2;
}

/* Scratch bytes, in whole cache lines so that threads share none */
static inline size_t line(int64_t bytes)
{
	return ((size_t)bytes + 63) & ~(size_t)63;
}

static inline void *take(char **scratch, int64_t bytes)
{
	void *p = *scratch;

	*scratch += line(bytes);
	return p;
}

/* The offset of item i of a batch by one operand's strides, and by another's */
static inline int64_t item_offset(int ndim, const int64_t *shape, const int64_t *stride, int64_t i)
{
	int64_t offset = 0;

	for (int d = ndim - 1; d >= 0; d--) {
		offset += i % shape[d] * stride[d];
		i /= shape[d];
	}
	return offset;
}

/* The first row of an item in a_zeros and a_scales, both of which have row_stride */
static inline int64_t item_row(const struct hzi_qgemm_args *a, int64_t item)
{
	return item_offset(a->ndim, a->shape, a->row_stride, item);
}

/* n elements of size bytes, step elements apart on one side */
static inline void gather(void *to, const void *from, int64_t n, int64_t to_step, int64_t from_step,
		   int64_t size)
{
	char *t = to;
	const char *f = from;

	for (int64_t i = 0; i < n; i++, t += to_step * size, f += from_step * size) {
		if (size == 4)
			memcpy(t, f, 4);
		else if (size == 2)
			memcpy(t, f, 2);
		else
			*t = *f;
	}
}

/* Multiplies; the workspace is that of hzi_cpu_qgemm_workspace(). */
void hzi_cpu_qgemm_run(const struct hz_context *ctx, const struct hzi_qgemm_args *a,
		       char *workspace);

#endif
