/*
 * qgemm.h - what files of quantized multiplication and of quantization on the CPU share
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_CPU_QGEMM_H
#define HZI_CPU_QGEMM_H

#include "cpu/core/cpu.h"
#include "cpu/core/sizes.h"
#include "cpu/qgemm/kern.h"
#include "lib/qgemm/qgemm.h"

#define GATHER 512	/* elements that a buffer on the stack gathers */

/* So many bytes behind p, which may be NULL where there are no elements, k being 0, and stays it */
static inline const char *bytes_at(const void *p, int64_t bytes)
{
	return p ? (const char *)p + bytes : NULL;
}

/* The first row of an item in a_zeros and a_scales, both of which have row_stride */
static inline int64_t item_row(const struct hzi_qgemm_args *a, int64_t item)
{
	return item_offset(a->ndim, a->shape, a->row_stride, item);
}

/* Multiplies; the workspace is that of hzi_cpu_qgemm_workspace(). */
void hzi_cpu_qgemm_run(const struct hz_context *ctx, const struct hzi_qgemm_args *a,
		       char *workspace);

#endif
