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

#define PANEL 32		/* columns of a panel of packed B */
/* Multiply-adds that a thread does in about the time of moving a byte */
#define MACS_PER_BYTE 64
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

static inline bool is_float(int dtype)
{
	return dtype == HZ_F32 || dtype == HZ_F16 || dtype == HZ_BF16;
}

static inline int32_t code_at(const void *codes, int dtype, int64_t i)
{
	return dtype == HZ_U8 ? ((const uint8_t *)codes)[i] : ((const int8_t *)codes)[i];
}

static inline int32_t row_zero(const struct hzi_qgemm_args *a, int64_t item, int64_t i)
{
	return code_at(a->a_zeros, a->a_dtype, (item_row(a, item) + i) * a->zero_step);
}

static inline void *c_at(const struct hzi_qgemm_args *a, int64_t item, int64_t i, int64_t j)
{
	return (char *)a->c + (item_offset(a->ndim, a->shape, a->c_stride, item) + i * a->c_m +
			       j * a->c_n) * dtype_bytes(a->c_dtype);
}

/* Operands of the epilogue for columns j .. j + n - 1, padded to whole panels */
struct hzi_cpu_qgemm_columns {
	const int32_t *sum;
	int32_t *col, *b_zero, *u, *shift;
	float *b_scale;
	const void *bias;
	bool folded, fast;		/* the bias is in col; mul() does the epilogue */
};

size_t hzi_cpu_qgemm_columns_bytes(int64_t n);
void hzi_cpu_qgemm_make_columns(const struct hzi_qgemm_kern *kern, const struct hzi_qgemm_args *a,
				int32_t offset, int64_t j, int64_t n, const int32_t *sum,
				char **scratch, struct hzi_cpu_qgemm_columns *c);
struct hzi_qgemm_epilogue hzi_cpu_qgemm_make_out(const struct hzi_qgemm_args *a,
						 const struct hzi_cpu_qgemm_columns *c);
/* Sets n elements, a multiple of PANEL. */
void hzi_cpu_qgemm_fill(int32_t *to, int32_t v, int64_t n);

/* Multiplies; the workspace is that of hzi_cpu_qgemm_workspace(). */
int hzi_cpu_qgemm_run(struct hz_context *ctx, const struct hzi_qgemm_args *a, char *workspace);

/* Arguments of the routes; see struct hzi_route. */
struct hzi_cpu_qgemm_call {
	const struct hzi_qgemm_args *a;
	char *workspace;
};

const char *hzi_cpu_qgemm_small_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cpu_qgemm_small_wins(const struct hz_context *ctx, const struct hzi_cpu_qgemm_call *c);
size_t hzi_cpu_qgemm_small_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_qgemm_small(struct hz_context *ctx, const void *args);
const char *hzi_cpu_qgemm_skinny_unsupported(const struct hz_context *ctx, const void *args);
bool hzi_cpu_qgemm_skinny_wins(const struct hz_context *ctx, const struct hzi_cpu_qgemm_call *c);
size_t hzi_cpu_qgemm_skinny_workspace(const struct hz_context *ctx, const void *args);
int hzi_cpu_qgemm_skinny(struct hz_context *ctx, const void *args);
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
