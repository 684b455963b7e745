/*
 * segments.h - helpers of the launchers that launch a plan segment by segment
 *
 * SPDX-License-Identifier: BSD-2-Clause
 */
#ifndef HZI_GPU_HADAMARD_SEGMENTS_H
#define HZI_GPU_HADAMARD_SEGMENTS_H

#include "gpu/hadamard/launch.h"

#define HZI_GRID_MAX 0x7fffffff

/* Prepares the launch for a segment. Returns NULL, or why the kernels do not support it. */
typedef const char *hzi_hadamard_prepare(const struct hzi_hadamard_call *c,
					 const struct hzi_segment *seg,
					 struct hzi_hadamard_launch *l);

hzi_hadamard_prepare hzi_hadamard_prepare_rows;
hzi_hadamard_prepare hzi_hadamard_prepare_base_rows;
hzi_hadamard_prepare hzi_hadamard_prepare_columns_16bit;
hzi_hadamard_prepare hzi_hadamard_prepare_columns;

/* HZ_OK if every transform fits the shared memory of a cluster, else HZ_ENOTSUP */
int hzi_hadamard_check_lengths(struct hz_context *ctx, const struct hzi_hadamard_call *c);

int hzi_hadamard_launch_strided(struct hz_context *ctx, const struct hzi_hadamard_call *c,
				const struct hzi_segment *seg);

/* ---- Dimensions of vectors ------------------------------------------------------------------- */

struct hzi_hadamard_dims {
	int n;
	struct hzi_hadamard_dim d[HZI_STRIDED_DIMS];
};

/*
 * Whether one step of outer is dim.size steps of inner in every operand, so that both merge into
 * one dimension
 */
bool hzi_hadamard_dim_continues(const struct hzi_hadamard_dim *outer,
				const struct hzi_hadamard_dim *inner);

/* The dimensions of a segment's vectors: rows, blocks, transforms; seg NULL: of rows alone */
struct hzi_hadamard_dims hzi_hadamard_make_dims(const struct hzi_hadamard_call *c,
						const struct hzi_segment *seg);

int64_t hzi_hadamard_vectors(const struct hzi_hadamard_dims *dims);

/* The parameters that all kernels have, for a segment */
struct hzi_hadamard_job hzi_hadamard_make_job(const struct hzi_hadamard_call *c,
					      const struct hzi_segment *seg,
					      const struct hzi_hadamard_dims *dims);

/*
 * Sets dim, one_dim and contiguous of p. Returns false if there are more than two dimensions or
 * 2^31 vectors.
 */
bool hzi_hadamard_set_dims(const struct hzi_hadamard_dims *dims, int64_t n,
			   struct hzi_hadamard_rows *p);

/* ---- Elements and alignment ------------------------------------------------------------------ */

static inline int hzi_log2(int64_t power)
{
	return 63 - __builtin_clzll((unsigned long long)power);
}

/* Bits of an element in memory */
static inline int hzi_bits_of(int dtype)
{
	return dtype == HZ_S4X2 ? 4 : 8 * (int)hz_dtype_size(dtype);
}

static inline void *hzi_at_element(const void *p, int64_t element, int dtype)
{
	return (char *)(uintptr_t)p + element * hzi_bits_of(dtype) / 8;
}

/*
 * Whether an operand at offset, and all steps between its vectors, are multiples of that many bytes
 */
bool hzi_hadamard_aligned(const void *p, int64_t offset, int dtype, const int64_t *steps, int n,
			  int64_t bytes);

/* Whether packed signs of all vectors begin at a byte, or factors are floats */
static inline bool hzi_hadamard_whole_bytes(const struct hzi_diag *diag, int64_t offset,
					    int64_t step0, int64_t step1)
{
	return diag->kind != HZ_U8 || (offset % 8 == 0 && step0 % 8 == 0 && step1 % 8 == 0);
}

#endif
