/*
 * quantize.h - parameters of the kernels between contiguous rows and codes
 *
 * SPDX-License-Identifier: BSD-2-Clause
 *
 * Read by the C compiler and by nvcc: fixed-width types only, and the same layout for both.
 */
#ifndef HZI_GPU_HADAMARD_QUANTIZE_H
#define HZI_GPU_HADAMARD_QUANTIZE_H

#include "gpu/hadamard/contiguous.h"
#include "gpu/quantize/quantize.h"

#define HZI_STATIC_WARP_BYTES 16	/* per warp, rows from 2^11: an encoder of static scales */

/*
 * Dequantization of 8-bit integers: two of them in f16, (code xor HZI_S8_FLIP, of u8 codes xor 0) +
 * 1024 + HZI_CODE_BASE, are codes minus their zero point.
 */
#define HZI_S8_FLIP 0x80808080u
#define HZI_CODE_BASE(is_signed, zero_point) \
	((0xe400u + (uint32_t)((zero_point) + ((is_signed) ? 128 : 0))) * 0x10001u)

/*
 * Rows f.x of 2^k elements to codes f.y, or codes f.x to rows f.y; both are contiguous, and
 * successive groups of elements have a scale each. Scales are dynamic if the kernel computes them
 * from the groups' largest magnitudes, static if the caller gives them.
 */
struct hzi_hadamard_quantize {
	struct hzi_hadamard_contiguous f;
	/* Dynamic: written, else read. NULL: one scale for all, in f.factor for dequantization */
	void *scales;
	/* Static scales */
	const uint8_t *zero_points;	/* NULL: zero_point, or 0 with scales */
	struct hzi_fastdiv group;	/* in vectors of 8 elements; divisor 0: scale 0 for all */
	int32_t is_signed;		/* codes are s8, else u8 */
	float scale;			/* without scales */
	int32_t zero_point;
	/* Dynamic scales, dequantization */
	int32_t q_dtype, scale_dtype;	/* q_dtype is HZ_S8 for HZ_U8, too */
	int32_t round_to;		/* 16-bit dtype of results; 0: not rounded */
	int32_t group_log2;
	float q_max, inverse_q_max;	/* the largest code, fl(1 / q_max) */
	/* All */
	int32_t has_pre, post_or_round;	/* f.pre; f.post or round_to, dynamic scales alone */
	uint32_t flip, base;		/* dequantization of HZ_S8, see above */
	uint32_t prefetch_distance;	/* in blocks: to the one that starts when this one ends */
	/* Microscaling: as in gpu/quantize/microscaling.h */
	int32_t rule, measure, pad_;
	const float *tensor_scale;
	float *new_tensor_scale;
	uint32_t *most;
};

/*
 * 16-bit rows of m 2^k elements to codes, or codes to rows, with static scales: m describes the
 * transforms, q the codes.
 */
struct hzi_hadamard_base_mma_quantize {
	struct hzi_hadamard_base_mma m;
	struct hzi_hadamard_quantize q;
};

static_assert(sizeof(struct hzi_hadamard_quantize) == 176, "the same layout for C and CUDA");
static_assert(sizeof(struct hzi_hadamard_base_mma_quantize) == 344,
	      "the same layout for C and CUDA");

#endif
