/*
 * qgemm.h - shared by quantized multiplication and quantization on the CPU
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

/* The address `bytes` behind p; NULL stays NULL (there are no elements if k is 0). */
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
int hzi_cpu_qgemm_run(struct hz_context *ctx, const struct hzi_qgemm_args *a, char *workspace);

/* Arguments of the routes; see struct hzi_route. */
struct hzi_cpu_qgemm_call {
	const struct hzi_qgemm_args *a;
	char *workspace;
};

const char *hzi_cpu_qgemm_pack_inline_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cpu_qgemm_pack_inline_wins(const struct hz_context *ctx,
				    const struct hzi_cpu_qgemm_call *c);
size_t hzi_cpu_qgemm_pack_inline_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_qgemm_pack_inline(struct hz_context *ctx, const void *args);
const char *hzi_cpu_qgemm_pack_first_unsupported(const struct hz_context *ctx, const void *args);
size_t hzi_cpu_qgemm_pack_first_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_qgemm_pack_first(struct hz_context *ctx, const void *args);
size_t hzi_cpu_qgemm_sum64_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_qgemm_sum64(struct hz_context *ctx, const void *args);

#endif
